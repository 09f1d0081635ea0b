//! `--source`: lines of source files around the frames of a profile. Debug information, which targets control, names
//! the files: so only regular files with the extension of a programming language are read, with the rights of the
//! invoking user, and the amount of text is limited.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustix::fs::OFlags;

use super::terminal::say;
use crate::linux::invoker::as_invoker;
use crate::model::{Frame, Profile, SourcePiece};
use crate::report::View;
use crate::report::text::{counted, printable};

/// Lines before and after that of a frame.
const LINES_AROUND: u32 = 10;
const LINE_CHARS_MAX: usize = 400;
/// Limits of a file, of all embedded text, and of the number of files to open.
const FILE_BYTES_MAX: u64 = 4 << 20;
const TEXT_BYTES_MAX: usize = 4 << 20;
const FILES_MAX: usize = 4096;

/// Extensions of source files. Files of passwords and keys have none of them.
const EXTENSIONS: [&str; 50] = [
    "c", "h", "cc", "hh", "cpp", "hpp", "cxx", "hxx", "c++", "h++", "inc", "inl", "ipp", "tcc", "tpp", "i", "ii",
    "def", "m", "mm", "cu", "cuh", "s", "S", "asm", "y", "l", "rs", "go", "zig", "d", "f", "F", "f90", "F90", "f95",
    "adb", "ads", "pas", "swift", "nim", "cr", "vala", "ml", "hs", "java", "kt", "cs", "py", "pyx",
];

/// Embeds the lines around each frame, those of callsites with the largest amounts first.
pub(super) fn embed(profile: &mut Profile, quiet: bool) {
    let files = by_weight(profile);
    let count = files.len();
    let (pieces, read) = match as_invoker(|| pieces(&files)) {
        Ok(found) => found,
        Err(error) => {
            say(&format!(
                "heapbpf: warning: no source lines embedded: cannot take on the invoking user's rights: {error}"
            ));
            return;
        }
    };
    profile.sources = pieces;
    if !quiet && read < count {
        let files = counted(count as u64, "source file");
        say(&format!(
            "heapbpf: embedded lines of {read} of {files}; the others are missing, unreadable for the invoking user, or beyond the limit of 4 MiB of text"
        ));
    }
}

/// A line of a source file that the invoking user may read; `None` without one.
pub(super) fn line(path: &Path, line: u32) -> Option<String> {
    let text = as_invoker(|| read_source(path)).and_then(|text| text).ok()?;
    let line = text.lines().nth(usize::try_from(line.checked_sub(1)?).ok()?)?;
    Some(cleaned(line))
}

type Lines = BTreeSet<u32>;

/// Files and lines of frames, by the allocated bytes of the callsites through them.
fn by_weight(profile: &Profile) -> Vec<(Arc<str>, Lines)> {
    let mut weights: FxHashMap<usize, u128> = FxHashMap::default();
    for (_, callsite) in profile.callsites() {
        let bytes = View::AllocBytes.of_callsite(callsite).max(View::LiveBytes.of_callsite(callsite));
        for id in &callsite.stack {
            *weights.entry(id.0 as usize).or_default() += u128::from(bytes);
        }
    }
    let mut files: BTreeMap<Arc<str>, (u128, Lines)> = BTreeMap::new();
    for (index, weight) in weights {
        let Some(Frame { file: Some(file), line: Some(line @ 1..), .. }) = profile.frames.get(index) else { continue };
        let (most, lines) = files.entry(Arc::clone(file)).or_default();
        *most = weight.max(*most);
        lines.insert(*line);
    }
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by(|(_, (one, _)), (_, (other, _))| other.cmp(one));
    files.into_iter().map(|(file, (_, lines))| (file, lines)).collect()
}

/// The pieces, and of how many files there are some.
fn pieces(files: &[(Arc<str>, Lines)]) -> (Vec<SourcePiece>, usize) {
    let (mut pieces, mut read, mut bytes) = (Vec::new(), 0, 0);
    for (file, lines) in files.iter().take(FILES_MAX) {
        let Ok(text) = read_source(Path::new(&**file)) else { continue };
        let found = around(file, &text, lines);
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

/// Only with an absolute path: others are relative to where the compiler ran.
fn read_source(path: &Path) -> io::Result<String> {
    let refused = |reason| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    let is_source = path.extension().and_then(|extension| extension.to_str()).is_some_and(|e| EXTENSIONS.contains(&e));
    if !path.is_absolute() || !is_source {
        return refused("it is not the absolute path of a source file");
    }
    // Opening a device can change its state.
    if !fs::metadata(path)?.is_file() {
        return refused("it is not a regular file");
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    #[expect(clippy::cast_possible_wrap, reason = "the flags use the low bits only")]
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return refused("it is not a regular file, or too large");
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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

/// Keeps indentation, which `printable` would remove.
fn cleaned(line: &str) -> String {
    let line = line.replace('\t', "    ");
    let indentation = line.len() - line.trim_start_matches(' ').len();
    let text = format!("{}{}", &line[..indentation], printable(&line[indentation..]));
    text.chars().take(LINE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

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
            assert_eq!(read_source(&path(name)).expect("it is source"), "text");
        }
        for name in ["key", "a.pem", "large.c", "folder.c", "device.c", "pipe.c", "missing.c"] {
            assert!(read_source(&path(name)).is_err(), "{name}");
        }
        assert!(read_source(Path::new("Cargo.toml")).is_err() && read_source(Path::new("src/lib.rs")).is_err());
    }

    #[test]
    fn embedded_text_is_limited() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let long = "x".repeat(LINE_CHARS_MAX * 2) + "\n";
        let lines: Lines = (1..=4000).collect();
        let files: Vec<(Arc<str>, Lines)> = (0..4)
            .map(|number| {
                let path = folder.path().join(format!("{number}.c"));
                fs::write(&path, long.repeat(4000)).expect("ours");
                (path.to_str().expect("UTF-8").into(), lines.clone())
            })
            .collect();
        let (pieces, read) = pieces(&files);
        assert_eq!((pieces.len(), read), (2, 2));
        assert!(pieces.iter().map(|piece| piece.text.len()).sum::<usize>() <= TEXT_BYTES_MAX);
    }
}
