//! The table for the terminal.

use super::compare::{self, Change};
use super::report::{OperationRow, Report, Row, Spread};
use crate::fail::Result;
use std::io::Write;

/// Roofs in words: name, value, unit.
pub(super) fn roofs(report: &Report) -> Vec<(&'static str, f64, &'static str)> {
    let r = &report.roofs;
    let mut roofs = vec![
        ("fma", r.fma / 1e9, "GFLOP/s"),
        ("dot", r.dot / 1e9, "GFLOP/s"),
        ("exp2", r.exp2 / 1e9, "G/s"),
        ("copy", r.copy / 1e9, "GB/s"),
        ("read", r.read / 1e9, "GB/s"),
        ("workgroup memory", r.workgroup / 1e9, "GB/s"),
    ];
    roofs.extend(r.wide_copy.map(|copy| ("copy in 64-bit words", copy / 1e9, "GB/s")));
    roofs.extend(r.matrix.map(|matrix| ("matrix", matrix / 1e9, "GFLOP/s")));
    roofs
}

pub(super) fn print(report: &Report, out: &mut impl Write) -> Result<()> {
    let m = &report.machine;
    writeln!(out, "adapter   {} ({})", m.adapter, m.kind)?;
    writeln!(out, "driver    {}", m.driver)?;
    writeln!(out, "program   wgpu-attention {} on {}", m.crate_version, m.system)?;
    writeln!(out, "command   {}", report.command)?;
    writeln!(out, "clock     {}: {}", m.clock, m.clock_because)?;
    let roofs: Vec<String> =
        roofs(report).iter().map(|(name, value, unit)| format!("{name} {value:.1} {unit}")).collect();
    writeln!(out, "ceilings  {}\n", roofs.join(", "))?;
    if !report.rows.is_empty() {
        table(&report.rows, &COLUMNS, out)?;
    }
    if !report.operations.is_empty() {
        table(&report.operations, &OPERATIONS, out)?;
    }
    if !report.scaling.is_empty() {
        writeln!(out, "\ntime grows with the length S as S^x")?;
        for s in &report.scaling {
            let from = s.lengths.iter().min().copied().unwrap_or(0);
            let to = s.lengths.iter().max().copied().unwrap_or(0);
            writeln!(out, "  x = {:.2}  {} on {}, S from {from} to {to}", s.exponent, s.kernel, s.problem)?;
        }
    }
    if !report.left_out.is_empty() {
        writeln!(out, "\nleft out")?;
        for l in &report.left_out {
            writeln!(out, "  {} on {}: {}", l.kernel, l.problem, l.because)?;
        }
    }
    writeln!(
        out,
        "\n{:.0} s in all. * is what the planner takes; docs/benchmarking.md says what is counted.",
        report.seconds
    )?;
    Ok(())
}

/// Title, and the text of a row.
pub(super) type Column<R> = (&'static str, fn(&R) -> String);

fn spread(s: Spread, ms: f64) -> String {
    format!("{:.1} %", (s.q3_ms - s.q1_ms) / ms * 100.0)
}

pub(super) const OPERATIONS: [Column<OperationRow>; 10] = [
    ("rows x elements", OperationRow::problem),
    ("operation", |r| r.operation.clone()),
    ("ms", |r| digits(r.ms)),
    ("spread", |r| spread(r.spread, r.ms)),
    ("n", |r| r.spread.samples.to_string()),
    ("GB/s", |r| digits(r.gb_s)),
    ("of roof", |r| format!("{:.1} %", r.share * 100.0)),
    ("roof", |r| r.limit.to_string()),
    ("with tokens read, ms", |r| r.with_token_ms.map_or(String::new(), digits)),
    ("logits read, on the processor, ms", |r| r.on_processor_ms.map_or(String::new(), digits)),
];

pub(super) const COLUMNS: [Column<Row>; 11] = [
    ("problem (BxHxSqxSkxD)", |r| {
        let problem = r.problem();
        if r.name.is_empty() { problem } else { format!("{}: {problem}", r.name) }
    }),
    ("kernel", |r| format!("{}{}", r.kernel, if r.planned { " *" } else { "" })),
    ("ms", |r| digits(r.ms)),
    ("spread", |r| r.spread.map_or(String::new(), |s| spread(s, r.ms))),
    ("n", |r| r.spread.map_or(String::new(), |s| s.samples.to_string())),
    ("GFLOP/s", |r| digits(r.gflops)),
    ("GB/s", |r| digits(r.gb_s)),
    ("of roof", |r| format!("{:.1} %", r.share * 100.0)),
    ("roof", |r| r.limit.to_string()),
    ("first ms", |r| r.first_call_ms.map_or(String::new(), |c| format!("{c:.0}"))),
    ("encode us", |r| r.encode_us.map_or(String::new(), |e| format!("{e:.1}"))),
];

/// Three digits.
pub(super) fn digits(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 1.0 => format!("{x:.2}"),
        _ => format!("{x:.4}"),
    }
}

fn table<R>(rows: &[R], columns: &[Column<R>], out: &mut impl Write) -> Result<()> {
    let head: Vec<String> = columns.iter().map(|c| c.0.to_owned()).collect();
    let lines: Vec<Vec<String>> = std::iter::once(head)
        .chain(rows.iter().map(|row| columns.iter().map(|c| c.1(row)).collect()))
        .collect();
    let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(n, (cell, width))| {
            // Words to the left, numbers to the right.
            if n < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

pub(super) fn print_changes(
    before: &Report,
    now: &Report,
    changes: &[Change],
    out: &mut impl Write,
) -> Result<()> {
    writeln!(out, "\nagainst {}", before.command)?;
    let (then, today) = (&before.machine, &now.machine);
    if (&then.adapter, &then.driver) != (&today.adapter, &today.driver) {
        writeln!(out, "  on another machine: {}, {}", then.adapter, then.driver)?;
    }
    if then.clock != today.clock {
        writeln!(out, "  by another clock: {}", then.clock)?;
    }
    writeln!(out, "  the ceilings differ by up to {:.1} %", compare::most_drift(before, now) * 100.0)?;
    for c in changes {
        writeln!(
            out,
            "  {} on {}: {} -> {} ms, {:.2} times as fast: {} (noise up to {:.0} %)",
            c.kernel,
            c.problem,
            digits(c.before_ms),
            digits(c.now_ms),
            c.before_ms / c.now_ms,
            c.verdict.name(),
            c.noise * 100.0
        )?;
    }
    if changes.is_empty() {
        writeln!(out, "  nothing is in both")?;
    }
    Ok(())
}
