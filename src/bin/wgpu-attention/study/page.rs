//! The study as a page and as text.

use super::chapter::{Chapter, Part, Table};
use super::report::Facts;
use crate::fail::Result;
use crate::heatmap::escape;
use crate::{html, plot};
use std::fmt::Write;

const INTRODUCTION: &str = include_str!("introduction.html");
const CSS: &str = include_str!("page.css");

/// The page. Writing into a `String` cannot fail, so that results of `write!` are dropped.
pub(super) fn html(facts: &Facts, chapters: &[Chapter]) -> String {
    let mut page = html::begin("How sharp is the softmax?", &[html::CSS, plot::CSS, CSS], "");
    page.push_str(INTRODUCTION);
    page.push_str(&html::facts(&facts.list()));
    page.push_str("<ol class=\"contents\">\n");
    for (n, chapter) in (1..).zip(chapters) {
        let _ = writeln!(page, "<li><a href=\"#chapter-{n}\">{}</a></li>", escape(chapter.title));
    }
    page.push_str("</ol>\n");
    let source = format!("{} — {}, {}", facts.command, facts.adapter, facts.driver);
    for (n, chapter) in (1..).zip(chapters) {
        let _ = writeln!(page, "<section>\n<h2 id=\"chapter-{n}\">{n}. {}</h2>", escape(chapter.title));
        for part in &chapter.parts {
            match part {
                Part::Text(text) => {
                    let _ = writeln!(page, "<p>{text}</p>");
                }
                Part::Formula(text) => {
                    let _ = writeln!(page, "<pre class=\"formula\">{}</pre>", escape(text));
                }
                Part::Plots(plots) => {
                    page.push_str("<div class=\"charts\">\n");
                    for plot in plots {
                        page.push_str(&plot.html(&source));
                    }
                    page.push_str("</div>\n");
                }
                Part::Table(table) => table_html(&mut page, table),
            }
        }
        page.push_str("</section>\n");
    }
    page + html::END
}

fn table_html(page: &mut String, table: &Table) {
    let caption = escape(&table.caption);
    let _ = write!(
        page,
        "<p class=\"soft\">{caption}</p>\n<div class=\"scroll\"><table aria-label=\"{caption}\">\n<thead><tr>"
    );
    for name in &table.head {
        let _ = write!(page, "<th scope=\"col\">{}</th>", escape(name));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<td>{}</td>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

/// The tables, for a terminal.
pub(super) fn text(chapters: &[Chapter], out: &mut impl std::io::Write) -> Result<()> {
    for (n, chapter) in (1..).zip(chapters) {
        writeln!(out, "\n{n}. {}", chapter.title)?;
        for part in &chapter.parts {
            if let Part::Table(table) = part {
                table_text(table, out)?;
            }
        }
    }
    Ok(())
}

fn table_text(table: &Table, out: &mut impl std::io::Write) -> Result<()> {
    let cells =
        |n: usize| table.rows.iter().filter_map(move |row| row.get(n)).map(|cell| cell.chars().count());
    let widths: Vec<usize> = (0..)
        .zip(&table.head)
        .map(|(n, name)| cells(n).max().unwrap_or(0).max(name.chars().count()))
        .collect();
    writeln!(out, "\n   {}", table.caption)?;
    let head: Vec<String> = table.head.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&head).chain(&table.rows) {
        let mut line = String::new();
        for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // The first column is names, the others are numbers.
            let _ = if n == 0 { write!(line, "   {cell:width$}") } else { write!(line, "  {cell:>width$}") };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
