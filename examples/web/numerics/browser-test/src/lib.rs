//! `#[test]` for a browser: beside the function stands an export `test FILE::FUNCTION`, which a page finds by its name.

use proc_macro::{Span, TokenStream};
use std::path::Path;

/// What takes the place of the compiler's own attribute.
#[proc_macro_attribute]
pub fn test(_: TokenStream, function: TokenStream) -> TokenStream {
    let mut tokens = function.clone().into_iter().map(|token| token.to_string()).peekable();
    // Documentation is an attribute too.
    while tokens.next_if_eq("#").is_some() {
        if !tokens.next().is_some_and(|attribute| attribute.starts_with("[doc")) {
            return parsed("compile_error!(\"no attribute but #[test] is obeyed in a browser\");");
        }
    }
    let words: Vec<String> = tokens.take(3).collect();
    let [keyword, name, arguments] = words.as_slice() else { return parsed(EXPECTED) };
    if keyword != "fn" || arguments != "()" {
        return parsed(EXPECTED);
    }
    let file = Span::call_site().file();
    let module = Path::new(&file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let export = format!(
        "#[unsafe(export_name = \"test {module}::{name}\")] extern \"C\" fn {name}_in_a_browser() {{ {name}() }}"
    );
    [function, parsed(&export)].into_iter().collect()
}

const EXPECTED: &str = "compile_error!(\"a test is a plain `fn name()`\");";

fn parsed(text: &str) -> TokenStream {
    text.parse().expect("text that is written above")
}
