//! What can be wrong with a case file.

/// Each variant names the key or tensor, what was found and what is expected. No file makes reading panic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// Any of the others, with the file it was found in.
    #[error("{file}: {error}")]
    InFile {
        /// The path as it was given.
        file: String,
        /// What is wrong.
        error: Box<CaseError>,
    },
    /// The file cannot be read at all.
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// The bytes are not a whole safetensors file.
    #[error("is not a safetensors file: {0}")]
    NotSafetensors(String),
    /// A safetensors file of something else.
    #[error("is not a case file: its metadata has no entry \"case\"")]
    NoCase,
    /// An entry of the metadata beside `case`.
    #[error("has the metadata entry {0:?}, but a case file has only \"case\"")]
    UnknownEntry(String),
    /// The entry `case` is not a JSON object.
    #[error("the metadata entry \"case\" is not a JSON object: {0}")]
    Json(String),
    /// A key that this version does not know.
    #[error("has the key {key:?}, which is unknown for op {op}: expected are {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The operation.
        op: &'static str,
        /// The keys that are known.
        known: String,
    },
    /// A key that must be there.
    #[error("has no key {0:?}, which is required")]
    MissingKey(&'static str),
    /// A key with a value that it cannot have.
    #[error("key {key:?} is {found}, but expected is {expected}")]
    Key {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// The rule.
        expected: &'static str,
    },
    /// A tensor that this version does not know.
    #[error("has the tensor {tensor:?}, which is unknown for op {op}: expected are {known}")]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The operation.
        op: &'static str,
        /// The tensors that are known.
        known: String,
    },
    /// A tensor that must be there.
    #[error("has no tensor {tensor:?}: {why}")]
    MissingTensor {
        /// The tensor.
        tensor: &'static str,
        /// What makes it necessary.
        why: &'static str,
    },
    /// A tensor of the wrong element type.
    #[error("tensor {tensor:?} has dtype {found}, but expected is {expected}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        found: String,
        /// The dtypes it may have.
        expected: String,
    },
    /// A tensor of the wrong shape.
    #[error("tensor {tensor:?} has shape {found:?}, but expected is {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape it must have.
        expected: String,
    },
    /// A number in a tensor that is outside its rule.
    #[error("tensor {tensor:?} holds {found} at {at}, but expected is {expected}")]
    Element {
        /// The tensor.
        tensor: &'static str,
        /// The number.
        found: String,
        /// Its place, counted from 0.
        at: usize,
        /// The rule.
        expected: &'static str,
    },
    /// Two things of which only one can hold.
    #[error("has both {0} and {1}: only one can be meant")]
    Both(&'static str, &'static str),
    /// The library refuses the problem that the file describes.
    #[error("{0}")]
    Problem(#[from] crate::Error),
    /// A problem that the format has no words for.
    #[error("{field} is {found}, which a case file cannot say: {expected}")]
    Unsayable {
        /// The field of the problem.
        field: &'static str,
        /// What it holds.
        found: String,
        /// What a case file can say.
        expected: &'static str,
    },
}

impl CaseError {
    pub(crate) fn in_file(self, file: &std::path::Path) -> Self {
        CaseError::InFile { file: file.display().to_string(), error: Box::new(self) }
    }
}
