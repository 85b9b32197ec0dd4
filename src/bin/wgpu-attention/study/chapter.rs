//! A chapter of the study, whatever it is written to: words, plots and the tables that back them.

use crate::plot::Plot;

/// A chapter in reading order.
#[derive(Debug)]
pub(super) struct Chapter {
    pub title: &'static str,
    pub parts: Vec<Part>,
}

#[derive(Debug)]
pub(super) enum Part {
    /// A paragraph, as HTML of our own.
    Text(String),
    /// Formulas, as they are typed.
    Formula(&'static str),
    /// Plots that belong side by side.
    Plots(Vec<Plot>),
    Table(Table),
}

/// Numbers, as text.
#[derive(Debug)]
pub(super) struct Table {
    pub caption: String,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl Chapter {
    pub(super) fn new(title: &'static str) -> Self {
        Chapter { title, parts: Vec::new() }
    }

    pub(super) fn text(mut self, html: impl Into<String>) -> Self {
        self.parts.push(Part::Text(html.into()));
        self
    }

    pub(super) fn formula(mut self, text: &'static str) -> Self {
        self.parts.push(Part::Formula(text));
        self
    }

    pub(super) fn plots(mut self, plots: impl IntoIterator<Item = Plot>) -> Self {
        self.parts.push(Part::Plots(plots.into_iter().collect()));
        self
    }

    pub(super) fn table<const N: usize>(
        mut self,
        caption: impl Into<String>,
        head: [&'static str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) -> Self {
        let rows = rows.into_iter().map(Vec::from).collect();
        self.parts.push(Part::Table(Table { caption: caption.into(), head: head.to_vec(), rows }));
        self
    }
}
