//! Output files of a recording, and their names if the user has given none.

use std::path::{Path, PathBuf};

use anyhow::Result;
use heapbpf_base::ids::Pid;
use heapbpf_base::shown::Shown;
use heapbpf_linux::proc::process;
use heapbpf_report::Format;

use crate::cli::args::RecordArgs;
use crate::cli::exit::usage;
use crate::cli::output::{self, Access, Output, is_recording, recording_path};

/// Opens the reports of `-o`, or a flame graph and an HTML report in the current directory.
pub(super) fn outputs(args: &RecordArgs, pids: &[Pid]) -> Result<Vec<Output>> {
    let paths = &args.common.output.output;
    if paths.iter().filter(|path| is_recording(path)).count() > 1 {
        return Err(usage("`-o` names more than one recording (`.heapbpf`), and they would be identical: name one"));
    }
    output::check_distinct(paths)?;
    match recording_path(&args.common.output.output) {
        Some(path) => output::check_recording(path)?,
        None if args.max_size.is_some() => {
            return Err(usage("`--max-size` limits a recording: name one, as in `-o x.heapbpf`"));
        }
        None => {}
    }
    let is_file = |path: &PathBuf| path != Path::new("-") && !is_recording(path);
    if args.dumps.any() && !paths.is_empty() && !paths.iter().any(is_file) {
        return Err(usage("dumps are written to files beside a report's file: name one, as in `-o heap.svg`"));
    }
    let format = args.common.output.format;
    if args.dumps.dump_at_peak && !paths.is_empty() && !paths.iter().any(|path| is_file(path) && has_peak(path, format))
    {
        return Err(usage("a Parquet table has windows, and no peak: name another file, as in `-o heap.svg`"));
    }
    let access = Access::of_report(args.common.output.source);
    let open = |path: &Path| Output::open_for_profile(path, args.common.output.format, access);
    if paths.is_empty() && args.top.is_some() {
        return Ok(Vec::new());
    }
    if paths.is_empty() {
        let formats = args.common.output.format.map_or(vec![Format::Flamegraph, Format::Html], |format| vec![format]);
        let paths = output::new_paths(&default_name(args, pids), &formats);
        return paths.iter().map(|path| open(path)).collect();
    }
    paths.iter().filter(|path| !is_recording(path)).map(|path| open(path)).collect()
}

/// Whether a report of the peak is written. A table of windows would count the peak besides them.
pub(super) fn has_peak(path: &Path, forced: Option<Format>) -> bool {
    forced.or_else(|| Format::of_path(path).ok()) != Some(Format::Parquet)
}

fn default_name(args: &RecordArgs, pids: &[Pid]) -> String {
    let name = match (pids, args.command.first()) {
        ([pid], _) => format!("{}-{pid}", process::comm(*pid).unwrap_or_default()),
        ([], Some(command)) => Shown::of(Path::new(command).file_name().unwrap_or(command)).to_string(),
        ([], None) if args.all => "all".to_owned(),
        ([], None) => {
            let patterns = args.cmdline.iter().map(ToString::to_string);
            patterns.chain(args.cgroup.iter().map(ToString::to_string)).collect::<Vec<_>>().join("-")
        }
        (pids, _) => format!("{}-processes", pids.len()),
    };
    output::default_name(&name)
}
