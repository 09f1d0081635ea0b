//! The format of valgrind's massif: live bytes over time, with the stacks that hold them at the peak, at dumps and marks, and at the
//! end. Times are in milliseconds since the profile's span began. It is text by lines, and readers take `#` for a comment.

mod timeline;
mod tree;

use std::io;

use super::describe;
use super::text::printable;
use super::valgrind::{Nodes, command};
use super::{Presentation, Report, ReportError};
use crate::model::Profile;
use timeline::{Detail, Point, timeline};
use tree::Tree;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Massif;

impl Report for Massif {
    /// Always of live bytes: the format has no word for another quantity.
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        for line in description(profile) {
            writeln!(out, "desc: {}", one_line(&line))?;
        }
        writeln!(out, "cmd: {}", one_line(&command(profile)))?;
        writeln!(out, "time_unit: ms")?;
        let mut nodes = Nodes::default();
        for (number, point) in timeline(profile).into_iter().enumerate() {
            let Point { time_ms, bytes, detail } = point;
            let (kind, tree) = match detail {
                Detail::None => ("empty", None),
                Detail::Callsites(held) => {
                    ("detailed", Some(Tree::of_callsites(profile, presentation, &mut nodes, held)))
                }
                Detail::Peak(held) => ("peak", Some(Tree::of_callsites(profile, presentation, &mut nodes, held))),
                Detail::PeakOfProcesses(held) => ("peak", Some(Tree::of_processes(profile, &mut nodes, held))),
            };
            // What is rounded below must add up above.
            let bytes = tree.as_ref().map_or(bytes, Tree::bytes);
            writeln!(out, "#-----------\nsnapshot={number}\n#-----------\ntime={time_ms}\nmem_heap_B={bytes}")?;
            writeln!(out, "mem_heap_extra_B=0\nmem_stacks_B=0\nheap_tree={kind}")?;
            if let Some(tree) = tree {
                tree.write(|node| one_line(&nodes.text(profile, node)), out)?;
            }
        }
        Ok(())
    }
}

/// What has to be said of the profile before its numbers.
fn description(profile: &Profile) -> Vec<String> {
    vec![format!("heapbpf; {}", describe::taken(profile))]
}

/// A text that does not change the shape of the file.
fn one_line(text: &str) -> String {
    printable(text).replace('#', "_")
}
