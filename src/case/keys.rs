//! The keys of a JSON object, taken one by one so that none is left over unseen.

use super::error::CaseError;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeMap;

pub(super) fn wrong(key: &'static str, found: impl Into<Value>, expected: &'static str) -> CaseError {
    CaseError::Key { key, found: found.into().to_string(), expected }
}

/// The keys not yet taken.
pub(super) struct Keys(pub(super) BTreeMap<String, Value>);

impl Keys {
    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key)
    }

    pub(super) fn text(
        &mut self,
        key: &'static str,
        expected: &'static str,
    ) -> Result<Option<String>, CaseError> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(key, other, expected)),
        }
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Result<bool, CaseError> {
        match self.take(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(wrong(key, other, "true or false")),
        }
    }

    pub(super) fn choice(
        &mut self,
        key: &'static str,
        choices: &[&str],
        expected: &'static str,
    ) -> Result<Option<String>, CaseError> {
        match self.text(key, expected)? {
            Some(text) if !choices.contains(&text.as_str()) => Err(wrong(key, text, expected)),
            text => Ok(text),
        }
    }

    pub(super) fn number(
        &mut self,
        key: &'static str,
        expected: &'static str,
        rule: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, CaseError> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|x| rule(*x)) {
                None => Err(wrong(key, value, expected)),
                number => Ok(number),
            },
        }
    }
}

/// A JSON object in which a key that is there twice is an error: with a plain map the first would go unread.
pub(super) struct Object(pub(super) BTreeMap<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Object;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut object = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if object.contains_key(&key) {
                        return Err(A::Error::custom(format!("the key {key:?} is there twice")));
                    }
                    object.insert(key, value);
                }
                Ok(Object(object))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
