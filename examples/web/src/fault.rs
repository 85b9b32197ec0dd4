//! Errors as JavaScript sees them: an `Error` whose name is `AttentionError`, with the field, what was found and the rule.

use js_sys::Reflect;
use wasm_bindgen::prelude::*;
use wgpu_attention::Error;
use wgpu_attention::case::CaseError;

/// What is wrong, before it becomes a JavaScript error.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    kind: &'static str,
    field: Option<String>,
    value: Option<String>,
    rule: Option<String>,
    message: String,
}

pub(crate) type Result<T, E = Fault> = core::result::Result<T, E>;

impl Fault {
    /// A field whose value breaks a rule.
    pub(crate) fn value(field: &str, value: impl Into<String>, rule: impl Into<String>) -> Self {
        let (field, value, rule) = (field.to_owned(), value.into(), rule.into());
        let message = format!("{field} is {value}, but it must be {rule}");
        Fault { kind: "Value", field: Some(field), value: Some(value), rule: Some(rule), message }
    }

    /// A field that has to be there.
    pub(crate) fn missing(field: &str, rule: &str) -> Self {
        let message = format!("{field} is missing: it must be {rule}");
        Fault {
            kind: "Missing",
            field: Some(field.to_owned()),
            value: None,
            rule: Some(rule.to_owned()),
            message,
        }
    }

    /// A field that nobody knows, and so would be ignored.
    pub(crate) fn unknown(field: &str, known: &[&str]) -> Self {
        let rule = format!("one of {}", known.join(", "));
        let message = format!("{field} is not known: expected is {rule}");
        Fault { kind: "Unknown", field: Some(field.to_owned()), value: None, rule: Some(rule), message }
    }

    /// A result that is not right.
    pub(crate) fn wrong(message: String) -> Self {
        Fault::plain("Other", message)
    }

    fn plain(kind: &'static str, message: String) -> Self {
        Fault { kind, field: None, value: None, rule: None, message }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let (kind, field, value, rule) = match &error {
            Error::Value { field, value, rule } => ("Value", *field, value.clone(), (*rule).to_owned()),
            Error::HeadsNotMultiple { q_heads, kv_heads } => (
                "HeadsNotMultiple",
                "q_heads",
                q_heads.to_string(),
                format!("a multiple of kv_heads, {kv_heads}"),
            ),
            Error::Length { field, got, expected } => {
                ("Length", *field, got.to_string(), format!("{expected} elements"))
            }
            Error::Missing { field, why } => ("Missing", *field, String::new(), (*why).to_owned()),
            Error::Unused { field, hint } => ("Unused", *field, String::new(), (*hint).to_owned()),
            Error::Incompatible { option, other, why } => {
                ("Incompatible", *option, format!("together with {other}"), (*why).to_owned())
            }
            Error::LimitExceeded { limit, needed, available, advice, .. } => {
                ("LimitExceeded", *limit, needed.to_string(), format!("at most {available}: {advice}"))
            }
            Error::KernelUnavailable { kernel, reason } => {
                ("KernelUnavailable", "kernel", (*kernel).to_owned(), reason.clone())
            }
            Error::UserCode { which, line, column, message } => {
                ("UserCode", *which, format!("line {line}, column {column}"), message.clone())
            }
            Error::Driver { .. } => return Fault::plain("Driver", message),
            Error::OutOfMemory { label, bytes } => {
                ("OutOfMemory", label.as_str(), bytes.to_string(), "less than the device has left".to_owned())
            }
            Error::DeviceLost(_) => return Fault::plain("DeviceLost", message),
            Error::NoAdapter(_) | Error::UnknownAdapter { .. } => return Fault::plain("NoAdapter", message),
            _ => return Fault::plain("Other", message),
        };
        // JavaScript's names of the fields are Rust's in camel case.
        let message = message.replace(field, &camel(field));
        let some = |text: String| (!text.is_empty()).then_some(text);
        Fault { kind, field: Some(camel(field)), value: some(value), rule: some(rule), message }
    }
}

impl From<CaseError> for Fault {
    fn from(error: CaseError) -> Self {
        match error {
            CaseError::Problem(error) => error.into(),
            other => Fault::plain("Case", other.to_string()),
        }
    }
}

impl From<Fault> for JsValue {
    fn from(fault: Fault) -> Self {
        let error = js_sys::Error::new(&fault.message);
        error.set_name("AttentionError");
        let texts = [
            ("kind", Some(fault.kind.to_owned())),
            ("field", fault.field),
            ("value", fault.value),
            ("rule", fault.rule),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                // An error of a moment ago is an object that takes properties.
                let _ = Reflect::set(&error, &name.into(), &text.into());
            }
        }
        error.into()
    }
}

/// `q_heads` as `qHeads`.
pub(crate) fn camel(snake: &str) -> String {
    let mut upper = false;
    let mut out = String::new();
    for c in snake.chars() {
        match c {
            '_' => upper = true,
            c if upper => {
                out.extend(c.to_uppercase());
                upper = false;
            }
            c => out.push(c),
        }
    }
    out
}
