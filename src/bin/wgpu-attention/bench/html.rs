//! The page: one HTML file that asks for nothing else.

use super::compare::Change;
use super::plot::{Axis, Plot, Point, Roof, Series};
use super::report::{Report, Row};
use super::text::{COLUMNS, digits, roofs};
use crate::heatmap::escape;
use crate::page::CSS;
use std::fmt::Write;

const OWN_CSS: &str = include_str!("page.css");

/// Writing into a `String` cannot fail, so that results of `write!` are dropped.
pub(super) fn page(report: &Report, changes: Option<&[Change]>) -> String {
    let m = &report.machine;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Attention on {}</title>\n<style>\n{CSS}{OWN_CSS}</style>\n</head>\n<body>\n\
         <h1>How fast is attention here?</h1>\n\
         <p>Kernels of wgpu-attention on this machine's adapter, and the adapter's own ceilings, measured in the same run. Answers were \
         checked against float64 before any time was taken. Operations and bytes are counted from what is visible: \
         2 (D<sub>qk</sub> + D<sub>v</sub>) for each pair of a query and a key that it sees, and each number once.</p>\n",
        escape(&m.adapter)
    );
    let ceilings = roofs(report).map(|(name, value, unit)| format!("{name} {} {unit}", digits(value)));
    let facts = [
        ("adapter", format!("{} ({})", m.adapter, m.kind)),
        ("driver", m.driver.clone()),
        ("program", format!("wgpu-attention {} on {}", m.crate_version, m.system)),
        ("clock", format!("{}: {}", m.clock, m.clock_because)),
        ("ceilings", ceilings.join(", ")),
    ];
    page.push_str("<dl>\n");
    for (name, fact) in facts {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&fact));
    }
    let _ = writeln!(page, "<dt>made by</dt><dd><code>{}</code></dd>\n</dl>", escape(&report.command));

    let kernels = kernels(report);
    roofline(&mut page, report, &kernels);
    speed(&mut page, report);
    shares(&mut page, report, &kernels);
    table(&mut page, report);
    if let Some(changes) = changes {
        comparison(&mut page, changes);
    }
    left_out(&mut page, report);
    page.push_str("</body>\n</html>\n");
    page
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

fn point(row: &Row, x: f64) -> Point {
    let title = format!(
        "{} on {}: {} ms, {} GFLOP/s, {:.0} % of the {} roof",
        row.kernel,
        row.problem(),
        digits(row.ms),
        digits(row.gflops),
        row.share * 100.0,
        row.limit
    );
    Point { x, y: row.gflops, title }
}

fn roofline(page: &mut String, report: &Report, kernels: &[&str]) {
    let rows = &report.rows;
    let (compute, memory) = (report.roofs.compute() / 1e9, report.roofs.memory() / 1e9);
    // So that the bend is in the picture.
    let bend = compute / memory;
    let x = Axis::around("operations for each byte", rows.iter().map(|r| r.intensity).chain([bend]));
    let y = Axis::around("GFLOP/s", rows.iter().map(|r| r.gflops).chain([compute]));
    let (Some(x), Some(y)) = (x, y) else { return };
    let roofs = vec![
        Roof {
            name: format!("multiply and add: {} GFLOP/s", digits(compute)),
            points: [(bend, compute), (x.to, compute)],
        },
        Roof {
            name: format!("memory: {} GB/s", digits(memory)),
            // From the left or from the bottom, whichever comes first.
            points: [(x.from.max(y.from / memory), (x.from.max(y.from / memory)) * memory), (bend, compute)],
        },
    ];
    let series = kernels
        .iter()
        .enumerate()
        .map(|(colour, &kernel)| Series {
            name: kernel.to_owned(),
            colour,
            joined: false,
            points: rows.iter().filter(|r| r.kernel == kernel).map(|r| point(r, r.intensity)).collect(),
        })
        .collect();
    let plot =
        Plot { label: "Roofline: GFLOP/s over operations for each byte".to_owned(), x, y, roofs, series };
    section(
        page,
        "Roofline",
        "Each point is a kernel on a problem. The slope is what the memory of this adapter allows, the level what its arithmetic does. \
         A point that is far to the right and far below the level has room left in the kernel.",
        &plot.svg(),
    );
}

fn speed(page: &mut String, report: &Report) {
    let mut families: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in &report.rows {
        let Some(family) = row.family() else { continue };
        match families.iter_mut().find(|f| f.0 == family) {
            Some((_, rows)) => rows.push(row),
            None => families.push((family, vec![row])),
        }
    }
    for (family, rows) in families {
        let mut lengths: Vec<u32> = rows.iter().map(|r| r.shape[3]).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let x = Axis::around("sequence length S", lengths.iter().map(|&s| s.into()));
        let y = Axis::around("GFLOP/s", rows.iter().map(|r| r.gflops));
        let (Some(x), Some(y)) = (x, y) else { continue };
        if lengths.len() < 2 {
            continue;
        }
        let exponent = |kernel: &str| {
            let found = report.scaling.iter().find(|s| s.kernel == kernel && s.problem == family);
            found.map_or(String::new(), |s| format!(", time as S^{:.2}", s.exponent))
        };
        let series = kernels(report)
            .into_iter()
            .enumerate()
            .map(|(colour, kernel)| {
                let mut points: Vec<Point> = rows
                    .iter()
                    .filter(|r| r.kernel == kernel)
                    .map(|r| point(r, f64::from(r.shape[3])))
                    .collect();
                points.sort_by(|a, b| a.x.total_cmp(&b.x));
                let name = format!("{kernel}{}", exponent(kernel));
                Series { name, colour, joined: true, points }
            })
            .filter(|s| !s.points.is_empty())
            .collect();
        let label = format!("GFLOP/s over sequence length, {family}");
        let plot = Plot { label, x, y, roofs: Vec::new(), series };
        section(
            page,
            &format!("Speed over length: {}", escape(&family)),
            "Time grows with the square of the length, so a level line is a kernel that is as good on long sequences as on short ones. \
             The exponents are slopes of log time over log length by least squares.",
            &plot.svg(),
        );
    }
}

fn shares(page: &mut String, report: &Report, kernels: &[&str]) {
    if report.rows.is_empty() {
        return;
    }
    let mut body =
        "<div class=\"bars\" role=\"img\" aria-label=\"share of the lower roof of each row\">\n".to_owned();
    for row in &report.rows {
        let colour = kernels.iter().position(|k| *k == row.kernel).unwrap_or(0) % super::plot::COLOURS;
        let _ = writeln!(
            body,
            "<div class=\"what\">{}, {}</div><div class=\"track\"><div class=\"fill\" \
             style=\"width:{:.1}%;background:var(--k{colour})\"></div></div><div>{:.1} % of {}</div>",
            escape(&row.problem()),
            escape(&row.kernel),
            (row.share * 100.0).clamp(0.0, 100.0),
            row.share * 100.0,
            row.limit
        );
    }
    body.push_str("</div>\n");
    section(
        page,
        "Share of the lowest roof",
        "The time that the adapter's lowest roof allows (arithmetic, exponentials or memory), as a share of the time that was taken.",
        &body,
    );
}

fn table(page: &mut String, report: &Report) {
    let mut body = "<div class=\"scroll\"><table>\n<thead><tr>".to_owned();
    for (title, _) in COLUMNS {
        let _ = write!(body, "<th>{title}</th>");
    }
    body.push_str("</tr></thead>\n<tbody>\n");
    for row in &report.rows {
        body.push_str("<tr>");
        for (_, cell) in COLUMNS {
            let _ = write!(body, "<td>{}</td>", escape(&cell(row)));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
    section(
        page,
        "All figures",
        "Median times of one call; spread is what lies between the quartiles, n the number of samples. * is the kernel that the planner \
         takes. Compile time stands where a variant was first used.",
        &body,
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
