//! Implementation of `--source`: lines of source files around the frames of a profile. Debug information, which targets control,
//! names the files: so only regular files with the extension of a programming language are read, with the rights of the user
//! whose process names a line and with those of the invoking user, and the amount of text is limited.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use heapbpf_base::shown;
use heapbpf_ledger::model::{Frame, Profile, SourcePiece, TargetFacts};
use heapbpf_linux::file_view::FileView;
use heapbpf_linux::proc::maps::Device;
use heapbpf_linux::rights::Rights;
use heapbpf_report::View;
use heapbpf_report::text::{counted, printable};
use rustc_hash::FxHashMap;

use super::terminal::say;
use crate::reader::{self, Opened, Wanted};

/// Number of lines before and after that of a frame.
const LINES_AROUND: u32 = 10;
const LINE_CHARS_MAX: usize = 400;
/// Maximum size of a file, maximum size of all embedded text, and maximum number of files to open.
const FILE_BYTES_MAX: u64 = 4 << 20;
const TEXT_BYTES_MAX: usize = 4 << 20;
const FILES_MAX: usize = 4096;

/// Extensions of source files. Files with passwords and keys have other extensions.
const EXTENSIONS: [&str; 50] = [
    "c", "h", "cc", "hh", "cpp", "hpp", "cxx", "hxx", "c++", "h++", "inc", "inl", "ipp", "tcc", "tpp", "i", "ii",
    "def", "m", "mm", "cu", "cuh", "s", "S", "asm", "y", "l", "rs", "go", "zig", "d", "f", "F", "f90", "F90", "f95",
    "adb", "ads", "pas", "swift", "nim", "cr", "vala", "ml", "hs", "java", "kt", "cs", "py", "pyx",
];

/// Embeds the lines around each frame, those of callsites with the largest amounts first. `others` are the rights for files that
/// targets name whose own rights are not known: those of a recording.
pub(super) fn embed(profile: &mut Profile, others: &Rights, quiet: bool) {
    let files = by_weight(profile, others);
    let count = files.len();
    let (pieces, read) = pieces(&files);
    profile.sources = pieces;
    if !quiet && read < count {
        let files = counted(count as u64, "source file");
        say(&format!(
            "heapbpf: embedded lines of {read} of {files}; the others are missing, unreadable for the profiled program's user or for you, or beyond the limit of 4 MiB of text"
        ));
    }
}

/// A line of a source file that this target names, and that its user and the invoking user may read; `None` if there is none.
pub(super) fn line(target: &TargetFacts, path: &Path, line: u32) -> Option<String> {
    let text = read_source(path, &Reader::of(target, &Rights::of_nobody())).ok()?.text;
    let line = text.lines().nth(usize::try_from(line.checked_sub(1)?).ok()?)?;
    Some(cleaned(line))
}

type Lines = BTreeSet<u32>;

/// A file that debug information names.
struct Named {
    file: Arc<str>,
    /// Lines of the file, by the rights with which to read them: a file that one target names is not shown with the rights of
    /// another.
    lines: Vec<(Reader, Lines)>,
}

/// Rights with which a file is read that a target names, and root directory below which it is read.
#[derive(Clone, Debug)]
struct Reader {
    rights: Rights,
    /// View of a running process with another root directory than heapbpf's, as in a container.
    elsewhere: Option<FileView>,
}

impl Reader {
    /// Determines the reader for a target. A process that still runs may have fewer rights by now.
    fn of(target: &TargetFacts, others: &Rights) -> Self {
        let Some(files) = target.files.as_ref().map(|files| files.narrowed()) else {
            return Self { rights: target.rights.as_ref().unwrap_or(others).clone(), elsewhere: None };
        };
        if files.has_own_root() && files.open_root().is_some() {
            Self { rights: files.rights().clone(), elsewhere: Some(files) }
        } else {
            Self { rights: files.rights_here(), elsewhere: None }
        }
    }

    fn root(&self) -> io::Result<File> {
        match &self.elsewhere {
            None => File::open("/"),
            Some(files) => files.open_root().ok_or_else(|| io::ErrorKind::NotFound.into()),
        }
    }
}

/// Readers are equal if they read the same files, as processes of one container do.
impl PartialEq for Reader {
    fn eq(&self, other: &Self) -> bool {
        let root = |reader: &Self| reader.elsewhere.as_ref().map(FileView::root_id);
        self.rights == other.rights && root(self) == root(other)
    }
}

/// Files and lines of frames, by the allocated bytes of the callsites through them.
fn by_weight(profile: &Profile, others: &Rights) -> Vec<Named> {
    let mut readers: Vec<Reader> = Vec::new();
    let mut weights: FxHashMap<usize, (u128, BTreeSet<usize>)> = FxHashMap::default();
    for target in &profile.targets {
        let own = Reader::of(&target.facts, others);
        let at = readers.iter().position(|reader| *reader == own).unwrap_or_else(|| {
            readers.push(own);
            readers.len() - 1
        });
        for callsite in &target.callsites {
            let bytes = View::AllocBytes.of_callsite(callsite).max(View::LiveBytes.of_callsite(callsite));
            for id in &callsite.stack {
                let (weight, by) = weights.entry(id.0 as usize).or_default();
                *weight += u128::from(bytes);
                by.insert(at);
            }
        }
    }
    let mut files: BTreeMap<Arc<str>, (u128, BTreeMap<usize, Lines>)> = BTreeMap::new();
    for (index, (weight, by)) in weights {
        let Some(Frame { file: Some(file), line: Some(line @ 1..), .. }) = profile.frames.get(index) else { continue };
        let (most, lines) = files.entry(Arc::clone(file)).or_default();
        *most = weight.max(*most);
        for at in by {
            lines.entry(at).or_default().insert(*line);
        }
    }
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by(|(_, (one, ..)), (_, (other, ..))| other.cmp(one));
    let named = |(file, (_, lines)): (Arc<str>, (u128, BTreeMap<usize, Lines>))| {
        let lines = lines.into_iter().map(|(at, lines)| (readers[at].clone(), lines)).collect();
        Named { file, lines }
    };
    files.into_iter().map(named).collect()
}

/// Returns the pieces, and the number of files from which there are pieces.
fn pieces(files: &[Named]) -> (Vec<SourcePiece>, usize) {
    let (mut pieces, mut read, mut bytes) = (Vec::new(), 0, 0);
    for named in files.iter().take(FILES_MAX) {
        let Some((text, lines)) = named.read() else { continue };
        let found = around(&named.file, &text, &lines);
        let size: usize = found.iter().map(|piece| piece.text.len()).sum();
        if found.is_empty() || bytes + size > TEXT_BYTES_MAX {
            continue;
        }
        bytes += size;
        read += 1;
        pieces.extend(found);
    }
    (pieces, read)
}

impl Named {
    /// Reads the file's text, and selects the lines that are named by a target that may read them. A name that leads to several
    /// files stands for the first.
    fn read(&self) -> Option<(String, Lines)> {
        let mut found: Option<(Source, Lines)> = None;
        for (reader, lines) in &self.lines {
            let Ok(source) = read_source(Path::new(&*self.file), reader) else { continue };
            match &mut found {
                None => found = Some((source, lines.clone())),
                Some((first, all)) if first.id == source.id => all.extend(lines),
                Some(_) => {}
            }
        }
        found.map(|(source, lines)| (source.text, lines))
    }
}

struct Source {
    id: FileId,
    text: String,
}

/// Device and inode of a file.
type FileId = (Device, u64);

fn id_of(opened: &Opened) -> io::Result<FileId> {
    if let Some(original) = opened.original {
        return Ok((original.device, original.inode));
    }
    let metadata = opened.file.metadata()?;
    Ok((Device::from_raw(metadata.dev()), metadata.ino()))
}

/// Reads a file that this reader and the invoking user may read. Fails for relative paths, which are relative to the folder in
/// which the compiler ran.
fn read_source(path: &Path, reader: &Reader) -> io::Result<Source> {
    let refused = |reason| io::Error::new(io::ErrorKind::InvalidInput, reason);
    let is_source = path.extension().and_then(|extension| extension.to_str()).is_some_and(|e| EXTENSIONS.contains(&e));
    if !path.is_absolute() || !is_source {
        return Err(refused("it is not the absolute path of a source file"));
    }
    let root = reader.root()?;
    let wanted = Wanted { path, follows: true, owners: None, bytes_max: FILE_BYTES_MAX };
    let open = |rights: &Rights| reader::open(rights, &root, wanted).map_err(io::Error::other);
    let invoker = Rights::of_invoker();
    let opened = open(&invoker)?;
    let id = id_of(&opened)?;
    if reader.rights != invoker {
        let own = open(&reader.rights).map_err(|_| refused("the user of the program that names it may not read it"))?;
        if id_of(&own)? != id {
            return Err(refused("its name leads to another file by now"));
        }
    }
    let mut bytes = Vec::new();
    opened.file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Source { id, text: shown::text(&bytes).into_owned() })
}

/// The lines around the given ones; overlapping and adjacent pieces are joined. Lines beyond the end of the file, which
/// must have changed, have none.
fn around(file: &Arc<str>, text: &str, lines: &Lines) -> Vec<SourcePiece> {
    let text: Vec<&str> = text.lines().collect();
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &line in lines.range(1..=length) {
        let range = (line.saturating_sub(LINES_AROUND).max(1), line.saturating_add(LINES_AROUND).min(length));
        match ranges.last_mut() {
            Some((_, last)) if range.0 <= last.saturating_add(1) => *last = range.1,
            _ => ranges.push(range),
        }
    }
    let piece = |(first, last): (u32, u32)| {
        let lines: Vec<String> = text[first as usize - 1..last as usize].iter().map(|line| cleaned(line)).collect();
        SourcePiece { file: Arc::clone(file), line: first, text: lines.join("\n") }
    };
    ranges.into_iter().map(piece).collect()
}

/// Text of a line without control characters. Keeps indentation, which `printable` would remove.
fn cleaned(line: &str) -> String {
    let line = line.replace('\t', "    ");
    let indentation = line.len() - line.trim_start_matches(' ').len();
    let text = format!("{}{}", &line[..indentation], printable(&line[indentation..]));
    text.chars().take(LINE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::BufRead as _;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::process::{Command, Stdio};

    use heapbpf_base::ids::{Identity, Pid};
    use heapbpf_base::units::MonotonicNanos;
    use heapbpf_ledger::model::Beginning;
    use heapbpf_linux::proc::stat::Stat;

    use super::*;

    fn with(rights: Rights) -> Reader {
        Reader { rights, elsewhere: None }
    }

    fn read(path: &Path) -> io::Result<String> {
        read_source(path, &with(Rights::of_invoker())).map(|source| source.text)
    }

    fn text(length: u32) -> String {
        (1..=length).map(|line| format!("line {line}\n")).collect()
    }

    #[test]
    fn pieces_surround_lines_and_are_joined() {
        let file: Arc<str> = "/x.c".into();
        let found = |lines: &[u32]| -> Vec<(u32, usize)> {
            let pieces = around(&file, &text(100), &lines.iter().copied().collect());
            pieces.iter().map(|piece| (piece.line, piece.text.lines().count())).collect()
        };
        assert_eq!(found(&[50]), [(40, 21)]);
        assert_eq!(found(&[3, 99]), [(1, 13), (89, 12)]);
        assert_eq!(found(&[30, 51]), [(20, 42)], "adjacent");
        assert_eq!(found(&[30, 52]), [(20, 21), (42, 21)]);
        assert_eq!(found(&[100, 101, u32::MAX]), [(90, 11)], "the file has changed");
        let piece = &around(&file, "\tif (x)\n\t\tf(\"\u{1b}[2J\");\n", &[1].into())[0];
        assert_eq!(piece.text, "    if (x)\n        f(\" [2J\");");
    }

    #[test]
    fn only_regular_source_files_are_read() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["a.c", "key", "a.pem"] {
            fs::write(path(name), "text").expect("ours");
        }
        File::create(path("large.c")).and_then(|file| file.set_len(FILE_BYTES_MAX + 1)).expect("ours");
        fs::create_dir(path("folder.c")).expect("ours");
        symlink("/dev/zero", path("device.c")).expect("ours");
        symlink(path("a.c"), path("link.rs")).expect("ours");
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe.c"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .expect("ours");
        for name in ["a.c", "link.rs"] {
            assert_eq!(read(&path(name)).expect("it is source"), "text");
        }
        for name in ["key", "a.pem", "large.c", "folder.c", "device.c", "pipe.c", "missing.c"] {
            assert!(read(&path(name)).is_err(), "{name}");
        }
        assert!(read(Path::new("Cargo.toml")).is_err() && read(Path::new("src/lib.rs")).is_err());
    }

    /// A link of a target's in the place of its source must not show what root alone can read.
    #[test]
    fn what_the_programs_user_may_not_read_is_not_shown() {
        const OTHER: u32 = 65534;
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| folder.path().join(name);
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        for (name, mode) in [("secret.c", 0o600), ("open.c", 0o644)] {
            fs::write(path(name), name).expect("ours");
            fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).expect("ours");
        }
        symlink(path("secret.c"), path("link.c")).expect("ours");
        chown(path("open.c"), Some(OTHER), None).expect("tests run as root");
        let other = with(Rights::of_owner(&path("open.c").metadata().expect("ours")));
        for name in ["secret.c", "link.c"] {
            assert_eq!(read(&path(name)).expect("of root"), "secret.c");
            let error = read_source(&path(name), &other).err().expect("not for this user").to_string();
            assert!(error.contains("may not read"), "{error}");
        }
        assert_eq!(read_source(&path("open.c"), &other).expect("for all").text, "open.c");
    }

    /// A user's program that names a file of root's must not have its lines shown because a program of root names other lines.
    #[test]
    fn lines_are_shown_with_the_rights_of_who_names_them() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("secret.c");
        fs::write(&path, text(200)).expect("ours");
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        let (root, other) = (with(Rights::of_invoker()), with(Rights::of_nobody()));
        let file: Arc<str> = path.to_str().expect("UTF-8").into();
        for (mode, shown) in [(0o600, vec![40]), (0o644, vec![40, 140])] {
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("ours");
            for by in [[(&other, 150), (&root, 50)], [(&root, 50), (&other, 150)]] {
                let lines = by.map(|(reader, line)| (reader.clone(), Lines::from([line]))).into();
                let (pieces, _) = pieces(&[Named { file: Arc::clone(&file), lines }]);
                let starts: Vec<u32> = pieces.iter().map(|piece| piece.line).collect();
                assert_eq!(starts, shown, "mode {mode:o}");
            }
        }
    }

    #[test]
    fn one_line_is_shown_with_the_rights_of_its_target() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("secret.c");
        fs::write(&path, text(3)).expect("ours");
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("ours");
        let target = |rights| {
            let facts = TargetFacts::running(Pid(1), "x", "x", Beginning::running(MonotonicNanos(0)));
            TargetFacts { rights, ..facts }
        };
        assert_eq!(line(&target(Some(Rights::of_invoker())), &path, 2).as_deref(), Some("line 2"));
        for rights in [Some(Rights::of_nobody()), None] {
            assert_eq!(line(&target(rights.clone()), &path, 2), None, "{rights:?}");
        }
    }

    #[test]
    fn files_of_a_container_are_read_below_its_own_root_directory() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("secret.c");
        fs::write(&path, "of this machine").expect("ours");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("ours");
        let at = folder.path().display();
        let script = format!("mount -t tmpfs none '{at}' && echo own > '{at}/secret.c' && echo ready && read x");
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it can be started");
        let output = child.stdout.take().expect("a pipe");
        io::BufReader::new(output).read_line(&mut String::new()).expect("it prints a line, and waits");
        let pid = Pid(child.id());
        let start_ticks = Stat::read(pid).expect("it waits").start_ticks;
        let files = Some(Box::new(FileView::of(Identity { pid, start_ticks })));
        let facts = TargetFacts::running(pid, "sh", "sh", Beginning::running(MonotonicNanos(0)));
        let target = TargetFacts { files, ..facts };
        assert_eq!(line(&target, &path, 1).as_deref(), Some("own"));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert_eq!(line(&target, &path, 1), None, "root alone may read that of this machine");
    }

    #[test]
    fn embedded_text_is_limited() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let long = "x".repeat(LINE_CHARS_MAX * 2) + "\n";
        let lines: Lines = (1..=4000).collect();
        let files: Vec<Named> = (0..4)
            .map(|number| {
                let path = folder.path().join(format!("{number}.c"));
                fs::write(&path, long.repeat(4000)).expect("ours");
                let file = path.to_str().expect("UTF-8").into();
                Named { file, lines: vec![(with(Rights::of_invoker()), lines.clone())] }
            })
            .collect();
        let (pieces, read) = pieces(&files);
        assert_eq!((pieces.len(), read), (2, 2));
        assert!(pieces.iter().map(|piece| piece.text.len()).sum::<usize>() <= TEXT_BYTES_MAX);
    }
}
