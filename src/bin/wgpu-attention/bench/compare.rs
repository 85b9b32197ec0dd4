//! A run against an earlier one: what got faster or slower by more than noise.

use crate::bench::report::{FORMAT, Report, Row, VERSION};
use crate::fail::{Fail, Result};
use std::path::Path;
use wgpu_attention::measure::{Limit, noise};

/// One kernel on one problem, then and now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    pub problem: String,
    pub kernel: String,
    pub before_ms: f64,
    pub now_ms: f64,
    /// The part of the difference that may be noise, as a share of the earlier time.
    pub noise: f64,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Faster,
    Slower,
    Same,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Same => "same, within noise",
        }
    }
}

/// Differences below this are never called one: clocks, temperatures and neighbours move that much.
const LEAST: f64 = 0.03;

pub(crate) fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(path).map_err(|e| Fail::file(path, e))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| Fail::file(path, format_args!("is no JSON: {e}")))?;
    if value.get("format").and_then(|f| f.as_str()) != Some(FORMAT) {
        return Err(Fail::file(path, "was not written by `bench --json`"));
    }
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        other => {
            let found = other.map_or("none".to_owned(), |v| v.to_string());
            return Err(Fail::file(path, format_args!("has version {found}, but expected is {VERSION}")));
        }
    }
    serde_json::from_value(value).map_err(|e| Fail::file(path, e))
}

/// How far the machine itself has moved, as a share: the roof that limits a row, then and now.
fn drift(before: &Report, now: &Report, limit: Limit) -> f64 {
    let roof = |r: &Report| match limit {
        Limit::Exp2 => r.roofs.exp2,
        Limit::Memory => r.roofs.memory(),
        Limit::Matrix => r.roofs.matrix.unwrap_or(f64::NAN),
        _ => r.roofs.compute(),
    };
    (roof(now) / roof(before)).ln().abs().exp() - 1.0
}

/// The largest of all.
pub(crate) fn most_drift(before: &Report, now: &Report) -> f64 {
    [Limit::Compute, Limit::Exp2, Limit::Memory]
        .into_iter()
        .map(|l| drift(before, now, l))
        .fold(0.0, f64::max)
}

/// Rows that are in both, in the order of now.
pub(crate) fn changes(before: &Report, now: &Report) -> Vec<Change> {
    let drift = |row: &Row| drift(before, now, row.limit);
    now.rows
        .iter()
        .filter_map(|row| {
            Some(change(
                before.rows.iter().find(|old| old.is_like(row) && old.kernel == row.kernel)?,
                row,
                drift(row),
            ))
        })
        .collect()
}

/// Medians differ where their intervals (see `measure::noise`) do not overlap, by more than [`LEAST`] and by more than the machine's
/// own drift.
fn change(before: &Row, now: &Row, drift: f64) -> Change {
    let half = |row: &Row| row.spread.map_or(0.0, |s| noise([s.q1_ms, s.q3_ms], s.samples));
    let noise = ((half(before) + half(now)) / before.ms).max(LEAST).max(drift);
    let difference = now.ms / before.ms - 1.0;
    let verdict = match difference {
        d if d > noise => Verdict::Slower,
        // Symmetric: twice as fast is as far away as twice as slow.
        d if 1.0 / (1.0 + d) - 1.0 > noise => Verdict::Faster,
        _ => Verdict::Same,
    };
    Change {
        problem: now.problem(),
        kernel: now.kernel.clone(),
        before_ms: before.ms,
        now_ms: now.ms,
        noise,
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::row;
    use crate::bench::report::{Machine, Spread};
    use wgpu_attention::measure::{Clock, Roofs};

    fn report(rows: Vec<Row>, compute: f64) -> Report {
        Report {
            operations: Vec::new(),
            format: FORMAT.to_owned(),
            version: VERSION,
            command: String::new(),
            machine: Machine {
                adapter: String::new(),
                driver: String::new(),
                kind: String::new(),
                crate_version: String::new(),
                system: String::new(),
                clock: Clock::Wall,
                clock_because: String::new(),
            },
            roofs: Roofs {
                fma: compute,
                dot: 1.0,
                exp2: 1.0,
                copy: 1.0,
                read: 1.0,
                workgroup: 1.0,
                wide_copy: None,
                matrix: None,
            },
            rows,
            scaling: Vec::new(),
            left_out: Vec::new(),
            seconds: 0.0,
        }
    }

    fn verdict(before: f64, now: f64, spread: f64, compute: f64) -> Verdict {
        let wide = |mut row: Row| {
            row.spread = Some(Spread {
                min_ms: 0.0,
                q1_ms: row.ms * (1.0 - spread),
                q3_ms: row.ms * (1.0 + spread),
                samples: 9,
                calls: 1,
            });
            row
        };
        let before = report(vec![wide(row("tiled", 512, before)), row("gone", 512, 1.0)], 100.0);
        let now = report(vec![row("new", 512, 1.0), wide(row("tiled", 512, now))], compute);
        let changes = changes(&before, &now);
        assert_eq!(changes.len(), 1, "only what is in both");
        changes[0].verdict
    }

    #[test]
    fn only_what_is_beyond_noise_is_a_change() {
        assert_eq!(verdict(10.0, 8.0, 0.01, 100.0), Verdict::Faster);
        assert_eq!(verdict(10.0, 12.0, 0.01, 100.0), Verdict::Slower);
        assert_eq!(verdict(10.0, 10.2, 0.0, 100.0), Verdict::Same, "too little to say");
        // Intervals of 1.57 * 2 * 0.2 / 3 around both, a fifth each, overlap at a difference of 20 %.
        assert_eq!(verdict(10.0, 12.0, 0.2, 100.0), Verdict::Same, "within the spread");
        assert_eq!(verdict(10.0, 16.0, 0.2, 100.0), Verdict::Slower, "beyond the spread");
        assert_eq!(verdict(10.0, 12.0, 0.01, 70.0), Verdict::Same, "the machine itself got slower");
        assert_eq!(verdict(10.0, 8.0, 0.01, 140.0), Verdict::Same, "the machine itself got faster");
    }

    #[test]
    fn files_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for (text, word) in [
            ("{", "no JSON"),
            ("[]", "bench --json"),
            (r#"{"format": "wgpu-attention tuning"}"#, "bench --json"),
            (r#"{"format": "wgpu-attention bench", "version": 99}"#, "99"),
            (r#"{"format": "wgpu-attention bench", "version": 1}"#, "missing field"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let report = report(vec![row("tiled", 512, 1.0)], 1.0);
        std::fs::write(&path, serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), report);
    }
}
