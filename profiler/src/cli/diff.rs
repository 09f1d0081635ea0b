//! `heapbpf diff`: what grew between two profiles.

use std::path::Path;

use anyhow::Result;

use super::args::DiffArgs;
use super::exit;
use super::output::{Access, Output};
use super::profiles::read_whole;
use super::terminal;
use crate::report::ReportError;
use crate::report::diff::{self, Diff, Drawing, Side};

pub(super) fn run(args: &DiffArgs) -> Result<u8> {
    // Mistyped output paths are reported before the profiles are read.
    let outputs = args.output.iter().map(|path| open(path)).collect::<Result<Vec<_>>>()?;
    let (before, after) = (read_whole(&args.before, args.quiet)?, read_whole(&args.after, args.quiet)?);
    let [before_name, after_name] = [&args.before, &args.after].map(|path| path.display().to_string());
    let diff = Diff::new(
        Side { name: &before_name, profile: &before.profile },
        Side { name: &after_name, profile: &after.profile },
    );
    let drawing = Drawing { widths: args.widths, icicle: args.icicle };
    let (mut to_stdout, mut files) = (false, String::new());
    for output in outputs {
        let format = output.format();
        match output.write(|out| Ok(diff.write(format, args.view, drawing, out)?))? {
            Some(path) => files.push_str(&format!("\n{} (growth, {})\n", path.display(), format.description())),
            None => to_stdout = true,
        }
    }
    if !args.quiet {
        let (width, colour) = terminal::layout();
        let text = diff::table(&diff, args.view, args.top, args.threshold, width, colour) + &files;
        terminal::print(text.trim_end(), to_stdout)?;
    }
    let is_damaged = before.is_damaged || after.is_damaged;
    Ok(if diff.incomplete() || is_damaged { exit::INCOMPLETE } else { exit::DONE })
}

/// Opens an output, and rejects formats that cannot hold a difference.
fn open(path: &Path) -> Result<Output> {
    let output = Output::open(path, None, Access::All)?;
    if !diff::FORMATS.contains(&output.format()) {
        return Err(output.refuse(&ReportError::NoDifference(output.format())));
    }
    Ok(output)
}
