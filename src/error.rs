//! One error type. Every variant names the field, what was found and the rule, and is raised
//! before anything reaches the driver wherever the host can know.

/// What can go wrong. No number and no text that this crate is given makes it panic. (wgpu itself panics on objects of another
/// device, or destroyed ones, which cannot be told from the outside: buffers and queue must be the device's own and alive.)
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number that is outside what the field allows.
    #[error("{field} is {value}, but it must be {rule}")]
    Value {
        /// The field that holds the number.
        field: &'static str,
        /// What was found.
        value: String,
        /// What is allowed.
        rule: &'static str,
    },
    /// Query heads that cannot be shared out evenly over the key/value heads.
    #[error("q_heads is {q_heads} and kv_heads is {kv_heads}, but q_heads must be a multiple of kv_heads")]
    HeadsNotMultiple {
        /// Number of query heads.
        q_heads: u32,
        /// Number of key/value heads.
        kv_heads: u32,
    },
    /// A slice of the wrong length.
    #[error("{field} has {got} elements, but the problem needs {expected}")]
    Length {
        /// The input that has the wrong length.
        field: &'static str,
        /// Elements found.
        got: u64,
        /// Elements needed.
        expected: u64,
    },
    /// A number that is NaN or infinite, also once it is rounded to its storage type.
    /// Raised by [`Inputs::check_finite`](crate::Inputs::check_finite), by nothing else.
    #[error("{field}[{index}] is {value}, stored as {stored}: no finite number")]
    NotFinite {
        /// The input that holds the number.
        field: &'static str,
        /// Where in the slice.
        index: u64,
        /// What was found.
        value: f32,
        /// What the device would read.
        stored: f32,
    },
    /// An input that the problem needs was not given.
    #[error("{field} is missing: the problem asks for it ({why})")]
    Missing {
        /// The input.
        field: &'static str,
        /// The option that makes it necessary.
        why: &'static str,
    },
    /// Something was given that would be ignored: an input that the problem does not use, or an option that changes nothing.
    #[error("{field} was given, but the problem does not use it: {hint}")]
    Unused {
        /// The input or option.
        field: &'static str,
        /// How to make use of it, or why there is none.
        hint: &'static str,
    },
    /// Two options that make no sense together.
    #[error("{option} does not go with {other}: {why}")]
    Incompatible {
        /// One of the two.
        option: &'static str,
        /// The other.
        other: &'static str,
        /// Why.
        why: &'static str,
    },
    /// A buffer, counted from the offset it is bound at, that is too small.
    #[error("buffer {field} has {available} bytes after its offset, but the plan needs {needed}")]
    BufferTooSmall {
        /// The binding.
        field: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        available: u64,
    },
    /// A buffer that was created without a usage that the call needs.
    #[error("buffer {field} was created without wgpu::BufferUsages::{usage}")]
    BufferUsage {
        /// The binding.
        field: &'static str,
        /// The usage that is missing.
        usage: &'static str,
    },
    /// A buffer offset that the device cannot bind.
    #[error(
        "the offset of buffer {field} is {offset}, but the device binds only at multiples of {alignment} bytes \
         (put a finer offset into Layout::Strided)"
    )]
    Offset {
        /// The binding.
        field: &'static str,
        /// The offset found.
        offset: u64,
        /// The device's `min_storage_buffer_offset_alignment`.
        alignment: u64,
    },
    /// One buffer bound both to be read and to be written, which WebGPU forbids.
    #[error(
        "{written} and {read} are the same buffer: WebGPU does not bind one buffer for writing and anything else in one dispatch"
    )]
    Aliased {
        /// The binding that is written.
        written: &'static str,
        /// The other binding.
        read: &'static str,
    },
    /// More than the device has, where cutting the problem into slices does not help either.
    #[error("{what} needs {limit} = {needed}, but the device has {available}: {advice}")]
    LimitExceeded {
        /// What would need it.
        what: String,
        /// The limit's name in `wgpu::Limits`, or in [`Caps`](crate::Caps) where WebGPU does not have it.
        limit: &'static str,
        /// What is needed.
        needed: u64,
        /// What there is.
        available: u64,
        /// What to do about it.
        advice: &'static str,
    },
    /// What was asked for cannot be had from this kernel: sizes that do not fit, a twin or scores on demand that it does not have.
    #[error("kernel {kernel} cannot run this problem: {reason}")]
    KernelUnavailable {
        /// The kernel asked for.
        kernel: &'static str,
        /// Why it can't.
        reason: String,
    },
    /// WGSL of the user's that does not check. Raised by [`UserCode`](crate::UserCode)'s constructors, before any device is asked.
    #[error("{which}, line {line}, column {column}: {message}")]
    UserCode {
        /// `score_mod` or `mask_mod`.
        which: &'static str,
        /// Line in the text, from 1.
        line: u32,
        /// Column in the line, from 1.
        column: u32,
        /// What is wrong.
        message: String,
    },
    /// The driver refused a shader or a pipeline.
    #[error("the driver refused {label}: {message}")]
    Driver {
        /// The object's label.
        label: String,
        /// What the driver said.
        message: String,
    },
    /// The device has no memory left.
    #[error("out of device memory while making {label} ({bytes} bytes)")]
    OutOfMemory {
        /// The object's label.
        label: String,
        /// How much was asked for.
        bytes: u64,
    },
    /// The device is gone (driver reset, removed, destroyed). Make a new one and plan again.
    #[error("the device was lost: {0}")]
    DeviceLost(String),
    /// No adapter was found.
    #[error("no graphics adapter was found: {0}")]
    NoAdapter(String),
    /// There are adapters, but none with the name that was asked for.
    #[error("no graphics adapter has {part:?} in its name; there {are}", are = listed(.there))]
    UnknownAdapter {
        /// The part of a name.
        part: String,
        /// The names of those that there are.
        there: Vec<String>,
    },
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    pub(crate) fn value(field: &'static str, value: impl core::fmt::Display, rule: &'static str) -> Self {
        Error::Value { field, value: legible(value.to_string()), rule }
    }
}

fn listed(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    format!("{} {}", if names.len() == 1 { "is" } else { "are" }, quoted.join(", "))
}

/// Numbers are displayed with all their zeros, which nobody counts.
fn legible(number: String) -> String {
    let long = number.len() > if number.contains('.') { 14 } else { 20 };
    match number.parse::<f64>() {
        Ok(x) if long => format!("{x:e}"),
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_legible() {
        let value = |x: &dyn core::fmt::Display| match Error::value("x", x, "") {
            Error::Value { value, .. } => value,
            other => panic!("{other:?}"),
        };
        assert_eq!(value(&f32::MAX), "3.4028235e38");
        assert_eq!(value(&1e-27f32), "1e-27");
        assert_eq!(value(&-1e300f64), "-1e300");
        assert_eq!(value(&0.1f32), "0.1");
        assert_eq!(value(&f32::NAN), "NaN");
        assert_eq!(value(&u64::MAX), "18446744073709551615");
        assert_eq!(value(&"1 x 2 x 3"), "1 x 2 x 3");
    }
}
