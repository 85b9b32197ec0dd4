//! Plots as SVG, with logarithmic axes.

use crate::heatmap::escape;
use std::fmt::Write;

/// A line or a set of points, with the number of its colour.
pub(super) struct Series {
    pub name: String,
    pub colour: usize,
    pub points: Vec<Point>,
    pub joined: bool,
}

pub(super) struct Point {
    pub x: f64,
    pub y: f64,
    /// What a pointer over it is told.
    pub title: String,
}

/// A ceiling: a broken line, with its name at its right end.
pub(super) struct Roof {
    pub name: String,
    pub points: [(f64, f64); 2],
}

pub(super) struct Axis {
    pub title: &'static str,
    pub from: f64,
    pub to: f64,
}

pub(super) struct Plot {
    pub label: String,
    pub x: Axis,
    pub y: Axis,
    pub roofs: Vec<Roof>,
    pub series: Vec<Series>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 48.0;
/// Colours that the page defines, `--k0` and on.
pub(super) const COLOURS: usize = 6;

impl Axis {
    /// From just below the least to just above the most; `None` where no number is above 0.
    pub(super) fn around(title: &'static str, numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let (mut from, mut to) = (f64::INFINITY, 0.0f64);
        for x in numbers.filter(|x| x.is_finite() && *x > 0.0) {
            (from, to) = (from.min(x), to.max(x));
        }
        (to > 0.0).then_some(Axis { title, from: from / 1.4, to: to * 1.4 })
    }

    fn place(&self, x: f64) -> f64 {
        (x / self.from).ln() / (self.to / self.from).ln()
    }

    /// 1, 2 and 5 times powers of ten; only the powers where that is many, and all digits where it is few.
    fn marks(&self) -> Vec<f64> {
        let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        let all = |steps: &[f64]| -> Vec<f64> {
            decades
                .clone()
                .flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)))
                .filter(|m| (self.from..=self.to).contains(m))
                .collect()
        };
        match all(&[1.0, 2.0, 5.0]) {
            many if many.len() > 8 => all(&[1.0]),
            few if few.len() < 3 => all(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
            marks => marks,
        }
    }
}

fn number(x: f64) -> String {
    if x >= 1000.0 && x % 1000.0 == 0.0 {
        format!("{}k", x / 1000.0)
    } else {
        format!("{}", (x * 1e9).round() / 1e9)
    }
}

impl Plot {
    /// Writing into a `String` cannot fail.
    pub(super) fn svg(&self) -> String {
        let x = |v: f64| LEFT + self.x.place(v) * (WIDTH - LEFT - RIGHT);
        let y = |v: f64| HEIGHT - BOTTOM - self.y.place(v) * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg class=\"plot wide\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.label)
        );
        for mark in self.x.marks() {
            let at = x(mark);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{at:.1} {TOP}V{:.1}\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 16.0,
                number(mark)
            );
        }
        for mark in self.y.marks() {
            let at = y(mark);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                number(mark)
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"title\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"title\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 10.0,
            escape(self.x.title),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escape(self.y.title)
        );
        for roof in &self.roofs {
            let [(x0, y0), (x1, y1)] = roof.points.map(|(px, py)| (x(px), y(py)));
            let _ = writeln!(
                svg,
                "<path class=\"roof\" d=\"M{x0:.1} {y0:.1}L{x1:.1} {y1:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                x1.min(WIDTH - RIGHT) - 4.0,
                y1 - 6.0,
                escape(&roof.name)
            );
        }
        for series in &self.series {
            let colour = series.colour % COLOURS;
            if series.joined {
                let points: Vec<String> =
                    series.points.iter().map(|p| format!("{:.1},{:.1}", x(p.x), y(p.y))).collect();
                let _ = writeln!(
                    svg,
                    "<polyline style=\"stroke:var(--k{colour})\" points=\"{}\"/>",
                    points.join(" ")
                );
            }
            for p in &series.points {
                let _ = writeln!(
                    svg,
                    "<circle style=\"fill:var(--k{colour})\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{}</title></circle>",
                    x(p.x),
                    y(p.y),
                    escape(&p.title)
                );
            }
        }
        svg.push_str("</svg>\n<ul class=\"key\">\n");
        for series in &self.series {
            let _ = writeln!(
                svg,
                "<li><span style=\"background:var(--k{})\"></span>{}</li>",
                series.colour % COLOURS,
                escape(&series.name)
            );
        }
        svg.push_str("</ul>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_around_their_numbers_and_marked() {
        let axis = Axis::around("x", [0.0, 2.0, 200.0, f64::NAN].into_iter()).unwrap();
        assert!(axis.from < 2.0 && axis.to > 200.0);
        assert_eq!(axis.marks(), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]);
        assert!((axis.place(axis.to) - 1.0).abs() < 1e-12 && axis.place(axis.from).abs() < 1e-12);
        assert!(Axis::around("x", [0.0].into_iter()).is_none());
        let wide = Axis { title: "x", from: 0.5, to: 2e6 };
        assert_eq!(wide.marks(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        assert_eq!((number(2000.0), number(0.5)), ("2k".to_owned(), "0.5".to_owned()));
    }
}
