//! Reading JavaScript objects: each field by its name and type, and none that is not known.

use crate::fault::{Fault, Result};
use js_sys::{Array, Float32Array, Int32Array, Object, Reflect, Uint8Array, Uint32Array};
use wasm_bindgen::{JsCast, JsValue};

/// An object whose fields are all known by name.
pub(crate) struct Fields {
    object: JsValue,
    path: &'static str,
}

impl Fields {
    /// Refuses what is no object and what has fields beside `known`. `undefined` and `null` are an empty object.
    pub(crate) fn new(value: &JsValue, path: &'static str, known: &[&str]) -> Result<Self> {
        if value.is_undefined() || value.is_null() {
            return Ok(Fields { object: Object::new().into(), path });
        }
        if !value.is_object() || Array::is_array(value) || value.is_instance_of::<Float32Array>() {
            return Err(Fault::value(path, show(value), "an object"));
        }
        for key in Object::keys(value.unchecked_ref::<Object>()).iter() {
            let key = key.as_string().unwrap_or_default();
            if !known.contains(&key.as_str()) {
                return Err(Fault::unknown(&join(path, &key), known));
            }
        }
        Ok(Fields { object: value.clone(), path })
    }

    /// The field's full name, for errors.
    pub(crate) fn name(&self, key: &str) -> String {
        join(self.path, key)
    }

    /// The field, if it is there and not `undefined` or `null`.
    pub(crate) fn get(&self, key: &str) -> Option<JsValue> {
        let value = Reflect::get(&self.object, &key.into()).ok()?;
        (!value.is_undefined() && !value.is_null()).then_some(value)
    }

    pub(crate) fn fault(&self, key: &str, rule: impl Into<String>) -> Fault {
        Fault::value(&self.name(key), self.get(key).map_or("missing".to_owned(), |v| show(&v)), rule)
    }

    /// A field of some type that has to be there.
    pub(crate) fn need<T>(&self, key: &str, found: Option<T>, rule: &str) -> Result<T> {
        found.ok_or_else(|| Fault::missing(&self.name(key), rule))
    }

    fn typed<T>(&self, key: &str, rule: &str, read: impl FnOnce(&JsValue) -> Option<T>) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(&value).map(Some).ok_or_else(|| self.fault(key, rule)),
        }
    }

    pub(crate) fn bool(&self, key: &str) -> Result<bool> {
        Ok(self.typed(key, "true or false", JsValue::as_bool)?.unwrap_or(false))
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a number", |v| v.as_f64().map(|x| x as f32))
    }

    pub(crate) fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "a whole number from 0 to 4294967295", to_u32)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<String>> {
        self.typed(key, "a text", JsValue::as_string)
    }

    pub(crate) fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.typed(key, "a Float32Array", to_f32s)
    }

    pub(crate) fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.typed(key, "a Uint32Array", |v| v.dyn_ref::<Uint32Array>().map(Uint32Array::to_vec))
    }

    pub(crate) fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.typed(key, "an Int32Array", to_i32s)
    }

    pub(crate) fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.typed(key, "a Uint8Array", |v| v.dyn_ref::<Uint8Array>().map(Uint8Array::to_vec))
    }

    /// Four sizes: (batch, qHeads, seqQ, seqK).
    pub(crate) fn sizes(&self, key: &str) -> Result<Option<[u32; 4]>> {
        self.typed(key, "an array of four whole numbers", |v| {
            let list = v.dyn_ref::<Array>()?;
            let sizes: Vec<u32> = list.iter().filter_map(|n| to_u32(&n)).collect();
            sizes.try_into().ok()
        })
    }
}

pub(crate) fn to_f32s(value: &JsValue) -> Option<Vec<f32>> {
    value.dyn_ref::<Float32Array>().map(Float32Array::to_vec)
}

pub(crate) fn to_i32s(value: &JsValue) -> Option<Vec<i32>> {
    value.dyn_ref::<Int32Array>().map(Int32Array::to_vec)
}

pub(crate) fn to_u32(value: &JsValue) -> Option<u32> {
    let x = value.as_f64()?;
    (x.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&x)).then_some(x as u32)
}

pub(crate) fn to_i32(value: &JsValue) -> Option<i32> {
    let x = value.as_f64()?;
    (x.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&x)).then_some(x as i32)
}

/// A value in an error: short, whatever it is.
fn show(value: &JsValue) -> String {
    if let Some(text) = value.as_string() {
        return format!("{text:?}");
    }
    if let Some(x) = value.as_f64() {
        return x.to_string();
    }
    if let Some(b) = value.as_bool() {
        return b.to_string();
    }
    let constructor = Reflect::get(value, &"constructor".into());
    let name = constructor.and_then(|c| Reflect::get(&c, &"name".into())).ok().and_then(|n| n.as_string());
    match name {
        Some(name) if !name.is_empty() => format!("of the type {name}"),
        _ => "of another type".to_owned(),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A new object for JavaScript.
pub(crate) struct Record(Object);

impl Record {
    pub(crate) fn new() -> Self {
        Record(Object::new())
    }

    pub(crate) fn with(self, key: &str, value: impl Into<JsValue>) -> Self {
        // An object of a moment ago takes any property.
        let _ = Reflect::set(&self.0, &key.into(), &value.into());
        self
    }

    pub(crate) fn with_some(self, key: &str, value: Option<impl Into<JsValue>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    pub(crate) fn build(self) -> JsValue {
        self.0.into()
    }
}
