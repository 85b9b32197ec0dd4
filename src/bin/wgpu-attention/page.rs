//! The demo's page: one HTML file that asks for nothing else.

use crate::demo::{ERRORS, Head, Section, TIMED};
use crate::fail::{Fail, Result};
use crate::heatmap::{LEGEND, colour, escape, hex, palette};
use crate::html;
use crate::plot::{self, Axis, Line, Plot};
use crate::study::PAGE;
use std::fmt::Write;

/// What the page says of the run.
pub(crate) struct Facts {
    pub adapter: String,
    pub driver: String,
    /// Shader variants compiled for all of it.
    pub compiled: usize,
    pub command: String,
    /// Whether the study's page lies beside this one.
    pub study: bool,
}

const JS: &str = include_str!("page.js");

/// The page. Writing into a `String` cannot fail, so that results of `write!` are dropped.
pub(crate) fn html(facts: &Facts, sections: &[Section]) -> Result<String> {
    let colours: String = palette().into_iter().map(|c| hex(c).trim_start_matches('#').to_owned()).collect();
    let mut page = html::begin(
        "Attention over temperatures",
        &[html::CSS, plot::CSS],
        &format!(" data-palette=\"{colours}\""),
    );
    page.push_str(
        "<h1>softmax(q k<sup>T</sup> · scale / temperature) v</h1>\n\
         <p>Attention of real models, computed by WGSL shaders on this machine's adapter at several temperatures. Below 1 the \
         softmax sharpens towards the best key, above 1 it flattens towards all of them. Scale and temperature are one factor \
         on q, so that no temperature costs anything or compiles anything new.</p>\n",
    );
    let study = format!("<code>wgpu-attention study</code> measures it and writes <code>{PAGE}</code>");
    let study = if facts.study { format!("<a href=\"{PAGE}\">The study</a> measures it") } else { study };
    let _ = writeln!(
        page,
        "<p>Why the scale is 1/√d, and what every temperature from 0.01 to 100 does: {study}.</p>"
    );
    page.push_str(&html::facts(&[
        ("adapter", facts.adapter.clone()),
        ("driver", facts.driver.clone()),
        ("shader variants", facts.compiled.to_string()),
        ("made by", facts.command.clone()),
    ]));
    table(&mut page, sections);
    legend(&mut page);
    for section in sections {
        draw(&mut page, section)?;
    }
    let _ =
        write!(page, "<div id=\"readout\" role=\"status\"></div>\n<script>\n{JS}</script>\n{}", html::END);
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
        page.push_str(&plot(head, &temperatures).html(""));
    }
    page.push_str("</section>\n");
    Ok(())
}

/// Entropy of each row, one line for each temperature.
fn plot(head: &Head, temperatures: &[f32]) -> Plot {
    let most = (head.keys.max(2) as f64).ln();
    let points = |rows: &mut dyn Iterator<Item = f64>| {
        rows.enumerate().map(|(row, nats)| [row as f64, nats]).collect::<Vec<_>>()
    };
    let uniform = points(&mut head.visible.iter().map(|&n| (n.max(1) as f64).ln()));
    let lines = head.entropy.iter().zip(temperatures).map(|(entropy, temperature)| {
        let entropy = points(&mut entropy.iter().map(|&nats| f64::from(nats)));
        Line::plain(format!("at temperature {temperature}"), entropy)
    });
    Plot::new(
        format!("{}: entropy of each row, from the GPU", head.name),
        Axis::linear("query"),
        Axis::linear("entropy, nats").range(0.0, most),
    )
    .lines(lines)
    .line(Line::theory("uniform over the keys that the query sees", uniform))
}
