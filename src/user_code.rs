//! The user's own score and mask functions, in WGSL, as FlexAttention has them in Python.
//!
//! The text is parsed and type-checked on its own, before it meets a kernel: it can use nothing but WGSL and the two functions
//! that read its parameters, and errors point into it. Then what it declares is given a prefix of its own, so that
//! no name of it can meet one of the kernel's or of the other function's.

#[cfg(feature = "user-code")]
use crate::error::{Error, Result};
use std::sync::Arc;

/// A function of the user's that is compiled into the kernel, as FlexAttention has them (arXiv 2412.05496).
///
/// The text is part of the compiled variant; the numbers that it reads are not. Where there is user code, the float64 reference asks
/// for twins in Rust, [`Mods`](crate::reference::Mods). Loops in it are not counted by the planner
/// ([`Caps::max_loop_iterations`](crate::Caps::max_loop_iterations)).
///
/// Made by `UserCode::score_mod` or `UserCode::mask_mod` (feature `user-code`). The text may hold other functions, constants and
/// structs too. It reads numbers that the app may change from call to call with `param_f32(n)` and
/// `param_u32(n)`, from the table `user` (see [`Problem::user_params`](crate::Problem::user_params)); a number beyond the last is 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UserCode {
    text: Arc<str>,
    original: Arc<str>,
    /// Whether a mask function reads its batch and its head.
    mask_uses: [bool; 2],
}

impl UserCode {
    /// The text as it was given.
    pub fn wgsl(&self) -> &str {
        &self.original
    }

    /// The code as it goes into the kernel.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether a mask function reads its batch and its head: where it does not, all of them have one mask.
    pub(crate) fn mask_uses(&self) -> [bool; 2] {
        self.mask_uses
    }

    /// A short name for labels: two codes of different text have different ones, as good as always.
    pub(crate) fn tag(&self) -> String {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        format!("{:08x}", hasher.finish() as u32)
    }
}

/// What the text is checked against in place of the kernel: on one line, so that the text's lines count from the next one.
#[cfg(feature = "user-code")]
const PRELUDE: &str =
    "fn param_f32(n: u32) -> f32 { return f32(n); } fn param_u32(n: u32) -> u32 { return n; }";

#[cfg(feature = "user-code")]
impl UserCode {
    /// A score function: `fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32`.
    ///
    /// It is given the score after scale, temperature and soft cap and before bias and masks, and returns the new one, which
    /// is kept within +-1e38. It may be called for hidden pairs too; what it returns for them is dropped. Indices are those of the
    /// whole problem, and within it.
    ///
    /// # Errors
    /// [`Error::UserCode`] with the line and column in the text.
    ///
    /// ```
    /// use wgpu_attention::UserCode;
    /// let relative = UserCode::score_mod(
    ///     "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32 {
    ///          return score - param_f32(0u) * abs(f32(q_index) - f32(k_index));
    ///      }",
    /// )?;
    /// # Ok::<(), wgpu_attention::Error>(())
    /// ```
    pub fn score_mod(text: &str) -> Result<Self> {
        const SIGNATURE: &str =
            "fn score_mod(score: f32, batch: u32, head: u32, q_index: u32, k_index: u32) -> f32";
        Self::new("score_mod", text, SIGNATURE, "sbbbb>s")
    }

    /// A mask function: `fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool`, true where the query attends to
    /// the key. It is combined with all other masks by AND.
    ///
    /// # Errors
    /// [`Error::UserCode`] with the line and column in the text.
    pub fn mask_mod(text: &str) -> Result<Self> {
        const SIGNATURE: &str = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool";
        Self::new("mask_mod", text, SIGNATURE, "bbbb>t")
    }

    fn new(which: &'static str, text: &str, signature: &'static str, types: &str) -> Result<Self> {
        let refuse = |message: String| Error::UserCode { which, line: 1, column: 1, message };
        if let Some((at, message)) = too_deep(text) {
            let (line, column) = place(text, at);
            return Err(Error::UserCode { which, line, column, message });
        }
        let (module, info) = parse(which, text)?;
        let found = module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(which));
        let Some((_, function)) = found else {
            return Err(refuse(format!("it has no `{signature}`")));
        };
        let code = |ty: naga::Handle<naga::Type>| match module.types[ty].inner {
            naga::TypeInner::Scalar(naga::Scalar::F32) => 's',
            naga::TypeInner::Scalar(naga::Scalar::U32) => 'b',
            naga::TypeInner::Scalar(naga::Scalar::BOOL) => 't',
            _ => '?',
        };
        let mut got: String = function.arguments.iter().map(|a| code(a.ty)).collect();
        got.push('>');
        got.extend(function.result.iter().map(|r| code(r.ty)));
        if got != types {
            return Err(refuse(format!("its {which} must be `{signature}`")));
        }
        for (handle, _) in module.functions.iter() {
            let function = &info[handle];
            if !function.available_stages.contains(naga::valid::ShaderStages::COMPUTE)
                || !function.uniformity.requirements.is_empty()
            {
                return Err(refuse(
                    "it calls a built-in function that works only in fragment shaders or where all threads come by"
                        .to_owned(),
                ));
            }
        }
        for (what, is_there) in [
            ("an entry point", !module.entry_points.is_empty()),
            ("a variable at module scope", !module.global_variables.is_empty()),
            ("an override", !module.overrides.is_empty()),
        ] {
            if is_there {
                return Err(refuse(format!(
                    "it declares {what}, but may hold only functions, constants and types"
                )));
            }
        }
        let renamed = rename(which, &with_initial_values(text));
        // Both keep the meaning; where they did not (a member with the name of a function), say so now.
        parse(which, &renamed)
            .map_err(|e| refuse(format!("a name at module scope is also the name of a member ({e})")))?;
        let handle = module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(which)).map(|f| f.0);
        let reads = |argument: u32| {
            let read = |handle: naga::Handle<naga::Function>| {
                let is_read = |(at, expression): (naga::Handle<naga::Expression>, &naga::Expression)| {
                    *expression == naga::Expression::FunctionArgument(argument)
                        && info[handle][at].ref_count > 0
                };
                module.functions[handle].expressions.iter().any(is_read)
            };
            handle.is_none_or(read)
        };
        let mask_uses = [reads(0), reads(1)];
        Ok(UserCode { text: renamed.into(), original: text.into(), mask_uses })
    }
}

#[cfg(feature = "user-code")]
fn parse(which: &'static str, text: &str) -> Result<(naga::Module, naga::valid::ModuleInfo)> {
    let source = format!("{PRELUDE}\n{text}");
    let error = |location: Option<naga::SourceLocation>, message: String| {
        let (line, column) =
            location.map_or((1, 1), |l| (l.line_number.saturating_sub(1).max(1), l.line_position));
        Error::UserCode { which, line, column, message }
    };
    let module = naga::front::wgsl::parse_str(&source)
        .map_err(|e| error(e.location(&source), e.message().to_owned()))?;
    let mut validator =
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::empty());
    match validator.validate(&module) {
        Ok(info) => Ok((module, info)),
        Err(e) => {
            let inner: &dyn std::error::Error = e.as_inner();
            let message = std::iter::successors(Some(inner), |e| e.source()).map(ToString::to_string);
            let message = message.collect::<Vec<_>>().join(": ");
            Err(error(e.location(&source), message))
        }
    }
}

/// Brackets within brackets, operators in one statement, and uses of `else`: compilers of WGSL, naga among them, go one call deeper for
/// each, until their stack is full.
#[cfg(feature = "user-code")]
const MAX_NESTED: usize = 100;
#[cfg(feature = "user-code")]
const MAX_OPERATORS: usize = 500;
#[cfg(feature = "user-code")]
const MAX_ELSE: usize = 200;

/// Where a text goes deeper than that, and what is wrong there.
#[cfg(feature = "user-code")]
fn too_deep(text: &str) -> Option<(usize, String)> {
    let (mut nested, mut operators, mut elses, mut at) = (0usize, 0, 0, 0);
    for token in tokens(text) {
        match token {
            "(" | "[" | "{" => nested += 1,
            ")" | "]" | "}" => nested = nested.saturating_sub(1),
            "else" => elses += 1,
            "+" | "-" | "*" | "/" | "%" | "!" | "~" | "&" | "|" | "^" | "<" | ">" | "=" => operators += 1,
            _ => {}
        }
        if matches!(token, ";" | "{" | "}") {
            operators = 0;
        }
        let message = if nested > MAX_NESTED {
            format!(
                "more than {MAX_NESTED} brackets are open here, one within the other: name a part of it with `let`"
            )
        } else if operators > MAX_OPERATORS {
            format!("a statement has more than {MAX_OPERATORS} operators: name a part of it with `let`")
        } else if elses > MAX_ELSE {
            format!("the text has more than {MAX_ELSE} times `else`: a `switch` is shorter")
        } else {
            at += token.len();
            continue;
        };
        return Some((at, message));
    }
    None
}

/// Line and column of a byte, from 1, as naga counts them: lines by line feeds, columns in bytes.
#[cfg(feature = "user-code")]
fn place(text: &str, at: usize) -> (u32, u32) {
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = at - before.rfind('\n').map_or(0, |end| end + 1) + 1;
    let number = |n| u32::try_from(n).unwrap_or(u32::MAX);
    (number(line), number(column))
}

/// Writes WGSL's initial value, zero, out where a `var` has none. Browsers made from Chromium forget it on Vulkan: there such a
/// variable in a loop keeps its value from one round to the next.
#[cfg(feature = "user-code")]
fn with_initial_values(text: &str) -> String {
    let tokens = tokens(text);
    let mut out = String::with_capacity(text.len() + 64);
    // Of the declaration that is being copied: its type, once there was a colon.
    let mut declaration: Option<Option<String>> = None;
    let mut depth = 0i32;
    for token in tokens {
        match (token, &mut declaration) {
            ("var", _) => (declaration, depth) = (Some(None), 0),
            (";", Some(Some(of_type))) => {
                out.push_str(" = ");
                out.push_str(of_type);
                out.push_str("()");
                declaration = None;
            }
            (";", _) => declaration = None,
            ("=", Some(_)) if depth == 0 => declaration = None,
            (":", Some(of_type @ None)) => *of_type = Some(String::new()),
            (_, Some(Some(of_type))) if !is_space(token) => {
                depth += i32::from(token == "(") - i32::from(token == ")");
                of_type.push_str(token);
            }
            _ => {}
        }
        out.push_str(token);
    }
    out
}

/// Gives everything that a text declares at module scope a prefix: `user_` the function that the kernel calls, and
/// `user_in_score_mod_` or `user_in_mask_mod_` all else.
#[cfg(feature = "user-code")]
fn rename(which: &str, text: &str) -> String {
    let tokens = tokens(text);
    let mut depth = 0i32;
    let mut declared = std::collections::BTreeSet::new();
    let mut before = "";
    for &token in &tokens {
        match token {
            "{" | "(" => depth += 1,
            "}" | ")" => depth -= 1,
            _ if depth == 0 && !is_space(token) && matches!(before, "fn" | "const" | "struct" | "alias") => {
                declared.insert(token);
            }
            _ => {}
        }
        if !is_space(token) {
            before = token;
        }
    }
    let mut out = String::with_capacity(text.len() + 64);
    let mut before = "";
    for &token in &tokens {
        if declared.contains(token) && before != "." {
            out.push_str("user_");
            if token != which {
                out.push_str("in_");
                out.push_str(which);
                out.push('_');
            }
        }
        out.push_str(token);
        if !is_space(token) {
            before = token;
        }
    }
    out
}

#[cfg(feature = "user-code")]
fn is_space(token: &str) -> bool {
    token.starts_with("//") || token.starts_with("/*") || token.chars().all(is_blank)
}

/// Splits WGSL into words, comments, white space and single characters; joined, they are the text again.
#[cfg(feature = "user-code")]
fn tokens(text: &str) -> Vec<&str> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find(ends_line).unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            comment(rest)
        } else if word(first) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else if is_blank(first) {
            rest.find(|c| !is_blank(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(len);
        tokens.push(token);
        rest = after;
    }
    tokens
}

/// WGSL's white space: more than Unicode's, which lacks the two marks of direction.
#[cfg(feature = "user-code")]
fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200e}' | '\u{200f}')
}

/// WGSL's line breaks, at which a comment ends.
#[cfg(feature = "user-code")]
fn ends_line(c: char) -> bool {
    matches!(c, '\u{a}'..='\u{d}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Length of a block comment, which may hold others.
#[cfg(feature = "user-code")]
fn comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

#[cfg(all(test, feature = "user-code"))]
mod tests {
    use super::*;

    const HEAD: &str = "fn mask_mod(batch: u32, head: u32, q_index: u32, k_index: u32) -> bool";

    #[test]
    fn names_at_module_scope_get_a_prefix_and_others_do_not() {
        let text = format!(
            "// near\nconst near = 3u; /* near */ struct P {{ far: u32 }}\nfn helper(p: P) -> bool {{ return p.far < near; }}\n{HEAD} {{ let tile = P(k_index); return helper(tile); }}"
        );
        let code = UserCode::mask_mod(&text).unwrap();
        for expected in [
            "const user_in_mask_mod_near",
            "user_in_mask_mod_helper(p: user_in_mask_mod_P)",
            "p.far < user_in_mask_mod_near",
            "fn user_mask_mod",
            "// near",
            "/* near */",
        ] {
            assert!(code.text().contains(expected), "{expected} is not in\n{}", code.text());
        }
        assert!(code.text().contains("let tile"));
    }

    #[test]
    fn variables_get_the_initial_value_that_they_have() {
        let text = format!(
            "{HEAD} {{\n    for (var n: u32; n < 3u; n++) {{\n        var /* a */ sum: array<vec2<f32>, 3> // b\n;\n        \
             var other: f32 = 1.0; var third = 2u;\n        if (sum[n].x > other + f32(third)) {{ return false; }}\n    }}\n    \
             var<function> last: bool;\n    return last;\n}}"
        );
        let code = UserCode::mask_mod(&text).unwrap();
        for expected in [
            "for (var n: u32 = u32(); n < 3u",
            "// b\n = array<vec2<f32>,3>();",
            "var other: f32 = 1.0; var third = 2u;",
            "var<function> last: bool = bool();",
        ] {
            assert!(code.text().contains(expected), "{expected} is not in\n{}", code.text());
        }
    }

    #[test]
    fn errors_point_into_the_text() {
        let text = format!("{HEAD} {{\n    return q_index + pool;\n}}");
        let Err(Error::UserCode { which, line, column, message }) = UserCode::mask_mod(&text) else {
            panic!("accepted");
        };
        assert_eq!((which, line, column), ("mask_mod", 2, 22), "{message}");
        assert!(message.contains("pool"), "{message}");
    }

    /// naga itself would say of the first that a limit of its own was reached, and not where.
    #[test]
    fn what_is_too_deep_is_told_with_its_place() {
        let refused = |body: &str| match UserCode::mask_mod(&format!("{HEAD} {{\n{body}\n}}")) {
            Err(Error::UserCode { line, column, message, .. }) => (line, column, message),
            other => panic!("{body}: {other:?}"),
        };
        let nested =
            |depth| format!("    return {}q_index{} > k_index;", "(".repeat(depth), ")".repeat(depth));
        let (line, column, message) = refused(&nested(150));
        // One is open already.
        assert_eq!((line, column), (2, 12 + MAX_NESTED as u32 - 1), "{message}");
        assert!(message.contains("100 brackets are open here") && message.contains("`let`"), "{message}");
        assert_eq!(refused(&nested(MAX_NESTED)).0, 2);
        UserCode::mask_mod(&format!("{HEAD} {{\n{}\n}}", nested(MAX_NESTED - 1))).unwrap();

        let (line, column, message) =
            refused(&format!("    let a = 1u;\n    return 0u{} > k_index;", " + 1u".repeat(600)));
        assert_eq!((line, column), (3, 15 + 5 * MAX_OPERATORS as u32), "{message}");
        assert!(message.contains("500 operators"), "{message}");

        let (line, _, message) = refused(&format!(
            "    if q_index == 0u {{ return true; }}{}\n    return false;",
            "\n    else if q_index == k_index { return true; }".repeat(300)
        ));
        assert_eq!(line, 2 + MAX_ELSE as u32 + 1, "{message}");
        assert!(message.contains("200 times `else`"), "{message}");
    }

    #[test]
    fn what_is_not_a_function_of_indices_is_refused() {
        for text in [
            String::new(),
            "fn mask_mod() -> bool { return true; }".to_owned(),
            format!(
                "@group(0) @binding(1) var<storage, read> q: array<f32>; {HEAD} {{ return q[0] > 0.0; }}"
            ),
            format!("var<private> x: u32; {HEAD} {{ return x > 0u; }}"),
            format!("override x: u32 = 1u; {HEAD} {{ return x > 0u; }}"),
            format!("enable f16; {HEAD} {{ return true; }}"),
            format!("{HEAD} {{ return 1u; }}"),
            format!("{HEAD} {{ return true; }} @compute @workgroup_size(1) fn main() {{}}"),
        ] {
            assert!(matches!(UserCode::mask_mod(&text), Err(Error::UserCode { .. })), "{text}");
        }
    }
}
