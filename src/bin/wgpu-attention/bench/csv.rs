//! Rows as CSV (RFC 4180), each with command and machine, so that files can be put together.

use super::report::{OperationRow, Report, Row};
use super::text;
use std::fmt::Write;

type Column = (&'static str, fn(&Report, &Row) -> String);

const COLUMNS: [Column; 31] = [
    ("name", |_, r| r.name.clone()),
    ("batch", |_, r| r.shape[0].to_string()),
    ("q_heads", |_, r| r.shape[1].to_string()),
    ("kv_heads", |_, r| r.shape[2].to_string()),
    ("seq_q", |_, r| r.shape[3].to_string()),
    ("seq_k", |_, r| r.shape[4].to_string()),
    ("head_dim", |_, r| r.shape[5].to_string()),
    ("causal", |_, r| u8::from(r.causal).to_string()),
    ("window", |_, r| option(r.window)),
    ("softcap", |_, r| option(r.softcap)),
    ("dtype", |_, r| r.dtype.clone()),
    ("kernel", |_, r| r.kernel.clone()),
    ("variant", |_, r| r.variant.clone()),
    ("planned", |_, r| u8::from(r.planned).to_string()),
    ("ms", |_, r| r.ms.to_string()),
    ("min_ms", |_, r| option(r.spread.map(|s| s.min_ms))),
    ("q1_ms", |_, r| option(r.spread.map(|s| s.q1_ms))),
    ("q3_ms", |_, r| option(r.spread.map(|s| s.q3_ms))),
    ("samples", |_, r| option(r.spread.map(|s| s.samples))),
    ("gflops", |_, r| r.gflops.to_string()),
    ("gb_s", |_, r| r.gb_s.to_string()),
    ("share", |_, r| r.share.to_string()),
    ("limit", |_, r| r.limit.to_string()),
    ("first_call_ms", |_, r| option(r.first_call_ms)),
    ("encode_us", |_, r| option(r.encode_us)),
    ("clock", |report, _| report.machine.clock.to_string()),
    ("adapter", |report, _| report.machine.adapter.clone()),
    ("driver", |report, _| report.machine.driver.clone()),
    ("crate_version", |report, _| report.machine.crate_version.clone()),
    ("system", |report, _| report.machine.system.clone()),
    ("command", |report, _| report.command.clone()),
];

/// What only operations have. Their other figures stand in the columns above that mean the same.
const OPERATIONS: [text::Column<OperationRow>; 5] = [
    ("operation", |r| r.operation.clone()),
    ("rows", |r| r.rows.to_string()),
    ("elements", |r| r.len.to_string()),
    ("with_token_ms", |r| option(r.with_token_ms)),
    ("on_processor_ms", |r| option(r.on_processor_ms)),
];

/// An operation as a row of the attention's columns: of its shape it has none.
fn as_row(operation: &OperationRow) -> Row {
    let (ms, gb_s, share, limit) = (operation.ms, operation.gb_s, operation.share, operation.limit);
    let problem = wgpu_attention::Problem::new(wgpu_attention::Shape::self_attention(0, 0, 0, 0));
    Row { ms, gb_s, share, limit, spread: Some(operation.spread), ..Row::of("", &problem) }
}

fn option(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |v| v.to_string())
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// Writing into a `String` cannot fail.
pub(super) fn text(report: &Report) -> String {
    let heads: Vec<&str> = COLUMNS.iter().map(|c| c.0).chain(OPERATIONS.iter().map(|c| c.0)).collect();
    let mut text = heads.join(",") + "\n";
    let mut line = |row: &Row, operation: Option<&OperationRow>| {
        let attention = COLUMNS.iter().map(|c| quoted(&c.1(report, row)));
        let own = OPERATIONS.iter().map(|c| operation.map_or(String::new(), |o| quoted(&c.1(o))));
        let _ = writeln!(text, "{}", attention.chain(own).collect::<Vec<_>>().join(","));
    };
    report.rows.iter().for_each(|row| line(row, None));
    report.operations.iter().for_each(|operation| line(&as_row(operation), Some(operation)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"x\""), "\"say \"\"x\"\"\"");
    }
}
