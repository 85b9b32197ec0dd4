//! Writes loops out.
//!
//! A loop of the form `for (var r = 0u; r < ROWS; r++) { // unroll` is replaced by its body, once for each value of the
//! counter, with the counter replaced by a literal. The text stays plain WGSL that means the same with and without this
//! step; what the step buys is that arrays in registers are only ever indexed by literals. Left to
//! itself, a driver may keep such an array in memory, and the loop counters that wgpu adds against endless
//! loops keep drivers from unrolling at all.
//!
//! In the same way `if (BROADCAST) { // choose` is replaced by the branch that the switch takes: for branches that a device without
//! some feature must not see, and so that compilers need not read what is never run. `if (c == 0u) { // choose` and
//! `if (p * STRETCH + x < V_DIM4) { // choose` in loops that are written out, too, are decided there.

use std::collections::BTreeMap;

/// Constants of the header, by name; a switch is 0 or 1. (And names of a kernel's own that are known to be true.)
pub(crate) type Constants = BTreeMap<&'static str, u32>;

const MARK: &str = "// unroll";
const CHOICE: &str = "// choose";

/// Writes out every marked loop of `source` and takes the branch of every marked choice, inner ones too.
pub(crate) fn unroll(source: &str, constants: &Constants) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let mut out = String::with_capacity(source.len() * 2);
    expand(&lines, constants, &mut out);
    out
}

fn expand(lines: &[&str], constants: &Constants, out: &mut String) {
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if let Some(taken) = choice(line, constants) {
            let otherwise = at + closing_brace(&lines[at..]);
            let has_otherwise = lines[otherwise].trim() == "} else {";
            let end = if has_otherwise { otherwise + closing_brace(&lines[otherwise..]) } else { otherwise };
            match (taken, has_otherwise) {
                (true, _) => block(&lines[at + 1..otherwise], constants, out),
                (false, true) => block(&lines[otherwise + 1..end], constants, out),
                (false, false) => {}
            }
            at = end + 1;
            continue;
        }
        let Some((counter, count)) = header(line, constants) else {
            out.push_str(line);
            out.push('\n');
            at += 1;
            continue;
        };
        let end = at + closing_brace(&lines[at..]);
        for value in 0..count {
            let literal = format!("{value}u");
            // Without indentation, which would be a good part of thousands of lines.
            let body: Vec<String> = lines[at + 1..end]
                .iter()
                .map(|line| replace_word(line.trim_start(), counter, &literal))
                .collect();
            let body: Vec<&str> = body.iter().map(String::as_str).collect();
            block(&body, constants, out);
        }
        at = end + 1;
    }
}

/// A block, so that the names declared in the body stay apart.
fn block(body: &[&str], constants: &Constants, out: &mut String) {
    out.push_str("{\n");
    expand(body, constants, out);
    out.push_str("}\n");
}

/// Whether the switch is on (or off: `!LAZY`), or two numbers are the same or in order, if this line opens a marked choice.
fn choice(line: &str, constants: &Constants) -> Option<bool> {
    let rest = line.trim().strip_suffix(CHOICE)?.trim_end();
    let condition = rest.strip_prefix("if (")?.strip_suffix(") {")?;
    if let Some((left, right)) = condition.split_once(" == ") {
        return Some(number(left, constants)? == number(right, constants)?);
    }
    if let Some((left, right)) = condition.split_once(" < ") {
        return Some(number(left, constants)? < number(right, constants)?);
    }
    let (name, wanted) = match condition.strip_prefix('!') {
        Some(name) => (name, false),
        None => (condition, true),
    };
    constants.get(name).map(|&on| (on != 0) == wanted)
}

/// A sum of products of literals and constants.
fn number(text: &str, constants: &Constants) -> Option<u32> {
    let factor = |text: &str| literal(text).or_else(|| constants.get(text).copied());
    let mut sum = 0u32;
    for product in text.split(" + ") {
        let mut factors = product.split(" * ");
        sum = sum.checked_add(factors.try_fold(1u32, |all, next| all.checked_mul(factor(next)?))?)?;
    }
    Some(sum)
}

fn literal(text: &str) -> Option<u32> {
    text.strip_suffix('u')?.parse().ok()
}

/// The counter and the number of rounds, if this line opens a marked loop.
fn header<'a>(line: &'a str, constants: &Constants) -> Option<(&'a str, u32)> {
    let rest = line.trim();
    let rest = rest.strip_suffix(MARK)?.trim_end();
    let rest = rest.strip_prefix("for (var ")?;
    let (counter, rest) = rest.split_once(" = 0u; ")?;
    let rest = rest.strip_prefix(counter)?.strip_prefix(" < ")?;
    let (bound, rest) = rest.split_once("; ")?;
    if rest != format!("{counter}++) {{") {
        return None;
    }
    Some((counter, number(bound, constants)?))
}

/// The line that closes the brace which the first line opens last.
fn closing_brace(lines: &[&str]) -> usize {
    let mut depth = 1i32;
    for (n, line) in lines.iter().enumerate().skip(1) {
        let code = line.split("//").next().unwrap_or_default();
        for c in code.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return n;
            }
        }
    }
    lines.len().saturating_sub(1)
}

fn replace_word(line: &str, word: &str, by: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (code, comment) = match line.find("//") {
        Some(at) => line.split_at(at),
        None => (line, ""),
    };
    let mut out = String::with_capacity(line.len());
    let mut rest = code;
    while let Some(at) = rest.find(word) {
        // Directly behind another occurrence it is what that ended with.
        let before = rest[..at].chars().next_back().or_else(|| out.chars().next_back());
        let after = rest[at + word.len()..].chars().next();
        out.push_str(&rest[..at]);
        // A member (`p.r`) is not the counter.
        let stands_alone = !before.is_some_and(|c| is_word(c) || c == '.') && !after.is_some_and(is_word);
        out.push_str(if stands_alone { by } else { word });
        rest = &rest[at + word.len()..];
    }
    out.push_str(rest);
    out.push_str(comment);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_loops_are_written_out() {
        let source = "\
for (var r = 0u; r < ROWS; r++) { // unroll
    for (var c = 0u; c < 2u; c++) { // unroll
        o[r * 2u + c] += p.r + rows[c];
    }
}
";
        let text = unroll(source, &Constants::from([("ROWS", 2)]));
        for expected in [
            "o[0u * 2u + 0u] += p.r + rows[0u];",
            "o[0u * 2u + 1u] += p.r + rows[1u];",
            "o[1u * 2u + 0u] += p.r + rows[0u];",
            "o[1u * 2u + 1u] += p.r + rows[1u];",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(!text.contains("for"));
    }

    #[test]
    fn counters_are_whole_words() {
        let source = "for (var d = 0u; d < 1u; d++) { // unroll\n    Add(d, dd, x.d, _d, d + d);\n}\n";
        let text = unroll(source, &Constants::new());
        assert!(text.contains("Add(0u, dd, x.d, _d, 0u + 0u);"), "{text}");
    }

    #[test]
    fn choices_are_made() {
        let source = "\
if (A) { // choose
    if (x) {
        a();
    } else {
        b();
    }
} else {
    if (B) { // choose
        c();
    }
    d();
}
";
        let words = |a, b| {
            let text = unroll(source, &Constants::from([("A", a), ("B", b)]));
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(1, 0), "{ if (x) { a(); } else { b(); } }");
        assert_eq!(words(0, 0), "{ d(); }");
        assert_eq!(words(0, 1), "{ { c(); } d(); }");
        let off = |on| unroll("if (!A) { // choose\na();\n}\n", &Constants::from([("A", on)]));
        assert_eq!((off(1).as_str(), off(0).as_str()), ("", "{\na();\n}\n"));
        let first = "for (var c = 0u; c < 2u; c++) { // unroll\nif (c == 0u) { // choose\na(c);\n} else {\nb(c);\n}\n}\n";
        let text = unroll(first, &Constants::new());
        assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), "{ { a(0u); } } { { b(1u); } }");
        // Numbers are sums of products of literals and constants, counters among them.
        let stretches = "\
for (var p = 0u; p < 1u + ONE; p++) { // unroll
    for (var x = 0u; x < 2u; x++) { // unroll
        if (p * 2u + x < THREE) { // choose
            a(p * 2u + x);
        }
    }
    if (0u < ONE * p) { // choose
        b();
    }
}
";
        let text = unroll(stretches, &Constants::from([("ONE", 1), ("THREE", 3)]));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words,
            "{ { { a(0u * 2u + 0u); } } { { a(0u * 2u + 1u); } } } { { { a(1u * 2u + 0u); } } { } { b(); } }"
        );
        // What is no number, or too large a one, is left to the compiler.
        for unknown in ["if (p * 2u < 3u) { // choose\n}\n", "if (65536u * 65536u < 3u) { // choose\n}\n"] {
            assert_eq!(unroll(unknown, &Constants::new()), unknown);
        }
        // A name that is no switch, too.
        assert_eq!(unroll(source, &Constants::new()), source);
    }

    #[test]
    fn other_loops_and_the_mark_in_passing_are_left_alone() {
        let source = "for (var r = 0u; r < ROWS; r++) {\n}\n// see // unroll\n";
        assert_eq!(unroll(source, &Constants::from([("ROWS", 2)])), source);
    }
}
