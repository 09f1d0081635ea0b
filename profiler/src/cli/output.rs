//! Files to write. They are opened before anything is attached, so that a mistyped path costs nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::args::is_recording;
use super::record::UsageError;
use super::terminal;
use crate::linux::replacement::Replacement;
use crate::report::{Format, FormatError};

/// Who may read a file, as far as the umask allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everybody: behind `sudo` the user is another one than the owner.
    All,
    /// The owner alone, because the file has contents of a process's memory.
    Owner,
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Self::All => 0o666,
            Self::Owner => 0o600,
        }
    }
}

/// A file that will hold a report. Until it is written, what was there before stays.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    format: Format,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Appears at the path when it is complete.
    New(Replacement),
    /// A device or pipe, which cannot be replaced.
    Through(File),
    Stdout,
}

impl Output {
    /// Makes sure that `path` can be written. Its end says in which format, unless one is `forced`.
    pub(super) fn open(path: &Path, forced: Option<Format>, access: Access) -> Result<Self> {
        if path == Path::new("-") {
            let format = forced.unwrap_or(Format::Folded);
            if !format.is_text() && terminal::output_is_terminal() {
                let end = format.extension();
                let text = format!(
                    "`{format}` is no text, so it does not go to a terminal: name a file, as in `-o heap.{end}`"
                );
                return Err(UsageError(text).into());
            }
            return Ok(Self { path: path.to_owned(), format, place: Place::Stdout });
        }
        let format = match forced {
            Some(format) => format,
            None => Format::of_path(path).map_err(|error| UsageError(explain_format(path, &error)))?,
        };
        let place = place(path, access).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(Self { path: path.to_owned(), format, place })
    }

    /// The format.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// The file's path; `None` for standard output.
    pub(super) fn path(&self) -> Option<&Path> {
        (!matches!(self.place, Place::Stdout)).then_some(&*self.path)
    }

    /// Writes the report. Returns the path, unless it went to standard output.
    pub(super) fn write(self, report: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<Option<PathBuf>> {
        let context = || format!("cannot write `{}`", self.path.display());
        match self.place {
            Place::Stdout => {
                write_all(terminal::output(), report).with_context(context)?;
                return Ok(None);
            }
            Place::Through(file) => write_all(file, report).with_context(context)?,
            Place::New(new) => {
                write_all(new.file(), report).with_context(context)?;
                new.commit().with_context(context)?;
            }
        }
        Ok(Some(self.path))
    }
}

/// Makes sure that a recording can be written to `path`, and leaves what is there as it is: see [`Recorder::create`].
///
/// [`Recorder::create`]: crate::recording::recorder::Recorder::create
pub(super) fn check_recording(path: &Path) -> Result<()> {
    let place = place(path, Access::Owner).with_context(|| format!("cannot write `{}`", path.display()))?;
    if !matches!(place, Place::New(_)) {
        bail!("cannot record to `{}`: it is a device or a pipe, and a recording takes a file", path.display());
    }
    Ok(())
}

fn write_all(file: impl Write, report: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut writer = io::BufWriter::new(file);
    report(&mut writer)?;
    Ok(writer.flush()?)
}

fn place(path: &Path, access: Access) -> Result<Place> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => bail!("it is a directory; name a file in it"),
        Ok(metadata) if !metadata.is_file() => return Ok(Place::Through(File::options().write(true).open(path)?)),
        // A file that must not be written shall not be replaced either.
        Ok(_) => drop(File::options().append(true).open(path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new =
        Replacement::create(path, access.mode()).map_err(|error| anyhow::anyhow!("{}", explain(&error, folder)))?;
    Ok(Place::New(new))
}

/// A mistyped extension may have meant a recording.
fn explain_format(path: &Path, error: &FormatError) -> String {
    if is_recording(path) {
        return format!("`{}` names a recording, which is made while recording alone", path.display());
    }
    format!("{error}; `.heapbpf` makes a recording")
}

fn explain(error: &io::Error, folder: &Path) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("the directory `{0}` does not exist; `mkdir -p {0}`", folder.display()),
        io::ErrorKind::PermissionDenied => format!("no permission to write in `{}`", folder.display()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn written(path: &Path) -> String {
        let output = Output::open(path, None, Access::All).expect("writable");
        output.write(|out| Ok(out.write_all(b"report")?)).expect("written");
        fs::read_to_string(path).expect("there")
    }

    #[test]
    fn a_report_replaces_the_old_one_only_when_it_is_complete() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("heap.svg");
        assert_eq!(written(&path), "report");
        let output = Output::open(&path, None, Access::All).expect("writable");
        output
            .write(|out| {
                out.write_all(b"half")?;
                bail!("no more")
            })
            .expect_err("it failed half-way");
        assert_eq!(fs::read_to_string(&path).expect("there"), "report");
        let left = fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(left, 1, "a temporary file stays behind");
    }

    #[test]
    fn what_cannot_be_written_is_found_at_once() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (path, reason) in
            [("missing/heap.svg", "does not exist"), ("folder.svg", "is a directory"), ("heap.txt", "txt")]
        {
            let path = folder.path().join(path);
            let _ = fs::create_dir(folder.path().join("folder.svg"));
            let error = format!("{:#}", Output::open(&path, None, Access::All).expect_err("not writable"));
            assert!(error.contains(reason), "`{error}` does not say `{reason}`");
        }
    }

    #[test]
    fn others_may_read_the_report() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("heap.folded");
        written(&path);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o044, 0o044, "mode {mode:o}");
    }

    #[test]
    fn contents_of_memory_are_the_owners_alone() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("leaks.json");
        let output = Output::open(&path, None, Access::Owner).expect("writable");
        output.write(|out| Ok(out.write_all(b"report")?)).expect("written");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "mode {mode:o}");
    }

    #[test]
    fn devices_are_written_through() {
        let output = Output {
            path: "/dev/null".into(),
            format: Format::Folded,
            place: place(Path::new("/dev/null"), Access::All).expect("there"),
        };
        assert!(matches!(output.place, Place::Through(_)));
        output.write(|out| Ok(out.write_all(b"report")?)).expect("written");
    }
}
