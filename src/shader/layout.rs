//! For tests: the layout of `struct Params`, which is written twice, in Rust and in WGSL.

/// Name and byte offset of each field in a text, and the bytes that a uniform binding takes for all.
pub(crate) fn of_text(source: &str) -> (Vec<(String, usize)>, usize) {
    let module = naga::front::wgsl::parse_str(source).unwrap();
    let (_, found) = module.types.iter().find(|(_, t)| t.name.as_deref() == Some("Params")).unwrap();
    let naga::TypeInner::Struct { members, span } = &found.inner else { panic!("Params is not a struct") };
    let fields = members.iter().map(|m| (m.name.clone().unwrap(), m.offset as usize)).collect();
    (fields, span.next_multiple_of(16) as usize)
}

/// The same of a type in Rust.
macro_rules! of_type {
    ($type:ident: $($name:ident)*) => {
        (
            vec![$((stringify!($name).to_owned(), std::mem::offset_of!($type, $name))),*],
            size_of::<$type>(),
        )
    };
}
pub(crate) use of_type;
