//! Growth between two profiles, by callsite.

mod comparison;
mod describe;
mod flamegraph;
mod html;
mod json;
mod table;

use std::io;

use super::{Format, ReportError, View};

pub use comparison::Delta;
pub use comparison::{Diff, Side};
pub use describe::signed;
pub use flamegraph::Drawing;
pub use flamegraph::Widths;
pub use table::table;

pub const FORMATS: [Format; 4] = [Format::Flamegraph, Format::Html, Format::Folded, Format::Json];

impl Diff<'_> {
    pub fn write(
        &self,
        format: Format,
        view: View,
        drawing: Drawing,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        match format {
            Format::Flamegraph => flamegraph::write(self, view, drawing, out),
            Format::Html => html::write(self, view, drawing, out),
            Format::Folded => flamegraph::write_folded(self, view, out),
            Format::Json => json::write(self, view, out),
            _ => Err(ReportError::NoDifference(format)),
        }
    }
}
