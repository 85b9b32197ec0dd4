//! Line plots as HTML figures: SVG that needs no script, keeps its text large on a phone, and is not read by colour alone.
//!
//! Give the page `CSS` once; it draws in the colours of the page's own `--ink`, `--soft` and `--line`.

use crate::heatmap::escape;
use std::fmt::Write;

/// The style of all plots on a page, light and dark.
pub(crate) const CSS: &str = include_str!("plot.css");

/// How far apart numbers lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spacing {
    Linear,
    /// Logarithmic, with marks at powers of ten.
    Log10,
    /// Logarithmic, with marks at powers of two.
    Log2,
}

/// One axis: its label (with the unit), its spacing, and its ends where they are not the data's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    label: String,
    spacing: Spacing,
    ends: Option<[f64; 2]>,
}

impl Axis {
    fn new(label: impl Into<String>, spacing: Spacing) -> Self {
        Axis { label: label.into(), spacing, ends: None }
    }

    pub(crate) fn linear(label: impl Into<String>) -> Self {
        Axis::new(label, Spacing::Linear)
    }

    pub(crate) fn log10(label: impl Into<String>) -> Self {
        Axis::new(label, Spacing::Log10)
    }

    pub(crate) fn log2(label: impl Into<String>) -> Self {
        Axis::new(label, Spacing::Log2)
    }

    /// What lies outside is cut off.
    pub(crate) fn range(mut self, low: f64, high: f64) -> Self {
        self.ends = Some([low, high]);
        self
    }

    /// A number's place on an endless axis; NaN where it has none.
    fn at(&self, value: f64) -> f64 {
        match self.spacing {
            Spacing::Linear => value,
            Spacing::Log10 => value.log10(),
            Spacing::Log2 => value.log2(),
        }
    }

    /// Where the axis begins and ends, as places.
    fn span(&self, values: impl Iterator<Item = f64>) -> [f64; 2] {
        let ends = self.ends.map(|ends| ends.map(|end| self.at(end)));
        let [low, high] = ends.unwrap_or_else(|| {
            let places = values.map(|value| self.at(value)).filter(|place| place.is_finite());
            let [low, high] =
                places.fold([f64::INFINITY, f64::NEG_INFINITY], |[l, h], place| [l.min(place), h.max(place)]);
            // A little more, so that dots at the ends are whole.
            let more = 0.02 * (high - low);
            [low - more, high + more]
        });
        match low.partial_cmp(&high) {
            Some(std::cmp::Ordering::Less) => [low, high],
            // One number, or none.
            _ if low.is_finite() => [low - 0.5, low + 0.5],
            _ => [0.0, 1.0],
        }
    }

    /// Where marks belong, and what they say.
    fn marks(&self, [low, high]: [f64; 2]) -> Vec<(f64, String)> {
        const MOST: f64 = 6.0;
        let step = match self.spacing {
            Spacing::Linear => {
                let rough = (high - low) / MOST;
                let size = 10f64.powf(rough.log10().floor());
                [1.0, 2.0, 5.0, 10.0].map(|n| n * size).into_iter().find(|s| *s >= rough).unwrap_or(rough)
            }
            _ => ((high - low) / MOST).ceil().max(1.0),
        };
        // Within a decade or so, powers of ten alone would say little.
        let parts: &[f64] =
            if self.spacing == Spacing::Log10 && high - low < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let slack = 1e-9 * (high - low);
        let first = (low / step).floor() as i64;
        let last = (high / step).ceil() as i64;
        let values = (first..=last).flat_map(|n| {
            parts.iter().map(move |part| match self.spacing {
                Spacing::Linear => n as f64 * step,
                Spacing::Log10 => part * 10f64.powf(n as f64 * step),
                Spacing::Log2 => (n as f64 * step).exp2(),
            })
        });
        values
            .map(|value| (self.at(value), number(value)))
            .filter(|(place, _)| (low - slack..=high + slack).contains(place))
            .collect()
    }
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// A line with a dot at each number: what was measured.
    Dotted,
    /// A line without dots.
    Plain,
    /// Dashes: what theory says.
    Dashed,
    /// Dots without a line.
    Dots,
}

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    name: String,
    points: Vec<[f64; 2]>,
    /// x, low, high.
    band: Vec<[f64; 3]>,
    look: Look,
    colour: Option<usize>,
}

impl Line {
    fn new(name: impl Into<String>, points: Vec<[f64; 2]>, look: Look) -> Self {
        Line { name: name.into(), points, band: Vec::new(), look, colour: None }
    }

    /// Measured numbers: a line with dots. A number that is not finite (or has no logarithm) breaks the line.
    pub(crate) fn measured(name: impl Into<String>, points: Vec<[f64; 2]>) -> Self {
        Line::new(name, points, Look::Dotted)
    }

    /// A line without dots, for many points.
    pub(crate) fn plain(name: impl Into<String>, points: Vec<[f64; 2]>) -> Self {
        Line::new(name, points, Look::Plain)
    }

    /// What theory says: dashes.
    pub(crate) fn theory(name: impl Into<String>, points: Vec<[f64; 2]>) -> Self {
        Line::new(name, points, Look::Dashed)
    }

    /// Dots without a line.
    pub(crate) fn dots(name: impl Into<String>, points: Vec<[f64; 2]>) -> Self {
        Line::new(name, points, Look::Dots)
    }

    /// The colour of another line, to show that they belong together; else each has its own.
    pub(crate) fn colour(mut self, colour: usize) -> Self {
        self.colour = Some(colour);
        self
    }

    /// An area around it: x, low, high.
    pub(crate) fn band(mut self, band: Vec<[f64; 3]>) -> Self {
        self.band = band;
        self
    }
}

/// A plot of lines.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plot {
    title: String,
    x: Axis,
    y: Axis,
    lines: Vec<Line>,
}

/// Places for numbers, names and the drawing, in units of the picture: narrow, so that on a phone its text is still of a
/// readable size.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 286.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;
/// Colours that plot.css has; more lines begin again, with dots of another shape.
const COLOURS: usize = 8;

impl Plot {
    pub(crate) fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Plot { title: title.into(), x, y, lines: Vec::new() }
    }

    pub(crate) fn line(mut self, line: Line) -> Self {
        self.lines.push(line);
        self
    }

    pub(crate) fn lines(mut self, lines: impl IntoIterator<Item = Line>) -> Self {
        self.lines.extend(lines);
        self
    }

    /// The figure: title, drawing, legend, and how its numbers came about. Writing into a `String` cannot fail, so that results of `write!` are dropped.
    pub(crate) fn html(&self, source: &str) -> String {
        let x_span = self.x.span(self.values().map(|[x, _]| x));
        let y_span = self.y.span(self.values().map(|[_, y]| y));
        let x = |value: f64| place(self.x.at(value), x_span, LEFT, WIDTH - RIGHT);
        let y = |value: f64| place(self.y.at(value), y_span, HEIGHT - BOTTOM, TOP);
        let mut svg = format!(
            "<figure class=\"chart\"><figcaption>{0}</figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\n",
            escape(&self.title)
        );
        self.axes(&mut svg, x_span, y_span);
        // An inner picture cuts off what lies outside.
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let _ = writeln!(
            svg,
            "<svg x=\"{LEFT}\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\" viewBox=\"{LEFT} {TOP} {width} {height}\">"
        );
        for (n, line) in self.lines.iter().enumerate() {
            let class = format!("c{}", line.colour.unwrap_or(n) % COLOURS);
            if !line.band.is_empty() {
                let _ = writeln!(svg, "<path class=\"band {class}\" d=\"{}\"/>", band(&line.band, x, y));
            }
        }
        for (n, line) in self.lines.iter().enumerate() {
            let colour = line.colour.unwrap_or(n);
            let class = format!("c{}", colour % COLOURS);
            let dashed = if line.look == Look::Dashed { " dashed" } else { "" };
            if line.look != Look::Dots {
                let _ = writeln!(
                    svg,
                    "<path class=\"line {class}{dashed}\" d=\"{}\"/>",
                    path(line.points.iter().map(|&[px, py]| [x(px), y(py)]))
                );
            }
            if matches!(line.look, Look::Dotted | Look::Dots) {
                for &[px, py] in &line.points {
                    let at = [x(px), y(py)];
                    if at.iter().all(|p| p.is_finite()) {
                        let tip = format!("{}: {}, {}", line.name, number(px), number(py));
                        svg.push_str(&dot(colour, at, &class, &tip));
                    }
                }
            }
        }
        svg.push_str("</svg>\n</svg>\n");
        self.legend(&mut svg);
        if !source.is_empty() {
            let _ = writeln!(svg, "<p class=\"source\">{}</p>", escape(source));
        }
        svg.push_str("</figure>\n");
        svg
    }

    fn values(&self) -> impl Iterator<Item = [f64; 2]> {
        self.lines.iter().flat_map(|line| {
            let band = line.band.iter().flat_map(|&[x, low, high]| [[x, low], [x, high]]);
            line.points.iter().copied().chain(band)
        })
    }

    fn axes(&self, svg: &mut String, x_span: [f64; 2], y_span: [f64; 2]) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (at, text) in self.x.marks(x_span) {
            let x = place(at, x_span, LEFT, right);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                bottom + 17.0
            );
        }
        for (at, text) in self.y.marks(y_span) {
            let y = place(at, y_span, bottom, TOP);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 6.0,
                y + 4.5
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\
             <text class=\"name\" x=\"2\" y=\"14\">{}</text>\
             <text class=\"name\" x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            escape(&self.y.label),
            HEIGHT - 6.0,
            escape(&self.x.label)
        );
    }

    fn legend(&self, svg: &mut String) {
        svg.push_str("<ul class=\"keys\">");
        for (n, line) in self.lines.iter().enumerate() {
            let colour = line.colour.unwrap_or(n);
            let class = format!("c{}", colour % COLOURS);
            let dashed = if line.look == Look::Dashed { " dashed" } else { "" };
            let _ = write!(
                svg,
                "<li><svg viewBox=\"0 0 26 12\" width=\"26\" height=\"12\" aria-hidden=\"true\">"
            );
            if line.look != Look::Dots {
                let _ = write!(svg, "<path class=\"line {class}{dashed}\" d=\"M1 6H25\"/>");
            }
            if matches!(line.look, Look::Dotted | Look::Dots) {
                svg.push_str(&dot(colour, [13.0, 6.0], &class, ""));
            }
            let _ = write!(svg, "</svg>{}</li>", escape(&line.name));
        }
        svg.push_str("</ul>");
    }
}

/// From a span onto a line of the picture.
fn place(at: f64, [low, high]: [f64; 2], from: f64, to: f64) -> f64 {
    from + (at - low) / (high - low) * (to - from)
}

/// A path through the points, broken where one has no place.
fn path(points: impl Iterator<Item = [f64; 2]>) -> String {
    let mut d = String::new();
    let mut pen_up = true;
    for [x, y] in points {
        if x.is_finite() && y.is_finite() {
            let _ = write!(d, "{}{x:.1} {y:.1}", if pen_up { 'M' } else { 'L' });
            pen_up = false;
        } else {
            pen_up = true;
        }
    }
    d
}

/// The outline of a band. What has no place (0 on a logarithmic axis) goes to the bottom.
fn band(band: &[[f64; 3]], x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let low = |value| if f64::is_finite(y(value)) { y(value) } else { HEIGHT - BOTTOM };
    let there = band.iter().map(|&[at, _, high]| [x(at), low(high)]);
    let back = band.iter().rev().map(|&[at, bottom, _]| [x(at), low(bottom)]);
    path(there.chain(back)) + "Z"
}

/// A dot; lines differ by its shape as well as by colour. The tip shows where a pointer rests.
fn dot(shape: usize, [x, y]: [f64; 2], class: &str, tip: &str) -> String {
    let d = match shape % 5 {
        0 => "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z",
        1 => "m-3-3h6v6h-6z",
        2 => "m0-4l3.8 6.6h-7.6z",
        3 => "m0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z",
        _ => "m0 4l3.8-6.6h-7.6z",
    };
    let tip = if tip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tip)) };
    format!("<path class=\"dot {class}\" d=\"M{x:.1} {y:.1}{d}\">{tip}</path>\n")
}

/// A number in few characters: three digits or so, powers of ten where it is far from 1.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}").replace('-', "−");
    }
    let size = value.abs().log10().floor() as i32;
    let text = match size {
        -3..=4 => {
            let text = format!("{value:.*}", (2 - size).clamp(0, 5) as usize);
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text,
            }
        }
        _ => {
            let digits = format!("{value:.2e}");
            let (digits, power) = digits.split_once('e').unwrap_or((&digits, "0"));
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            let power: String = power.chars().map(superscript).collect();
            if digits == "1" { format!("10{power}") } else { format!("{digits}·10{power}") }
        }
    };
    text.replace('-', "−")
}

fn superscript(c: char) -> char {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    match c.to_digit(10) {
        Some(digit) => DIGITS[digit as usize],
        None => '⁻',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, span: [f64; 2]) -> Vec<String> {
        axis.marks(span).into_iter().map(|mark| mark.1).collect()
    }

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(labels(&Axis::linear(""), [0.0, 4.852]), ["0", "1", "2", "3", "4"]);
        assert_eq!(labels(&Axis::linear(""), [-0.03, 0.031]), ["−0.02", "0", "0.02"]);
        assert_eq!(labels(&Axis::log2(""), [3.0, 12.0]), ["16", "64", "256", "1024", "4096"]);
        assert_eq!(labels(&Axis::log10(""), [-2.0, 2.0]), ["0.01", "0.1", "1", "10", "100"]);
        assert_eq!(labels(&Axis::log10(""), [0.0, 1.0]), ["1", "2", "5", "10"]);
        assert_eq!(
            labels(&Axis::log10(""), [-12.0, 0.0]),
            ["10⁻¹²", "10⁻¹⁰", "10⁻⁸", "10⁻⁶", "10⁻⁴", "0.01", "1"]
        );
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 1.0, -0.5, 0.06604, 4.852, 128.0, 4096.0, 1234567.0, 1e-5, f64::NAN].map(number);
        assert_eq!(texts, ["0", "1", "−0.5", "0.066", "4.85", "128", "4096", "1.23·10⁶", "10⁻⁵", "NaN"]);
    }

    #[test]
    fn what_has_no_place_breaks_the_line() {
        let points = vec![[1.0, 1.0], [2.0, 0.0], [3.0, f64::NAN], [4.0, 10.0], [5.0, 100.0]];
        let plot =
            Plot::new("a < b", Axis::linear("x"), Axis::log10("y, nats")).line(Line::measured("m", points));
        let html = plot.html("");
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        assert_eq!(html.matches("<title>").count(), 3);
        assert!(html.contains("a &lt; b") && html.contains("y, nats"));
        // Two pieces: one of one point, one of two.
        let line = html.lines().find(|line| line.contains("class=\"line")).unwrap_or_default();
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 1), "{line}");
    }

    #[test]
    fn an_empty_plot_is_a_plot() {
        let html =
            Plot::new("", Axis::log2("x"), Axis::linear("y")).line(Line::plain("none", Vec::new())).html("");
        assert!(
            html.starts_with("<figure") && html.trim_end().ends_with("</figure>") && !html.contains("NaN")
        );
    }
}
