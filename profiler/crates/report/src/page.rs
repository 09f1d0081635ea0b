//! Text for terminals: styled lines, and tables that fit the width. The only place that adds colours, to lines without any.

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, Width, presets};

use super::text;

const WIDTH_MIN: usize = 80;
pub const HEADING: Style = Style::new().bold();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const PLAIN: Style = Style::new();

pub struct Page {
    pub text: String,
    pub(super) width: Option<usize>,
    colour: bool,
}

impl Page {
    /// `width` is the terminal's, in columns; `colour` allows ANSI escapes.
    pub fn new(width: Option<usize>, colour: bool) -> Self {
        Self { text: String::new(), width: width.map(|width| width.max(WIDTH_MIN)), colour }
    }

    /// The line may contain what others have named: it gets no colours but its style, and nothing that controls a terminal.
    pub fn line(&mut self, style: Style, line: &str) {
        let line = text::plain(line);
        if self.colour && style != PLAIN {
            self.text.push_str(&format!("{style}{line}{style:#}\n"));
        } else {
            self.text.push_str(&line);
            self.text.push('\n');
        }
    }

    /// Breaks the text at blanks; later lines are indented by `indent` and two columns.
    pub(super) fn wrapped(&mut self, style: Style, indent: &str, text: &str) {
        let later = format!("{indent}  ");
        let options = textwrap::Options::new(self.width.unwrap_or(usize::MAX));
        let options = options.initial_indent(indent).subsequent_indent(&later);
        for line in textwrap::wrap(text, options) {
            self.line(style, &line);
        }
    }

    pub fn gap(&mut self) {
        self.text.push('\n');
    }

    pub(super) fn table(&mut self, columns: &[Column], rows: Vec<Vec<String>>) {
        let indent = "  ";
        let width = self.width.map(|width| width - indent.len());
        for line in table_lines(columns, rows, width) {
            self.line(PLAIN, &format!("{indent}{line}"));
        }
    }
}

const GAP: u16 = 2;
const LAST_WIDTH_MIN: u16 = 16;

#[derive(Clone, Copy)]
pub enum Column {
    Left(&'static str),
    Right(&'static str),
}

impl Column {
    fn parts(self) -> (&'static str, CellAlignment) {
        match self {
            Self::Left(heading) => (heading, CellAlignment::Left),
            Self::Right(heading) => (heading, CellAlignment::Right),
        }
    }
}

/// At most as wide as the terminal; the last column is truncated if necessary.
pub fn table_lines(columns: &[Column], rows: Vec<Vec<String>>, width: Option<usize>) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // Truncate cells at the width, not at the blank before it.
    table.set_delimiter('\0');
    let headings = columns.iter().map(|column| column.parts().0);
    if headings.clone().any(|heading| !heading.is_empty()) {
        table.set_header(headings);
    }
    for cells in rows {
        let mut row = Row::from(cells);
        row.max_height(1);
        table.add_row(row);
    }
    for (column, kind) in table.column_iter_mut().zip(columns) {
        column.set_cell_alignment(kind.parts().1);
        column.set_padding((0, GAP)).set_constraint(ColumnConstraint::ContentWidth);
    }
    if let Some(width) = width {
        fit(&mut table, u16::try_from(width).unwrap_or(u16::MAX));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

fn fit(table: &mut Table, width: u16) {
    table.set_width(width);
    let widths = table.column_max_content_widths();
    let Some((&last, others)) = widths.split_last() else { return };
    let taken = others.iter().fold(0_u16, |sum, width| sum.saturating_add(*width).saturating_add(GAP));
    let room = width.saturating_sub(taken).max(LAST_WIDTH_MIN);
    if last > room
        && let Some(column) = table.column_mut(others.len())
    {
        column.set_padding((0, 0)).set_constraint(ColumnConstraint::Absolute(Width::Fixed(room)));
    }
}
