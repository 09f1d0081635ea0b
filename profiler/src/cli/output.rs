//! Output files. They are opened before anything is attached, so that a mistyped path is reported at once.

#![expect(clippy::disallowed_methods, reason = "the user's own paths")]

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use heapbpf_ledger::model::Profile;
use heapbpf_linux::files::Replacement;
use heapbpf_linux::place::{Found, Place, Stream};
use heapbpf_report::{Format, ReportError};
use jiff::Zoned;

use super::exit::usage;
use super::terminal;

const RECORDING_EXTENSION: &str = "heapbpf";

const NAME_CHARS_MAX: usize = 100;

/// Who may read a file, as far as the umask allows it.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum Access {
    /// Everyone: under `sudo`, the user who reads the file is not its owner.
    All = 0o666,
    /// The owner only: the file contains parts of a process's memory or of other files.
    Owner = 0o600,
}

impl Access {
    /// Access to reports that may contain lines of source files, which others may not be able to read.
    pub(super) fn of_report(has_sources: bool) -> Self {
        if has_sources { Self::Owner } else { Self::All }
    }
}

/// A file for a report. An existing file at the path is kept until the report is complete.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    format: Format,
    destination: Destination,
}

#[derive(Debug)]
enum Destination {
    /// Temporary file that replaces the path once it is complete.
    Replacement(Replacement),
    /// Device or pipe, which cannot be replaced.
    Device(File),
    Stdout,
}

impl Output {
    /// Opens `path` for writing. Its extension selects the format, unless one is `forced`.
    pub(super) fn open(path: &Path, forced: Option<Format>, access: Access) -> Result<Self> {
        if is_standard_output(path) {
            let format = forced.unwrap_or(Format::Folded);
            if !format.spec().is_text && terminal::output_is_terminal() {
                let extension = format.spec().extension;
                return Err(usage(format!(
                    "`{format}` is a binary format and cannot be printed to a terminal: name a file, as in `-o heap.{extension}`"
                )));
            }
            return Ok(Self { path: path.to_owned(), format, destination: Destination::Stdout });
        }
        let format = match forced {
            Some(format) => format,
            None => Format::of_path(path).map_err(|error| usage(explain_format(path, &error)))?,
        };
        let destination = destination(path, access).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(Self { path: path.to_owned(), format, destination })
    }

    pub(super) fn open_for_profile(path: &Path, forced: Option<Format>, access: Access) -> Result<Self> {
        let output = Self::open(path, forced, access)?;
        if output.format.needs_recording() {
            return Err(output.refuse(&ReportError::NeedsRecording(output.format)));
        }
        Ok(output)
    }

    pub(super) fn refuse(&self, error: &ReportError) -> anyhow::Error {
        usage(format!("cannot write `{}`: {error}", self.path.display()))
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    pub(super) fn path(&self) -> Option<&Path> {
        (!matches!(self.destination, Destination::Stdout)).then_some(&*self.path)
    }

    /// Writes the report like [`write`](Self::write). An interrupt meanwhile makes it start again, with the text that `report`
    /// writes then; text that was printed already remains.
    pub(super) fn write_unless(
        self,
        is_interrupted: &dyn Fn() -> bool,
        report: impl Fn(Format, &mut dyn Write) -> Result<()>,
    ) -> Result<Option<PathBuf>> {
        let is_late = is_interrupted();
        let format = self.format;
        let file = match &self.destination {
            Destination::Replacement(new) if !is_late => new.file().try_clone().ok(),
            _ => None,
        };
        self.write(|_, out| {
            let written = report(format, &mut Watched { out: &mut *out, is_interrupted, is_off: is_late });
            match (written, file) {
                (Err(_), Some(mut file)) if is_interrupted() => {
                    out.flush()?;
                    file.set_len(0)?;
                    file.rewind()?;
                    report(format, out)
                }
                (written, _) => written,
            }
        })
    }

    /// Writes the report in the output's format. Returns the path, or `None` for standard output.
    pub(super) fn write(self, report: impl FnOnce(Format, &mut dyn Write) -> Result<()>) -> Result<Option<PathBuf>> {
        let path = self.path().map(Into::into);
        let report = |out: &mut dyn Write| report(self.format, out);
        let written = match self.destination {
            Destination::Stdout => write_all(terminal::output(), report),
            Destination::Device(file) => write_all(file, report),
            Destination::Replacement(new) => write_all(new.file(), report).and_then(|()| Ok(new.commit().map(drop)?)),
        };
        written.with_context(|| format!("cannot write `{}`", self.path.display()))?;
        Ok(path)
    }
}

/// A writer that fails once the user has interrupted it.
struct Watched<'a> {
    out: &'a mut dyn Write,
    is_interrupted: &'a dyn Fn() -> bool,
    is_off: bool,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_off && (self.is_interrupted)() {
            return Err(io::Error::other("interrupted"));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) files: Vec<(PathBuf, Format)>,
    pub(super) to_stdout: bool,
}

impl Written {
    pub(super) fn write(
        &mut self,
        output: Output,
        report: impl FnOnce(Format, &mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let format = output.format;
        self.add(format, output.write(report)?);
        Ok(())
    }

    /// Writes a report: see [`Output::write_unless`].
    pub(super) fn write_unless(
        &mut self,
        output: Output,
        is_interrupted: &dyn Fn() -> bool,
        report: impl Fn(Format, &mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let format = output.format;
        self.add(format, output.write_unless(is_interrupted, report)?);
        Ok(())
    }

    fn add(&mut self, format: Format, path: Option<PathBuf>) {
        match path {
            Some(path) => self.files.push((path, format)),
            None => self.to_stdout = true,
        }
    }

    pub(super) fn list(&self, prefix: &str) -> String {
        self.list_with(|format| format!("{prefix}{}", format.spec().description))
    }

    /// Lists the written files with the parts of the profile that they lack.
    pub(super) fn list_of(&self, profile: &Profile) -> String {
        self.list_with(|format| format!("{}{}", format.spec().description, format.lacks(profile)))
    }

    fn list_with(&self, words: impl Fn(Format) -> String) -> String {
        let line = |(path, format): &(PathBuf, Format)| format!("\n{} ({})", path.display(), words(*format));
        self.files.iter().map(line).collect()
    }
}

pub(super) fn is_recording(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(RECORDING_EXTENSION))
}

pub(super) fn recording_path(paths: &[PathBuf]) -> Option<&PathBuf> {
    paths.iter().find(|path| is_recording(path))
}

/// Refuses two outputs to one file: the second would replace the first.
pub(super) fn check_distinct(paths: &[PathBuf]) -> Result<()> {
    let mut seen = HashSet::new();
    for path in paths {
        // Devices such as `/dev/null` take any number.
        let is_device = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
        if !is_device && !seen.insert(identity(path)) {
            let what =
                if path == Path::new("-") { "standard output".to_owned() } else { format!("`{}`", path.display()) };
            return Err(usage(format!("`-o` names {what} twice: name another file for the second report")));
        }
    }
    Ok(())
}

/// Path that is the same for all paths to a file, whether it exists or not.
fn identity(path: &Path) -> PathBuf {
    if path == Path::new("-") {
        return path.to_owned();
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let whole = fs::canonicalize(path).ok();
    let whole = whole.or_else(|| Some(fs::canonicalize(folder).ok()?.join(path.file_name()?)));
    whole.unwrap_or_else(|| path.to_owned())
}

/// Name of new reports about `subject`, with the present time.
pub(super) fn default_name(subject: &str) -> String {
    let sanitize = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = subject.chars().map(sanitize).take(NAME_CHARS_MAX).collect();
    format!("heapbpf-{name}-{}", Zoned::now().strftime("%Y%m%d-%H%M%S"))
}

/// Paths in the current directory that do not exist, one per format, with the same name.
pub(super) fn new_paths(name: &str, formats: &[Format]) -> Vec<PathBuf> {
    let path = |name: &str, format: &Format| Path::new(".").join(format!("{name}.{}", format.spec().extension));
    let names = std::iter::once(name.to_owned()).chain((2..).map(|number| format!("{name}-{number}")));
    let mut all = names.map(|name| formats.iter().map(|format| path(&name, format)).collect::<Vec<_>>());
    all.find(|paths| !paths.iter().any(|path| path.symlink_metadata().is_ok())).unwrap_or_default()
}

/// Checks that a recording can be written to `path`, without changing an existing file.
pub(super) fn check_recording(path: &Path) -> Result<()> {
    let destination = destination(path, Access::Owner).with_context(|| format!("cannot write `{}`", path.display()))?;
    if !matches!(destination, Destination::Replacement(_)) {
        bail!("cannot record to `{}`: it is a device or a pipe; name a regular file", path.display());
    }
    Ok(())
}

/// Returns the path of a dump: `heap.0003.svg` for window 3 of `heap.svg`.
pub(super) fn window_path(path: &Path, number: u32) -> PathBuf {
    with_infix(path, &format!("{number:04}"))
}

/// Returns the path of a peak: `heap.peak.svg` for `heap.svg`.
pub(super) fn peak_path(path: &Path) -> PathBuf {
    with_infix(path, "peak")
}

/// Inserts a word between the file's stem and its extension, which may have several parts (`.pb.gz`).
fn with_infix(path: &Path, word: &str) -> PathBuf {
    let whole = path.file_name().unwrap_or(OsStr::new("heapbpf"));
    let stem_bytes = Format::split(path).map(|(stem_bytes, _)| stem_bytes);
    let stem_bytes = stem_bytes.or_else(|| Some(path.file_stem()?.len())).unwrap_or(whole.len());
    let (stem, extension) = whole.as_bytes().split_at(stem_bytes);
    let mut name = OsString::from(OsStr::from_bytes(stem));
    name.push(".");
    name.push(word);
    name.push(OsStr::from_bytes(extension));
    path.with_file_name(name)
}

fn write_all(file: impl Write, report: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut writer = io::BufWriter::new(file);
    report(&mut writer)?;
    Ok(writer.flush()?)
}

fn destination(path: &Path, access: Access) -> Result<Destination> {
    if let Some(stream) = Stream::of_descriptor(path)? {
        return Ok(Destination::Device(open_stream(path, &stream)?));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let explained = |error: io::Error| anyhow::anyhow!("{}", explain(&error, folder));
    let place = Place::find(path).map_err(explained)?;
    match place.found()? {
        Found::Folder => bail!("it is a directory; name a file in it"),
        Found::Stream(stream) => return Ok(Destination::Device(open_stream(path, &stream)?)),
        Found::File => place.check_writable()?,
        Found::Nothing => {}
    }
    Ok(Destination::Replacement(Replacement::create_at(place, access as u32).map_err(explained)?))
}

/// Opens a file to append to it, a device or a pipe.
pub(super) fn open_to_append(path: &Path) -> io::Result<File> {
    if let Some(stream) = Stream::of_descriptor(path)? {
        return open_stream(path, &stream);
    }
    let place = Place::find(path)?;
    match place.found()? {
        Found::Stream(stream) => open_stream(path, &stream),
        Found::Nothing | Found::File | Found::Folder => place.append(Access::All as u32),
    }
}

fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-") || path == Path::new("/dev/stdout")
}

/// Opens a device or pipe. Waits for a reader of a pipe, as other programs do, but not in silence.
fn open_stream(path: &Path, stream: &Stream) -> io::Result<File> {
    if let Some(file) = stream.open()? {
        return Ok(file);
    }
    terminal::say(&format!(
        "heapbpf: waiting for a program that reads `{0}`, as `cat {0}` does; Ctrl-C ends this",
        path.display()
    ));
    stream.open_when_read()
}

fn explain_format(path: &Path, error: &str) -> String {
    if is_recording(path) {
        return format!("cannot write `{}`: only `heapbpf record` makes recordings", path.display());
    }
    format!("{error}; `.heapbpf` makes a recording")
}

fn explain(error: &io::Error, folder: &Path) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("the directory `{0}` does not exist; `mkdir -p {0}`", folder.display()),
        // Other refusals have their own reasons.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_some() => {
            format!("no permission to write in `{}`", folder.display())
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn written(path: &Path) -> String {
        let output = Output::open(path, None, Access::All).expect("writable");
        output.write(|_, out| Ok(out.write_all(b"report")?)).expect("written");
        fs::read_to_string(path).expect("there")
    }

    #[test]
    fn an_incomplete_report_keeps_the_existing_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("heap.svg");
        assert_eq!(written(&path), "report");
        let output = Output::open(&path, None, Access::All).expect("writable");
        output
            .write(|_, out| {
                out.write_all(b"half")?;
                bail!("no more")
            })
            .expect_err("it failed half-way");
        assert_eq!(fs::read_to_string(&path).expect("there"), "report");
        let left = fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(left, 1, "a temporary file stays behind");
    }

    /// Text that was written before the interrupt is not in the file.
    #[test]
    fn an_interrupted_report_starts_again() {
        use std::cell::Cell;
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("heap.svg");
        for interrupted_at in [0, 1, 500, 1001] {
            let (count, is_raised) = (Cell::new(0), Cell::new(interrupted_at == 0));
            let output = Output::open(&path, None, Access::All).expect("writable");
            let report = |_: Format, out: &mut dyn Write| {
                if is_raised.get() {
                    return Ok(out.write_all(b"short")?);
                }
                for _ in 0..1000 {
                    count.set(count.get() + 1);
                    is_raised.set(count.get() == interrupted_at || is_raised.get());
                    out.write_all(&[b'x'; 1000])?;
                }
                Ok(())
            };
            output.write_unless(&|| is_raised.get(), report).expect("written");
            let text = fs::read_to_string(&path).expect("there");
            let is_whole = text.len() == 1_000_000 && text.bytes().all(|byte| byte == b'x');
            assert!(if interrupted_at > 1000 { is_whole } else { text == "short" }, "{interrupted_at}: {}", text.len());
        }
    }

    #[test]
    fn unwritable_paths_fail_on_open() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (path, reason) in
            [("missing/heap.svg", "does not exist"), ("folder.svg", "is a directory"), ("heap.txt", "txt")]
        {
            let path = folder.path().join(path);
            let _ = fs::create_dir(folder.path().join("folder.svg"));
            let error = format!("{:#}", Output::open(&path, None, Access::All).expect_err("not writable"));
            assert!(error.contains(reason), "`{error}` lacks `{reason}`");
        }
    }

    #[test]
    fn reports_are_world_readable() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("heap.folded");
        written(&path);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o044, 0o044, "mode {mode:o}");
    }

    #[test]
    fn reports_with_memory_contents_or_source_lines_are_private() {
        assert!(matches!(Access::of_report(true), Access::Owner) && matches!(Access::of_report(false), Access::All));
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("leaks.json");
        let output = Output::open(&path, None, Access::Owner).expect("writable");
        output.write(|_, out| Ok(out.write_all(b"report")?)).expect("written");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "mode {mode:o}");
    }

    #[test]
    fn devices_are_not_replaced() {
        let output = Output {
            path: "/dev/null".into(),
            format: Format::Folded,
            destination: destination(Path::new("/dev/null"), Access::All).expect("there"),
        };
        assert!(matches!(output.destination, Destination::Device(_)));
        output.write(|_, out| Ok(out.write_all(b"report")?)).expect("written");
    }

    fn check_window_path(path: &str, number: u32, expected: &str) {
        assert_eq!(window_path(Path::new(path), number), Path::new(expected));
    }

    #[test]
    fn window_numbers_precede_the_extension() {
        check_window_path("heap.svg", 1, "heap.0001.svg");
        check_window_path("/var/tmp/my.heap.json", 42, "/var/tmp/my.heap.0042.json");
        check_window_path("./heapbpf-redis-12.folded", 9999, "./heapbpf-redis-12.9999.folded");
        check_window_path("a.SVG", 12_345, "a.12345.SVG");
        check_window_path("b.d/heap.svg", 7, "b.d/heap.0007.svg");
        check_window_path("heap.pb.gz", 7, "heap.0007.pb.gz");
        check_window_path("my.heap.Perfetto-Trace", 7, "my.heap.0007.Perfetto-Trace");
        check_window_path("x.dhat.json", 7, "x.0007.dhat.json");
        check_window_path("forced", 7, "forced.0007");
    }

    #[test]
    fn window_paths_sort_in_window_order() {
        let names: Vec<PathBuf> = [2, 10, 9, 100].map(|number| window_path(Path::new("x.svg"), number)).into();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(sorted, [&names[0], &names[2], &names[1], &names[3]].map(Clone::clone));
    }

    #[test]
    fn outputs_to_one_file_are_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let check = |names: [&str; 2], expected: bool| {
            let paths = names.map(|name| if name == "-" { name.into() } else { folder.path().join(name) });
            assert_eq!(check_distinct(&paths).is_ok(), expected, "{names:?}");
        };
        check(["a.svg", "a.html"], true);
        check(["a.svg", "a.svg"], false);
        check(["a.svg", "./a.svg"], false);
        check(["-", "-"], false);
        check(["-", "a.svg"], true);
        check(["missing/a.svg", "missing/a.svg"], false);
        std::os::unix::fs::symlink("a.svg", folder.path().join("b.svg")).expect("ours");
        fs::write(folder.path().join("a.svg"), "").expect("ours");
        check(["a.svg", "b.svg"], false);
        assert!(check_distinct(&["/dev/null".into(), "/dev/null".into()]).is_ok());
    }

    #[test]
    fn default_names_are_new() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let name = folder.path().join("heapbpf-x").display().to_string();
        let formats = [Format::Flamegraph, Format::Html];
        let expect = |ends: [&str; 2]| {
            assert_eq!(new_paths(&name, &formats), ends.map(|end| PathBuf::from(format!("{name}{end}"))));
        };
        expect([".svg", ".html"]);
        fs::write(format!("{name}.html"), "").expect("ours");
        expect(["-2.svg", "-2.html"]);
        fs::write(format!("{name}-2.svg"), "").expect("ours");
        expect(["-3.svg", "-3.html"]);
    }

    #[test]
    fn peak_paths_contain_peak() {
        assert_eq!(peak_path(Path::new("out/heap.svg")), Path::new("out/heap.peak.svg"));
    }
}
