//! The demo's page: one HTML file that asks for nothing else.

use crate::demo::{ERRORS, Head, Section, TIMED};
use crate::fail::{Fail, Result};
use crate::heatmap::{LEGEND, colour, escape, hex, palette};
use std::fmt::Write;

/// What the page says of the run.
pub(crate) struct Facts {
    pub adapter: String,
    pub driver: String,
    /// Shader variants compiled for all of it.
    pub compiled: usize,
    pub command: String,
}

pub(crate) const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");

/// The page. Writing into a `String` cannot fail, so that results of `write!` are dropped.
pub(crate) fn html(facts: &Facts, sections: &[Section]) -> Result<String> {
    let colours: String = palette().into_iter().map(|c| hex(c).trim_start_matches('#').to_owned()).collect();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Attention over temperatures</title>\n<style>\n{CSS}</style>\n</head>\n<body data-palette=\"{colours}\">\n"
    );
    page.push_str(
        "<h1>softmax(q k<sup>T</sup> · scale / temperature) v</h1>\n\
         <p>Attention of real models, computed by WGSL shaders on this machine's adapter at several temperatures. Below 1 the \
         softmax sharpens towards the best key, above 1 it flattens towards all of them. Scale and temperature are one factor \
         on q, so that no temperature costs anything or compiles anything new.</p>\n",
    );
    let _ = write!(
        page,
        "<dl>\n<dt>adapter</dt><dd>{}</dd>\n<dt>driver</dt><dd>{}</dd>\n<dt>shader variants</dt><dd>{}</dd>\n\
         <dt>made by</dt><dd><code>{}</code></dd>\n</dl>\n",
        escape(&facts.adapter),
        escape(&facts.driver),
        facts.compiled,
        escape(&facts.command)
    );
    table(&mut page, sections);
    legend(&mut page);
    for section in sections {
        draw(&mut page, section)?;
    }
    let _ = write!(
        page,
        "<div id=\"readout\" role=\"status\"></div>\n<script>\n{JS}</script>\n</body>\n</html>\n"
    );
    Ok(page)
}

fn table(page: &mut String, sections: &[Section]) {
    let mut kernels: Vec<&str> = sections.iter().map(|s| s.kernel.as_str()).collect();
    kernels.dedup();
    page.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>capture</th><th>temperature</th><th>mean entropy</th>\
         <th>max error</th><th>of bound</th><th>time</th></tr></thead>\n",
    );
    for section in sections {
        page.push_str("<tbody>\n");
        for m in &section.measured {
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{:.3} nats</td><td>{:.1e}</td><td{}>{:.1} %</td><td>{:.2} ms</td></tr>",
                escape(&section.title),
                m.temperature,
                m.mean_entropy,
                m.comparison.max_abs,
                if m.comparison.passes() { "" } else { " class=\"wrong\"" },
                m.comparison.worst * 100.0,
                m.time.as_secs_f64() * 1e3
            );
        }
        page.push_str("</tbody>\n");
    }
    let _ = write!(
        page,
        "</table></div>\n<p class=\"soft\">Error: {ERRORS}. Time: {TIMED}. Kernels: {}.</p>\n",
        kernels.into_iter().map(escape).collect::<Vec<_>>().join("; ")
    );
}

fn legend(page: &mut String) {
    let stops: Vec<String> = (0..=16).map(|n| hex(colour(f64::from(n) / 16.0))).collect();
    let _ = write!(
        page,
        "<div class=\"legend\"><div class=\"bar\" style=\"background:linear-gradient(90deg,{})\"></div><div class=\"marks\">",
        stops.join(",")
    );
    for p in LEGEND {
        let _ = write!(page, "<span style=\"left:{:.1}%\">{p}</span>", p.sqrt() * 100.0);
    }
    page.push_str(
        "</div></div>\n<p class=\"soft\">Rows are queries, columns keys; keys that a query does not see are left empty. Each \
         probability is exp(score − lse), with the score in float64 and the log-sum-exp from the GPU, on a square-root scale. \
         Point at a square for its numbers.</p>\n",
    );
}

fn draw(page: &mut String, section: &Section) -> Result<()> {
    let tokens = serde_json::to_string(&section.tokens).map_err(|e| Fail::usage(e.to_string()))?;
    let _ = write!(
        page,
        "<section data-tokens=\"{}\">\n<h2>{}</h2>\n<p class=\"soft\">{}</p>\n",
        escape(&tokens),
        escape(&section.title),
        escape(section.about)
    );
    let labels: Vec<String> = (0..)
        .zip(&section.tokens)
        .filter(|(n, token)| **token != n.to_string())
        .map(|(_, token)| escape(token))
        .collect();
    if !labels.is_empty() {
        let _ = writeln!(
            page,
            "<details class=\"soft\"><summary>Labels of positions</summary>{}</details>",
            labels.join(" · ")
        );
    }
    for head in &section.heads {
        let _ = write!(page, "<h3>{}</h3>\n<div class=\"row\">\n", escape(&head.name));
        for ((map, m), entropy) in head.maps.iter().zip(&section.measured).zip(&head.entropy) {
            let mean = entropy.iter().map(|&x| f64::from(x)).sum::<f64>() / entropy.len().max(1) as f64;
            let caption = format!("temperature {}<br>entropy {mean:.2} nats", m.temperature);
            let _ = writeln!(
                page,
                "<figure><img class=\"map\" alt=\"{}: attention at temperature {}\" style=\"aspect-ratio:{}/{}\" src=\"{}\">\
                 <figcaption>{caption}</figcaption></figure>",
                escape(&head.name),
                m.temperature,
                map.columns,
                map.rows,
                map.data_uri()?
            );
        }
        page.push_str("</div>\n");
        let temperatures: Vec<f32> = section.measured.iter().map(|m| m.temperature).collect();
        plot(page, head, &temperatures);
    }
    page.push_str("</section>\n");
    Ok(())
}

/// Entropy of each row, one line for each temperature.
fn plot(page: &mut String, head: &Head, temperatures: &[f32]) {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 150.0;
    let most = (head.keys.max(2) as f64).ln();
    let rows = head.visible.len().max(2);
    let x = |row: usize| 44.0 + row as f64 / (rows - 1) as f64 * (WIDTH - 150.0);
    let y = |nats: f64| 14.0 + (1.0 - (nats / most).clamp(0.0, 1.0)) * (HEIGHT - 44.0);
    let _ = writeln!(
        page,
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"entropy of each row\">\
         <path class=\"axis\" d=\"M44 {0:.1}V{1:.1}H{2:.1}\"/>\
         <text x=\"38\" y=\"{3:.1}\" text-anchor=\"end\">0</text>\
         <text x=\"38\" y=\"{4:.1}\" text-anchor=\"end\">{most:.1}</text>\
         <text x=\"44\" y=\"{5:.1}\">entropy in nats (from the GPU) of query 0 to {6}</text>",
        y(most),
        y(0.0),
        x(rows - 1),
        y(0.0) + 4.0,
        y(most) + 4.0,
        y(0.0) + 20.0,
        rows - 1
    );
    let line = |class: &str, style: &str, points: Vec<(usize, f64)>| {
        let points: Vec<String> =
            points.into_iter().map(|(row, nats)| format!("{:.1},{:.1}", x(row), y(nats))).collect();
        format!("<polyline class=\"{class}\" style=\"{style}\" points=\"{}\"/>", points.join(" "))
    };
    let uniform = head.visible.iter().map(|&n| (n.max(1) as f64).ln()).enumerate().collect();
    let _ = writeln!(page, "{}", line("most", "stroke-width:1", uniform));
    for (n, (entropy, temperature)) in head.entropy.iter().zip(temperatures).enumerate() {
        let style = format!("stroke:var(--t{})", n.min(4));
        let points = entropy.iter().map(|&nats| f64::from(nats)).enumerate().collect();
        // The legend has the hottest on top, as the lines are.
        let at = 20.0 + 19.0 * (temperatures.len() - 1 - n) as f64;
        let middle = at - 4.0;
        let _ = writeln!(
            page,
            "{}<path style=\"{style};stroke-width:3\" d=\"M548 {middle:.1}h16\"/>\
             <text x=\"570\" y=\"{at:.1}\">at {temperature}</text>",
            line("", &style, points),
        );
    }
    let at = 20.0 + 19.0 * temperatures.len() as f64;
    let _ = writeln!(
        page,
        "<path class=\"most\" d=\"M548 {0:.1}h16\"/><text x=\"570\" y=\"{1:.1}\">uniform</text></svg>",
        at - 4.0,
        at
    );
}
