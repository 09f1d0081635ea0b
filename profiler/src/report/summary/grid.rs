//! Tables without lines, at most as wide as the terminal.
//!
//! Owns the use of comfy-table. The last column is the one that gives way.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, Width, presets};

/// Blanks between columns.
const GAP: u16 = 2;

/// Columns that the last one keeps however narrow the terminal is.
const LAST_WIDTH_MIN: u16 = 16;

/// A column: its heading, and where its cells go.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    /// For names.
    Left(&'static str),
    /// For numbers.
    Right(&'static str),
}

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Self::Left(heading) | Self::Right(heading) => heading,
        }
    }

    fn alignment(self) -> CellAlignment {
        match self {
            Self::Left(_) => CellAlignment::Left,
            Self::Right(_) => CellAlignment::Right,
        }
    }
}

/// The table's lines: the headings, where a column has one, then a line per row.
pub(crate) fn lines(columns: &[Column], rows: Vec<Vec<String>>, width: Option<usize>) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    // Cells are cut where the room ends and not at the blank before.
    table.set_delimiter('\0');
    if columns.iter().any(|column| !column.heading().is_empty()) {
        table.set_header(columns.iter().map(|column| column.heading()));
    }
    for cells in rows {
        let mut row = Row::from(cells);
        row.max_height(1);
        table.add_row(row);
    }
    for (column, kind) in table.column_iter_mut().zip(columns) {
        column.set_cell_alignment(kind.alignment());
        column.set_padding((0, GAP)).set_constraint(ColumnConstraint::ContentWidth);
    }
    if let Some(width) = width {
        fit(&mut table, u16::try_from(width).unwrap_or(u16::MAX));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Gives the last column what the others leave.
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
