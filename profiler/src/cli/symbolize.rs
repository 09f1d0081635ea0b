//! Command `heapbpf symbolize`: adds names later, elsewhere. Reports in other formats are written by `convert`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use heapbpf_base::address::{FileOffset, LinkAddr};
use heapbpf_base::ids::ModuleId;
use heapbpf_base::shown::Shown;
use heapbpf_linux::files::{self, Replacement};
use heapbpf_report::text::counted as count_of;
use heapbpf_report::{Format, PprofFile, PprofLine, PprofMapping};
use profiler_common::limits::PAGE_BYTES;

use super::convert::{convert, report_damage};
use super::exit::{self, usage};
use super::naming::Naming;
use super::output::{Access, Output, Written, is_recording};
use super::report_args::ConvertArgs;
use super::terminal::{self, say};
use crate::object::elf::Segment;
use crate::recording::block::MAGIC;
use crate::recording::entry::ModuleFacts;
use crate::recording::names::{self, RecordedNames};
use crate::recording::read;
use crate::recording::span::{ReplayedSpan, Span};
use crate::recording::write::with_names;
use crate::snapshot::Scope;
use crate::symbolize::Resolve;
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;
use crate::symbolize::sources::Sources;
use crate::symbolize::trim::Trim;

pub(super) fn symbolize(args: &ConvertArgs) -> Result<u8> {
    if start_of(&args.recording).is_ok_and(|start| start.starts_with(&GZIP_MAGIC)) {
        return pprof(args);
    }
    let (recordings, others): (Vec<PathBuf>, Vec<PathBuf>) =
        args.output.output.iter().cloned().partition(|path| is_recording(path) && args.output.format.is_none());
    if recordings.is_empty() {
        return convert(args, Naming::Again);
    }
    let sources = args.symbols.sources(args.output.quiet)?;
    for path in &recordings {
        add_names(&args.recording, path, &sources)?;
        if !args.output.quiet {
            say(&format!("heapbpf: wrote {} (recording)", Shown::of(path)));
        }
    }
    if others.is_empty() {
        return Ok(exit::DONE);
    }
    let mut args = args.clone();
    args.output.output = others;
    convert(&args, Naming::Again)
}

/// Magic number of gzip (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

fn start_of(path: &Path) -> io::Result<[u8; MAGIC.len()]> {
    let mut start = [0; MAGIC.len()];
    files::open(path)?.read_exact(&mut start)?;
    Ok(start)
}

/// Adds names to a pprof file, whose samples stay as they are.
fn pprof(args: &ConvertArgs) -> Result<u8> {
    let name = Shown::of(&args.recording);
    let outputs = args.output.output.iter().map(|path| Output::open(path, args.output.format, Access::All));
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    if let Some(other) = outputs.iter().find(|output| output.format() != Format::Pprof) {
        return Err(usage(format!(
            "cannot convert the pprof file `{name}` to `{}`: only pprof output is possible; use `-o x.pb.gz`",
            other.format()
        )));
    }
    if outputs.is_empty() {
        return Err(usage(format!("`{name}` is a pprof file; name an output, as in `-o named.pb.gz`")));
    }
    let read = || PprofFile::read(files::open(&args.recording).map_err(|error| error.to_string())?);
    let mut file = read().map_err(|error| anyhow!("cannot read `{name}`: {error}"))?;
    let named = name_pprof(&mut file, &args.symbols.sources(args.output.quiet)?);
    let mut written = Written::default();
    for output in outputs {
        written.write(output, |_, out| Ok(file.write(out)?))?;
    }
    if !args.output.quiet {
        let text = format!("named {}{}", count_of(named as u64, "location"), written.list(""));
        terminal::print(&text, written.to_stdout)?;
    }
    Ok(exit::DONE)
}

/// Adds names to a pprof file. Returns the number of locations that received names.
fn name_pprof(file: &mut PprofFile, sources: &Sources) -> usize {
    let mappings = file.mappings();
    let resolver = Resolver::sandboxed(Interrupt::default(), sources.clone());
    let facts = |(id, mapping): (ModuleId, &PprofMapping)| ModuleFacts {
        id,
        path: mapping.path.clone(),
        build_id: mapping.build_id.clone(),
        file: None,
        code: Vec::new(),
    };
    let mut facts: Vec<ModuleFacts> = (0..).map(ModuleId).zip(&mappings).map(facts).collect();
    let modules = names::find(&facts, true).modules;
    let mut order: Vec<usize> = (0..mappings.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(mappings[index].weight));
    let wanted: Vec<_> = order.iter().map(|&index| (facts[index].id, &**modules.get(facts[index].id))).collect();
    resolver.find_more(&wanted);
    for (facts, mapping) in facts.iter_mut().zip(&mappings) {
        if modules.get(facts.id).image().is_ok() {
            continue;
        }
        // The mapping of a module's only code begins at the page of the code's first address.
        if let [code] = resolver.debug_code(modules.get(facts.id))[..] {
            let address = LinkAddr(code.address.0 / PAGE_BYTES * PAGE_BYTES);
            let (offset, size_bytes) = (FileOffset(mapping.file_offset), mapping.end.saturating_sub(mapping.start));
            facts.code.push(Segment { offset, size_bytes, address, executable: true });
        }
    }
    let modules = names::find(&facts, true).modules;
    let open = file.open();
    let mut named = 0;
    for (index, facts) in facts.iter().enumerate() {
        let open: Vec<_> = open.iter().filter(|location| location.mapping == index).copied().collect();
        let offsets: Vec<FileOffset> = open.iter().map(|location| FileOffset(location.file_offset)).collect();
        let found = resolver.resolve(facts.id, modules.get(facts.id), &offsets);
        for (location, frames) in open.into_iter().zip(found) {
            let lines = frames.iter().filter_map(|frame| {
                let file = frame.file.as_deref().unwrap_or_default();
                Some(PprofLine { function: frame.function.as_deref()?, file, line: frame.line.unwrap_or(0) })
            });
            let lines: Vec<_> = lines.collect();
            if !lines.is_empty() {
                file.name(location, &lines);
                named += 1;
            }
        }
    }
    named
}

/// Writes a copy of a recording with more names.
fn add_names(recording: &Path, output: &Path, sources: &Sources) -> Result<()> {
    let name = Shown::of(recording);
    if start_of(recording).ok() != Some(MAGIC) {
        return Err(usage(format!("`{name}` is not a recording, so none can be made of it; name another output")));
    }
    let mut reading = read::read(recording).with_context(|| format!("`{name}`"))?;
    let resolver = Resolver::sandboxed(Interrupt::default(), sources.clone());
    let mut names = RecordedNames::new(resolver).again();
    let spanned = ReplayedSpan::read(&mut reading, Span::default(), false, &mut names);
    let spanned = spanned.map_err(|error| anyhow!("`{name}`: {error}"))?;
    if let Some(damage) = reading.damage() {
        report_damage(recording, damage, &spanned);
        return Err(anyhow!("`{name}` is damaged; write another format"));
    }
    let snapshot = spanned.snapshot(names::find(spanned.modules(), true).modules);
    // Symbolizing downloads debug information that the profile lacks.
    let symbolized = profile(&snapshot, Scope::Whole, &names, Trim { ends: false, interpreter: true });
    let mut names = names::names(&snapshot, &names);
    names.symbolization = symbolized.health.symbolization;
    let failed = || format!("cannot write `{}`", Shown::of(output));
    let new = Replacement::create(output, Access::Owner as u32).with_context(failed)?;
    with_names(&mut files::open(recording)?, &mut new.file(), &names).with_context(failed)?;
    new.commit().with_context(failed)?;
    Ok(())
}
