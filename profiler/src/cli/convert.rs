//! Command `heapbpf convert`: reports from recordings and JSON reports. The first bytes of a file, not its name, determine its
//! kind.

use std::fs::{File, Metadata};
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use heapbpf_base::ids::LedgerId;
use heapbpf_base::shown::Shown;
use heapbpf_base::units::Amounts;
use heapbpf_ledger::model::Profile;
use heapbpf_ledger::totals::Movement;
use heapbpf_linux::files;
use heapbpf_linux::rights::Rights;
use heapbpf_report::filter::Filter;
use heapbpf_report::json::read::read as read_json;
use heapbpf_report::text::count;
use heapbpf_report::{Format, Presentation, heaptrack, summary};
use rustc_hash::FxHashMap;

use super::exit::{self, usage};
use super::naming::{Naming, add_names};
use super::output::{self, Access, Output, Written};
use super::report_args::ConvertArgs;
use super::source;
use super::terminal::{self, say};
use super::windows::Windows;
use crate::recording::block::MAGIC;
use crate::recording::names::{self, Found, RecordedNames};
use crate::recording::read::{self, Damage, ReadError, Reading};
use crate::recording::replay::late::LateFacts;
use crate::recording::span::{ReplayedSpan, Span, SpanError};
use crate::snapshot::{Scope, Snapshot, TargetState};
use crate::symbolize::Resolve;
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;
use crate::symbolize::sources::Sources;
use crate::symbolize::trim::{Trim, trim};

pub(super) fn convert(args: &ConvertArgs, naming: Naming) -> Result<u8> {
    if let (Some(from), Some(to)) = (args.from, args.to)
        && from >= to
    {
        return Err(usage(format!("`--from {from:?}` must be before `--to {to:?}`")));
    }
    // Mistyped output paths are reported before the recording is read.
    output::check_distinct(&args.output.output)?;
    let access = Access::of_report(args.output.source);
    let open = |path: &PathBuf| Output::open(path, args.output.format, access);
    let outputs = args.output.output.iter().map(open).collect::<Result<Vec<_>>>()?;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    if args.every.is_some() && outputs.iter().all(|output| output.format() != Format::Parquet) {
        return Err(usage(
            "`--every` divides Parquet files into windows; add an output such as `-o heap.parquet`".to_owned(),
        ));
    }
    let options = Options {
        naming,
        sources: args.symbols.sources(args.output.quiet)?,
        span: Span { from_ns: args.from.map(nanos), to_ns: args.to.map(nanos) },
        by_thread: args.presentation.by_thread(),
        trim: args.output.trims(),
        quiet: args.output.quiet,
        every_ns: args.every.map(nanos),
        events: outputs.iter().any(|output| output.format().needs_recording()),
    };
    let mut input = match read_report(&args.recording)? {
        None => read_recording(&args.recording, &options)?,
        Some((mut profile, author)) => {
            if naming == Naming::Again {
                add_names(&mut profile, &options.sources);
            }
            Input::of_report(from_report(args, profile, &outputs)?, author)
        }
    };
    input.judge(args.verdict.strict);
    input.select(&args.filter.filter());
    if args.output.source {
        input.embed_sources(args.output.quiet);
    }
    write(args, &options, &input, outputs)?;
    let is_complete = !input.profile.incomplete() && !input.is_damaged;
    Ok(if is_complete { exit::DONE } else { exit::INCOMPLETE })
}

/// Applies the options to a JSON report, which has totals without times, and rejects those that need a recording.
fn from_report(args: &ConvertArgs, mut profile: Profile, outputs: &[Output]) -> Result<Profile> {
    let name = Shown::of(&args.recording);
    let refuse = |reason: String| Err(usage(format!("`{name}` is a JSON report, {reason}")));
    for (option, given) in [("--from", args.from), ("--to", args.to), ("--every", args.every)] {
        if given.is_some() {
            return refuse(format!(
                "which has totals without times, so `{option}` cannot select from it; convert a recording (`-o x.heapbpf`)"
            ));
        }
    }
    if let Some(output) = outputs.iter().find(|output| output.format().needs_recording()) {
        let format = output.format().spec().name;
        return refuse(format!(
            "which has no single events, as `{format}` requires; convert a recording (`-o x.heapbpf`)"
        ));
    }
    let mut callsites = profile.targets.iter().flat_map(|target| &target.callsites).peekable();
    let has_no_threads = callsites.peek().is_some() && callsites.all(|callsite| callsite.thread.is_none());
    if args.presentation.by_thread() && has_no_threads {
        return refuse(
            "made without `--by thread`, so it does not separate threads; convert a recording (`-o x.heapbpf`), or profile with `--by thread`"
                .to_owned(),
        );
    }
    let what = args.output.trims();
    for callsite in profile.targets.iter_mut().flat_map(|target| &mut target.callsites) {
        callsite.stack = trim(&callsite.stack, &profile.frames, what).into_owned();
    }
    Ok(profile)
}

fn write(args: &ConvertArgs, options: &Options, input: &Input, outputs: Vec<Output>) -> Result<()> {
    let presentation = args.presentation.presentation();
    let shown = presentation.thinned(&input.profile);
    let mut written = Written::default();
    for output in outputs {
        written.write(output, |format, out| match (&input.events, &input.windows) {
            (Some(events), _) if format.needs_recording() => events.write(&args.recording, options, &presentation, out),
            (_, Some(windows)) if format == Format::Parquet => windows.write(args, options.span, &presentation, out),
            _ => Ok(format.write(&shown, &presentation, out)?),
        })?;
    }
    if args.output.quiet {
        return Ok(());
    }
    let (width, colour) = terminal::layout();
    let mut text = summary::summary(&input.profile, presentation.view, args.presentation.top(), width, colour);
    if let Some(folded_ns) = input.folded_until_ns {
        text.push_str(&format!("\nfolded until {}: `--from` and `--to` must not be earlier", clock(folded_ns)));
    }
    text.push_str(&written.list_of(&input.profile));
    Ok(terminal::print(&text, written.to_stdout)?)
}

/// Formats a time as `00:01:23`, rounded up to the next second, where windows can begin.
fn clock(ns: u64) -> String {
    let seconds = ns.div_ceil(1_000_000_000);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Maximum size of a JSON report. A report of 10,000 callsites with 40 frames each has a sixth of it.
const REPORT_BYTES_MAX: u64 = 512 << 20;
/// Size of the buffer, as for recordings that are read elsewhere.
const BUFFER_BYTES: usize = 1 << 18;
const MISSING_LISTED_MAX: usize = 5;

/// Default compression level of zstd.
const COMPRESSION_LEVEL: i32 = 3;

pub(super) struct Input {
    pub(super) profile: Profile,
    /// Rights of the user who can have written the file, and named any other file in it.
    author: Rights,
    /// Whether the file is damaged, and was read up to the damage.
    pub(super) is_damaged: bool,
    /// Time until which the recording has totals only, in nanoseconds since its start.
    folded_until_ns: Option<u64>,
    events: Option<EventNames>,
    windows: Option<Windows>,
}

impl Input {
    fn of_report(profile: Profile, author: Rights) -> Self {
        Self { profile, author, is_damaged: false, folded_until_ns: None, events: None, windows: None }
    }

    /// Embeds source lines that the users of the recorded programs, and the author of the file, may read.
    fn embed_sources(&mut self, quiet: bool) {
        if ![0, Rights::of_invoker().uid()].contains(&self.author.uid()) {
            // Another user could have written that root's program named a file.
            self.profile.targets.iter_mut().for_each(|target| target.facts.rights = None);
        }
        // A recording by root can name files of any user's programs.
        let others = if self.author.uid() == 0 { Rights::of_nobody() } else { self.author.clone() };
        source::embed(&mut self.profile, &others, quiet);
    }

    pub(super) fn judge(&mut self, strict: bool) {
        self.profile.strict = strict;
        if let Some(events) = &mut self.events {
            events.profile.strict = strict;
        }
    }

    pub(super) fn select(&mut self, filter: &Filter) {
        filter.apply(&mut self.profile);
        if let Some(events) = &mut self.events {
            events.select(filter);
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Options {
    naming: Naming,
    sources: Sources,
    span: Span,
    by_thread: bool,
    trim: Trim,
    quiet: bool,
    /// Length of windows.
    every_ns: Option<u64>,
    events: bool,
}

/// Rights of the user who can have written an open file: its name can lead to another one by now. A pipe belongs to the user who
/// created it.
fn author_of(found: &Metadata) -> Rights {
    const WRITTEN_BY_OTHERS: u32 = 0o022;
    let kind = found.file_type();
    let is_written_by_one = (kind.is_file() || kind.is_fifo()) && found.mode() & WRITTEN_BY_OTHERS == 0;
    if is_written_by_one { Rights::of_owner(found) } else { Rights::of_nobody() }
}

fn open(path: &Path) -> std::io::Result<(File, Rights)> {
    let file = files::open(path)?;
    let author = author_of(&file.metadata()?);
    Ok((file, author))
}

/// Reads the profile in a JSON report. Returns `None` for a recording, which is not read yet. A pipe is read once.
fn read_report(path: &Path) -> Result<Option<(Profile, Rights)>> {
    let read = || -> Result<Option<(Profile, Rights)>> {
        let (file, author) = open(path)?;
        let bytes = read_start(file)?;
        if bytes == MAGIC { Ok(None) } else { Ok(Some((parse(&bytes)?, author))) }
    };
    read().with_context(|| format!("cannot read a profile from `{}`", Shown::of(path)))
}

pub(super) fn read_whole(path: &Path, quiet: bool) -> Result<Input> {
    match read_report(path)? {
        None => read_recording(path, &Options { quiet, ..Options::default() }),
        Some((profile, author)) => Ok(Input::of_report(profile, author)),
    }
}

fn read_recording(path: &Path, options: &Options) -> Result<Input> {
    let name = Shown::of(path);
    let opened = open(path).map_err(ReadError::from);
    let started =
        opened.and_then(|(file, author)| Ok((Reading::new(BufReader::with_capacity(BUFFER_BYTES, file))?, author)));
    let (mut reading, author) = started.with_context(|| format!("`{name}`"))?;
    let mut names = RecordedNames::new(Resolver::sandboxed(Interrupt::default(), options.sources.clone()));
    if options.naming == Naming::Again {
        names = names.again();
    }
    let refused = |error: SpanError| usage(format!("`{name}`: {error}"));
    let (mut entries, mut late) = (0, LateFacts::default());
    let counted = (&mut reading).inspect(|entry| {
        entries += 1;
        if options.every_ns.is_some() {
            late.note(entry);
        }
    });
    let spanned = ReplayedSpan::read(counted, options.span, options.by_thread, &mut names).map_err(refused)?;
    if options.events {
        spanned.check_whole().map_err(refused)?;
    }
    if let Some(damage) = reading.damage() {
        report_damage(path, damage, &spanned);
    }
    if reading.skipped() > 0 {
        let skipped = count(reading.skipped());
        say(&format!("heapbpf: `{name}`: {skipped} entries of a later version of heapbpf were skipped"));
    }
    let Found { modules, missing } = names::find(spanned.modules(), names.needs_files());
    if !options.quiet && options.naming == Naming::Recorded {
        report_missing(&missing);
    }
    let snapshot = spanned.snapshot(modules);
    let events = options.events.then(|| EventNames::new(&snapshot, spanned.targets(), &names, options.trim, entries));
    let input = Input {
        profile: profile(&snapshot, Scope::Window, &names, options.trim),
        author,
        is_damaged: reading.damage().is_some(),
        folded_until_ns: spanned.folded_until_ns(),
        events,
        windows: None,
    };
    let windows =
        options.every_ns.map(|every_ns| Windows { every_ns, entries, modules: snapshot.modules, late, names });
    Ok(Input { windows, ..input })
}

pub(super) fn report_damage(path: &Path, damage: &Damage, spanned: &ReplayedSpan) {
    say(&format!(
        "heapbpf: warning: `{}`: damaged at byte {}: {}; read up to {:.1} s, {} events",
        Shown::of(path),
        count(damage.position),
        damage.reason,
        Duration::from_nanos(spanned.length_ns()).as_secs_f64(),
        count(spanned.events),
    ));
}

fn report_missing(missing: &[(String, &'static str)]) {
    if missing.is_empty() {
        return;
    }
    let listed =
        missing.iter().take(MISSING_LISTED_MAX).map(|(path, reason)| format!("`{}` ({reason})", Shown::of(path)));
    let more = match missing.len().saturating_sub(MISSING_LISTED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    say(&format!(
        "heapbpf: the recording has no names, and these modules are missing on this machine or differ: {}{more}; their frames are shown as module+offset",
        listed.collect::<Vec<_>>().join(", ")
    ));
}

/// Reads a report, or only the first bytes of a recording, which may be large.
fn read_start(mut file: File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
    if bytes == MAGIC {
        return Ok(bytes);
    }
    file.take(REPORT_BYTES_MAX).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > REPORT_BYTES_MAX {
        bail!("it exceeds the limit of {}", ByteSize(REPORT_BYTES_MAX));
    }
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Result<Profile> {
    let first = bytes.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    let reason = match first {
        None => "it is empty; perhaps the recording was killed".to_owned(),
        Some(b'{') => match read_json(bytes) {
            Ok(profile) => return Ok(profile),
            Err(reason) => reason,
        },
        Some(b'<') => "it is an image".to_owned(),
        Some(_) => {
            "it is neither one of heapbpf's JSON reports nor a recording, or its first bytes are damaged".to_owned()
        }
    };
    bail!("{reason}; make a profile with `heapbpf --pid PID -o heap.json`, or `-o heap.heapbpf`")
}

/// Names for events, from a first reading: names are at the file's end, so formats made of single events read it twice.
struct EventNames {
    profile: Profile,
    /// For each target, its index in the profile, and those of its callsites by their numbers in the recording.
    targets: FxHashMap<LedgerId, (usize, FxHashMap<u32, usize>)>,
    entries: usize,
}

impl EventNames {
    /// Collects the names of a snapshot. `ledgers` are those of the snapshot's targets, in their order.
    fn new(snapshot: &Snapshot, ledgers: Vec<LedgerId>, resolver: &dyn Resolve, trim: Trim, entries: usize) -> Self {
        let target = |(index, (ledger, target)): (usize, (LedgerId, &TargetState))| {
            let callsites = target.ledger.callsites.iter().enumerate().map(|(at, callsite)| (callsite.index, at));
            (ledger, (index, callsites.collect()))
        };
        let targets = ledgers.into_iter().zip(&snapshot.targets).enumerate().map(target).collect();
        Self { profile: profile(snapshot, Scope::Whole, resolver, trim), targets, entries }
    }

    /// Applies a filter. Events of callsites that are left out have no callsite.
    fn select(&mut self, filter: &Filter) {
        let kept = filter.apply(&mut self.profile);
        for (target, callsites) in self.targets.values_mut() {
            callsites.retain(|_, callsite| match kept[*target].get(*callsite).copied().flatten() {
                Some(new) => {
                    *callsite = new;
                    true
                }
                None => false,
            });
        }
    }

    /// Writes the events of the same span in heaptrack's format. `options` are those of the first reading.
    fn write(
        &self,
        recording: &Path,
        options: &Options,
        presentation: &Presentation,
        out: &mut dyn Write,
    ) -> Result<()> {
        let reading = read::read(recording).with_context(|| format!("`{}`", Shown::of(recording)))?;
        let profile = presentation.cut(&self.profile);
        let encoder = zstd::Encoder::new(out, COMPRESSION_LEVEL)?;
        let mut events = heaptrack::Events::new(encoder, &profile, presentation)?;
        let entries = reading.take(self.entries);
        let length_ns =
            ReplayedSpan::flows(entries, options.span, options.by_thread, |at_ns, ledger, flow| -> Result<()> {
                events.at(at_ns)?;
                // Events of other processes, and those before the end of the folded part, have no callsite.
                let Some((target, callsites)) = self.targets.get(&ledger) else { return Ok(()) };
                let Some(&callsite) = callsites.get(&flow.callsite) else { return Ok(()) };
                let bytes = |weight: Amounts| weight.bytes.rounded();
                match flow.movement {
                    Movement::In(weight) | Movement::Opening(weight) | Movement::Back(weight) => {
                        events.allocate(*target, callsite, bytes(weight))?;
                    }
                    Movement::Passed(weight) => {
                        events.allocate(*target, callsite, bytes(weight))?;
                        events.free(*target, callsite, bytes(weight))?;
                    }
                    Movement::Out(weight) => events.free(*target, callsite, bytes(weight))?,
                    Movement::Reweighed { from, to } => {
                        events.free(*target, callsite, bytes(from))?;
                        if to != Amounts::default() {
                            events.allocate(*target, callsite, bytes(to))?;
                        }
                    }
                    // The change affects no live block.
                    Movement::FreedReweighed { .. } => {}
                }
                Ok(())
            })?;
        events.finish(length_ns)?.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// A name that its owner exchanges or removes must not give what was read the rights of another file's owner, or of root.
    #[test]
    fn the_author_is_that_of_the_file_that_was_read() {
        const OTHER: u32 = 4242;
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("x.json");
        let given = |mode, owner| {
            std::fs::write(&path, "").expect("ours");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
            chown(&path, Some(owner), None).expect("tests run as root");
            let (file, author) = open(&path).expect("it is there");
            std::fs::remove_file(&path).expect("ours");
            (file, author)
        };
        let (file, author) = given(0o644, OTHER);
        assert_eq!(author.uid(), OTHER);
        assert_eq!(author_of(&file.metadata().expect("open")).uid(), OTHER, "its name is gone");
        symlink("/etc/passwd", &path).expect("ours");
        assert_eq!(author_of(&file.metadata().expect("open")).uid(), OTHER, "its name leads to a file of root's");
        std::fs::remove_file(&path).expect("ours");
        assert_eq!(given(0o644, 0).1.uid(), 0);
        for mode in [0o664, 0o646] {
            assert_eq!(given(mode, 0).1, Rights::of_nobody(), "others can have written it: {mode:o}");
        }
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let pipe = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(author_of(&pipe.metadata().expect("open")).uid(), 0);
        assert_eq!(open(Path::new("/dev/null")).expect("there").1, Rights::of_nobody(), "neither a file nor a pipe");
    }

    #[test]
    fn invalid_files_are_rejected_with_a_reason() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (text, reason) in [
            ("", "it is empty"),
            ("<svg/>", "it is an image"),
            ("main;f 12", "neither one of heapbpf's JSON reports nor a recording"),
            ("{\"version\": 1", "not JSON, or truncated"),
            ("{\"version\": 2}", "has version 2 of the report"),
            ("{\"version\": 1, \"kind\": \"diff\"}", "the difference of two profiles"),
            ("{\"version\": 1, \"kind\": \"leaks\"}", "a report of `heapbpf leaks`"),
            ("{\"version\": 1}", "missing field `interval_bytes`"),
            ("{\"name\": \"x\"}", "it has no version"),
        ] {
            let path = folder.path().join("x.json");
            std::fs::write(&path, text).expect("written");
            let error = format!("{:#}", read_whole(&path, true).err().expect("no profile"));
            assert!(error.contains(reason), "`{error}` lacks `{reason}`");
            assert!(error.contains(&format!("`{}`", path.display())), "{error}");
        }
        let error = format!("{:#}", read_whole(folder.path(), true).err().expect("no file"));
        assert!(error.contains("is a directory"), "{error}");
    }
}
