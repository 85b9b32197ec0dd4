//! The page: one HTML file that asks for nothing else.

use super::compare::Change;
use super::report::{Report, Row};
use super::text::{COLUMNS, Column, OPERATIONS, digits, roofs};
use crate::heatmap::escape;
use crate::plot::{Axis, Line, Plot};
use crate::{html, plot};
use std::fmt::Write;

const CSS: &str = include_str!("page.css");

/// Writing into a `String` cannot fail, so that results of `write!` are dropped.
pub(super) fn html(report: &Report, changes: Option<&[Change]>) -> String {
    let m = &report.machine;
    let mut page = html::begin(&format!("Attention on {}", m.adapter), &[html::CSS, plot::CSS, CSS], "");
    page.push_str(
        "<h1>How fast is attention here?</h1>\n\
         <p>Kernels of wgpu-attention on this machine's adapter, and the adapter's own ceilings, measured in the same run. Answers were \
         checked against float64 before any time was taken. Operations and bytes are counted from what is visible: \
         2 (D<sub>qk</sub> + D<sub>v</sub>) for each pair of a query and a key that it sees, and each number once.</p>\n",
    );
    let ceilings: Vec<String> =
        roofs(report).iter().map(|(name, value, unit)| format!("{name} {} {unit}", digits(*value))).collect();
    page.push_str(&html::facts(&[
        ("adapter", format!("{} ({})", m.adapter, m.kind)),
        ("driver", m.driver.clone()),
        ("program", format!("wgpu-attention {} on {}", m.crate_version, m.system)),
        ("clock", format!("{}: {}", m.clock, m.clock_because)),
        ("ceilings", ceilings.join(", ")),
        ("made by", report.command.clone()),
    ]));

    let kernels = kernels(report);
    let source = format!("{} — {}, {}", report.command, m.adapter, m.driver);
    roofline(&mut page, report, &kernels, &source);
    speed(&mut page, report, &kernels, &source);
    shares(&mut page, report, &kernels);
    table(&mut page, report);
    operations(&mut page, report);
    if let Some(changes) = changes {
        comparison(&mut page, changes);
    }
    left_out(&mut page, report);
    page + html::END
}

/// In the order of their first rows, which gives them their colours.
fn kernels(report: &Report) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !names.contains(&row.kernel.as_str()) {
            names.push(&row.kernel);
        }
    }
    names
}

fn section(page: &mut String, title: &str, caption: &str, body: &str) {
    let _ = write!(page, "<section>\n<h2>{title}</h2>\n<p class=\"soft\">{caption}</p>\n{body}</section>\n");
}

fn roofline(page: &mut String, report: &Report, kernels: &[&str], source: &str) {
    let (compute, memory) = (report.roofs.compute() / 1e9, report.roofs.memory() / 1e9);
    if report.rows.is_empty() {
        return;
    }
    let bend = compute / memory;
    let ends = report.rows.iter().map(|r| r.intensity).fold([bend, bend], |[l, h], x| [l.min(x), h.max(x)]);
    let [low, high] = [ends[0] / 1.5, ends[1] * 1.5];
    let points = |kernel: &str| -> Vec<[f64; 2]> {
        report.rows.iter().filter(|r| r.kernel == kernel).map(|r| [r.intensity, r.gflops]).collect()
    };
    let matrix = report.roofs.matrix.map(|matrix| matrix / 1e9).map(|matrix| {
        let bend = matrix / memory;
        let line = vec![[bend.min(high), matrix], [high.max(bend), matrix]];
        Line::theory(format!("matrices, for the matrix kernel: {} GFLOP/s", digits(matrix)), line)
            .colour(kernels.len() + 2)
    });
    let mut plot = Plot::new("Roofline", Axis::log10("operations for each byte"), Axis::log10("GFLOP/s"))
        .lines((0..).zip(kernels).map(|(n, kernel)| Line::dots(*kernel, points(kernel)).colour(n)))
        .line(
            Line::theory(
                format!("memory: {} GB/s", digits(memory)),
                vec![[low, low * memory], [bend, compute]],
            )
            .colour(kernels.len()),
        )
        .line(
            Line::theory(
                format!("multiply and add: {} GFLOP/s", digits(compute)),
                vec![[bend, compute], [high, compute]],
            )
            .colour(kernels.len() + 1),
        );
    if let Some(matrix) = matrix {
        plot = plot.line(matrix);
    }
    section(
        page,
        "Roofline",
        "Each dot is a kernel on a problem. The slope is what the memory of this adapter allows, the level what its arithmetic does. \
         A dot that is far to the right and far below the level has room left in the kernel.",
        &plot.html(source),
    );
}

fn speed(page: &mut String, report: &Report, kernels: &[&str], source: &str) {
    let mut families: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in &report.rows {
        let Some(family) = row.family() else { continue };
        match families.iter_mut().find(|f| f.0 == family) {
            Some((_, rows)) => rows.push(row),
            None => families.push((family, vec![row])),
        }
    }
    let mut body = String::new();
    for (family, rows) in families {
        let exponent = |kernel: &str| {
            let found = report.scaling.iter().find(|s| s.kernel == kernel && s.problem == family);
            found.map_or(String::new(), |s| format!(", time as S^{:.2}", s.exponent))
        };
        let points = |kernel: &str| {
            let mut points: Vec<[f64; 2]> = rows
                .iter()
                .filter(|r| r.kernel == kernel)
                .map(|r| [f64::from(r.shape[3]), r.gflops])
                .collect();
            points.sort_by(|a, b| a[0].total_cmp(&b[0]));
            points
        };
        if kernels.iter().all(|kernel| points(kernel).len() < 2) {
            continue;
        }
        let lines = (0..).zip(kernels).filter(|(_, kernel)| !points(kernel).is_empty()).map(|(n, kernel)| {
            Line::measured(format!("{kernel}{}", exponent(kernel)), points(kernel)).colour(n)
        });
        let plot =
            Plot::new(family.as_str(), Axis::log2("sequence length S"), Axis::log10("GFLOP/s")).lines(lines);
        body.push_str(&plot.html(source));
    }
    if !body.is_empty() {
        section(
            page,
            "Speed over length",
            "Work grows with the square of the length, so a level line is a kernel that is as good on long sequences as on short ones. \
             The exponents are slopes of log time over log length by least squares.",
            &format!("<div class=\"charts\">\n{body}</div>\n"),
        );
    }
}

/// A share of a roof.
fn bar(body: &mut String, what: &str, colour: usize, share: f64, roof: &str) {
    let _ = writeln!(
        body,
        "<div class=\"what\">{}</div><div class=\"track\"><div class=\"fill\" \
         style=\"width:{:.1}%;background:var(--c{})\"></div></div><div>{:.1} % of {roof}</div>",
        escape(what),
        (share * 100.0).clamp(0.0, 100.0),
        colour % 8,
        share * 100.0,
    );
}

fn shares(page: &mut String, report: &Report, kernels: &[&str]) {
    if report.rows.is_empty() {
        return;
    }
    let mut body =
        "<div class=\"bars\" role=\"img\" aria-label=\"share of the lower roof of each row\">\n".to_owned();
    for row in &report.rows {
        let colour = kernels.iter().position(|k| *k == row.kernel).unwrap_or(0);
        let what = format!("{}, {}", row.problem(), row.kernel);
        bar(&mut body, &what, colour, row.share, &row.limit.to_string());
    }
    body.push_str("</div>\n");
    section(
        page,
        "Share of the lowest roof",
        "The time that the adapter's lowest roof allows (arithmetic, exponentials or memory), as a share of the time that was taken.",
        &body,
    );
}

/// Rows under their titles.
fn cells<R>(rows: &[R], columns: &[Column<R>]) -> String {
    let mut body = "<div class=\"scroll\"><table>\n<thead><tr>".to_owned();
    for (title, _) in columns {
        let _ = write!(body, "<th>{title}</th>");
    }
    body.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        body.push_str("<tr>");
        for (_, cell) in columns {
            let _ = write!(body, "<td>{}</td>", escape(&cell(row)));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
    body
}

fn table(page: &mut String, report: &Report) {
    if report.rows.is_empty() && !report.operations.is_empty() {
        return;
    }
    section(
        page,
        "All figures",
        "Median times of one call; spread is what lies between the quartiles, n the number of samples. * is the kernel that the planner \
         takes. first ms is from asking for a variant to the end of one call, where it was first used.",
        &cells(&report.rows, &COLUMNS),
    );
}

fn operations(page: &mut String, report: &Report) {
    if report.operations.is_empty() {
        return;
    }
    let mut bars =
        "<div class=\"bars\" role=\"img\" aria-label=\"share of the lower roof of each row\">\n".to_owned();
    for row in &report.operations {
        let what = format!("{}, {}", row.problem(), row.operation);
        bar(&mut bars, &what, usize::from(row.operation == "sampling"), row.share, &row.limit.to_string());
    }
    bars.push_str("</div>\n");
    section(
        page,
        "Softmax and sampling",
        "Share of the lower roof: what a copy reads and writes, or the exponentials. Sampling (the order and the settings of llama.cpp) \
         is set against reading its logits.",
        &bars,
    );
    section(
        page,
        "All figures",
        "Median times of one call on the device; spread is what lies between the quartiles, n the number of samples. The last two columns \
         are by the wall clock, until the tokens are on the host: drawn on the device, or on the processor after the logits \
         were read back.",
        &cells(&report.operations, &OPERATIONS),
    );
}

fn comparison(page: &mut String, changes: &[Change]) {
    let mut body = "<div class=\"scroll\"><table>\n<thead><tr><th>problem</th><th>kernel</th><th>before, ms</th><th>now, ms</th>\
                    <th>times as fast</th><th>verdict</th></tr></thead>\n<tbody>\n"
        .to_owned();
    for c in changes {
        let _ = writeln!(
            body,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}</td><td>{}</td></tr>",
            escape(&c.problem),
            escape(&c.kernel),
            digits(c.before_ms),
            digits(c.now_ms),
            c.before_ms / c.now_ms,
            c.verdict.name()
        );
    }
    body.push_str("</tbody></table></div>\n");
    section(
        page,
        "Against the earlier run",
        "Only what is beyond the noise of both runs is called a change.",
        &body,
    );
}

fn left_out(page: &mut String, report: &Report) {
    if report.left_out.is_empty() {
        return;
    }
    let mut body = "<ul>\n".to_owned();
    for l in &report.left_out {
        let _ = writeln!(
            body,
            "<li>{} on {}: {}</li>",
            escape(&l.kernel),
            escape(&l.problem),
            escape(&l.because)
        );
    }
    body.push_str("</ul>\n");
    section(page, "Left out", "What has no figure, and why.", &body);
}
