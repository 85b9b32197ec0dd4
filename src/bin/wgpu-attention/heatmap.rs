//! Attention probabilities as pictures.

use crate::fail::{Fail, Result};
use std::fmt::Write;
use wgpu_attention::{Inputs, Problem, ScoreStage, Sequences, reference};

/// The probabilities of one head: rows are queries, columns keys. `None` where a query does not see a key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heatmap {
    pub rows: usize,
    pub columns: usize,
    pub p: Vec<Option<f64>>,
}

impl Heatmap {
    /// p = exp(score - lse), the score in float64 on the CPU. The lse is the caller's: with one from the GPU this is what the
    /// GPU's softmax came to, and its rows sum to 1 only if that lse is right.
    pub(crate) fn new(
        problem: &Problem,
        inputs: &Inputs<'_>,
        [batch, head]: [u32; 2],
        lse: impl Fn(usize) -> f64,
    ) -> Result<Self> {
        let sequences = Sequences::new(problem, &inputs.tables);
        let (rows, columns) = (sequences.queries(batch), sequences.keys(batch));
        let mut p = Vec::new();
        for i in 0..rows {
            let row = sequences.row_number([batch, head, i]);
            let scores = reference::scores(problem, inputs, [batch, head, i])?;
            p.extend(scores.into_iter().map(|score| score.map(|score| (score - lse(row)).exp())));
        }
        Ok(Heatmap { rows: rows as usize, columns: columns as usize, p })
    }

    /// The probabilities in float64.
    pub(crate) fn of_truth(problem: &Problem, inputs: &Inputs<'_>, [batch, head]: [u32; 2]) -> Result<Self> {
        let sequences = Sequences::new(problem, &inputs.tables);
        let (rows, columns) = (sequences.queries(batch), sequences.keys(batch));
        let mut p = Vec::new();
        for i in 0..rows {
            let row = [batch, head, i];
            let visible = reference::scores(problem, inputs, row)?;
            let probs = reference::scores_at(problem, inputs, ScoreStage::Probs, row)?;
            p.extend(visible.into_iter().zip(probs).map(|(visible, p)| visible.map(|_| p.value)));
        }
        Ok(Heatmap { rows: rows as usize, columns: columns as usize, p })
    }

    /// An indexed PNG of `cell` x `cell` pixels for each pair; keys that are not visible are transparent.
    pub(crate) fn png(&self, cell: usize) -> Result<Vec<u8>> {
        let fail = |e: &dyn std::fmt::Display| Fail::usage(format!("cannot make a PNG: {e}"));
        let sizes =
            [self.columns, self.rows].map(|n| n.checked_mul(cell).and_then(|n| u32::try_from(n).ok()));
        let ([Some(width), Some(height)], false) = (sizes, self.p.is_empty()) else {
            return Err(fail(&format_args!(
                "{} queries on {} keys make no picture",
                self.rows, self.columns
            )));
        };
        let mut pixels = Vec::with_capacity(self.p.len() * cell * cell);
        for row in self.p.chunks(self.columns) {
            let line: Vec<u8> = row.iter().flat_map(|&p| std::iter::repeat_n(level(p), cell)).collect();
            (0..cell).for_each(|_| pixels.extend_from_slice(&line));
        }
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_palette(palette().concat());
        encoder.set_trns(vec![0u8]);
        let mut writer = encoder.write_header().map_err(|e| fail(&e))?;
        writer.write_image_data(&pixels).map_err(|e| fail(&e))?;
        writer.finish().map_err(|e| fail(&e))?;
        Ok(bytes)
    }

    /// The PNG as text for a `src` attribute.
    pub(crate) fn data_uri(&self) -> Result<String> {
        Ok(format!("data:image/png;base64,{}", base64(&self.png(1)?)))
    }

    /// A self-contained SVG with axes and legend, readable in light and dark.
    pub(crate) fn svg(&self, title: &str, about: &str) -> Result<String> {
        let unit = 640.0 / self.columns.max(self.rows).max(1) as f64;
        let (w, h) = (self.columns as f64 * unit, self.rows as f64 * unit);
        let (left, top) = (56.0, 56.0);
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">
<title>{title}</title>
<style>text{{fill:#1b1b1b}}.frame{{fill:none;stroke:#888}}@media(prefers-color-scheme:dark){{text{{fill:#eee}}}}</style>
<text x="{left}" y="22" font-size="15">{title}</text>
<text x="{left}" y="42">{about}</text>
<image x="{left}" y="{top}" width="{w}" height="{h}" preserveAspectRatio="none" style="image-rendering:pixelated" href="{}"/>
<rect class="frame" x="{left}" y="{top}" width="{w}" height="{h}"/>
"#,
            left + w.max(420.0) + 20.0,
            top + h + 84.0,
            self.data_uri()?,
            title = escape(title),
            about = escape(about),
        );
        for j in ticks(self.columns) {
            let x = left + (j as f64 + 0.5) * unit;
            let _ = writeln!(
                svg,
                r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{j}</text>"#,
                top + h + 16.0
            );
        }
        for i in ticks(self.rows) {
            let y = top + (i as f64 + 0.5) * unit + 4.0;
            let _ = writeln!(svg, r#"<text x="{:.1}" y="{y:.1}" text-anchor="end">{i}</text>"#, left - 6.0);
        }
        let below = top + h + 34.0;
        let _ = writeln!(svg, r#"<text x="{left}" y="{:.1}">rows: queries, columns: keys</text>"#, below);
        let stops = (0..=8).map(|n| {
            let p = f64::from(n) / 8.0;
            format!(r#"<stop offset="{p}" stop-color="{}"/>"#, hex(colour(p)))
        });
        let _ = writeln!(svg, r#"<linearGradient id="p">{}</linearGradient>"#, stops.collect::<String>());
        let _ = writeln!(
            svg,
            r#"<rect class="frame" style="fill:url(#p)" x="{left}" y="{:.1}" width="400" height="12"/>"#,
            below + 8.0
        );
        for p in LEGEND {
            let x = left + 400.0 * p.sqrt();
            let _ =
                writeln!(svg, r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{p}</text>"#, below + 34.0);
        }
        svg.push_str("</svg>\n");
        Ok(svg)
    }
}

/// Probabilities that the legend names.
pub(crate) const LEGEND: [f64; 6] = [0.0, 0.01, 0.1, 0.25, 0.5, 1.0];

/// Palette index: 0 for what is not visible, else the square root of p, so that faint attention shows.
fn level(p: Option<f64>) -> u8 {
    match p {
        // NaN becomes 1.
        Some(p) => 1 + (p.clamp(0.0, 1.0).sqrt() * 254.0).round() as u8,
        None => 0,
    }
}

/// The colours of the indices.
pub(crate) fn palette() -> Vec<[u8; 3]> {
    let colours = (0..255).map(|n| colour(f64::from(n) / 254.0));
    std::iter::once([128; 3]).chain(colours).collect()
}

/// Viridis (Smith and van der Walt 2015, CC0) at nine places, with straight lines between: even steps for the eye, also
/// in grey and for the colour-blind.
pub(crate) fn colour(x: f64) -> [u8; 3] {
    const STOPS: [[f64; 3]; 9] = [
        [68.0, 1.0, 84.0],
        [71.0, 44.0, 122.0],
        [59.0, 81.0, 139.0],
        [44.0, 113.0, 142.0],
        [33.0, 144.0, 141.0],
        [39.0, 173.0, 129.0],
        [92.0, 200.0, 99.0],
        [170.0, 220.0, 50.0],
        [253.0, 231.0, 37.0],
    ];
    let at = x.clamp(0.0, 1.0) * 8.0;
    let low = (at as usize).min(7);
    let t = at - low as f64;
    [0, 1, 2].map(|c| (STOPS[low][c] * (1.0 - t) + STOPS[low + 1][c] * t).round() as u8)
}

pub(crate) fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// About eight places along an axis, at a round distance.
fn ticks(n: usize) -> impl Iterator<Item = usize> {
    let step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].into_iter().find(|s| n / s <= 10);
    (0..n).step_by(step.unwrap_or(n.div_ceil(10).max(1)))
}

/// Text for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |w, &b| w << 8 | u32::from(b)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            if digit <= chunk.len() {
                text.push(char::from(DIGITS[(word >> (18 - 6 * digit)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads() {
        for (bytes, text) in
            [("", ""), ("M", "TQ=="), ("Ma", "TWE="), ("Man", "TWFu"), ("light work", "bGlnaHQgd29yaw==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn levels_span_the_palette() {
        assert_eq!([None, Some(0.0), Some(f64::NAN), Some(1.0), Some(2.0)].map(level), [0, 1, 1, 255, 255]);
        assert_eq!(palette().len(), 256);
    }
}
