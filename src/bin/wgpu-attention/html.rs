//! What all pages of this program share: one HTML file each, which asks for nothing else.

use crate::heatmap::escape;
use std::fmt::Write;

/// The style that all pages begin with.
pub(crate) const CSS: &str = include_str!("page.css");

/// The end of a page.
pub(crate) const END: &str = "</body>\n</html>\n";

/// The beginning of a page, up to and with `<body>`, which gets these attributes. The policy keeps browsers from loading anything
/// from elsewhere, whatever the page may say.
pub(crate) fn begin(title: &str, styles: &[&str], attributes: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; img-src data:\">\n\
         <title>{}</title>\n<style>\n{}</style>\n</head>\n<body{attributes}>\n",
        escape(title),
        styles.concat()
    )
}

/// Names with their values, as text.
pub(crate) fn facts(facts: &[(&str, String)]) -> String {
    let mut list = "<dl>\n".to_owned();
    for (name, value) in facts {
        // Writing into a `String` cannot fail.
        let _ = writeln!(list, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    list + "</dl>\n"
}

/// The command line as it was typed, without the folder that the program is in.
pub(crate) fn command() -> String {
    let words = std::env::args().skip(1).map(|word| match word.contains(char::is_whitespace) {
        true => format!("'{word}'"),
        false => word,
    });
    std::iter::once("wgpu-attention".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
