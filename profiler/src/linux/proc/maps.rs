//! The executable mappings of a process, from `/proc/PID/maps`.
//!
//! The `procfs` crate is not used for this file: it panics on a mapped file called `/SYSV`, and refuses the whole
//! list when one path is not UTF-8, and a target chooses its file names.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{ProcError, process};
use crate::address::{FileOffset, TargetAddr};
use crate::ids::Pid;

/// Most executable mappings that are kept of one process: sixteen times what the kernel lets a process have by default
/// (`vm.max_map_count`).
const MAPPINGS_MAX: usize = 1 << 20;

/// What the kernel appends to the path of a file that was deleted or replaced.
pub(super) const DELETED: &[u8] = b" (deleted)";

/// A device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// Takes apart what `stat` reports as `st_dev`.
    pub fn from_raw(device: u64) -> Self {
        Self { major: rustix::fs::major(device), minor: rustix::fs::minor(device) }
    }
}

/// What is mapped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MappingName {
    /// Memory without a file, such as the code of a just-in-time compiler.
    Anonymous,
    /// A file.
    File {
        /// Its path in the process's mount namespace.
        path: PathBuf,
        /// It was deleted or replaced since. A file whose name really ends with ` (deleted)` looks the same.
        deleted: bool,
    },
    /// Code that the kernel put there: `[vdso]`, `[vsyscall]`, `[uprobes]`.
    Special(String),
}

/// One executable mapping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// First address.
    pub start: TargetAddr,
    /// First address behind it.
    pub end: TargetAddr,
    /// Where in the file it begins.
    pub offset: FileOffset,
    /// Device of the file, as the memory manager sees it: on overlays and btrfs `stat` may say otherwise.
    pub device: Device,
    /// Inode of the file; 0 where there is none.
    pub inode: u64,
    /// What is mapped.
    pub name: MappingName,
}

/// The executable mappings of a process, by rising address. Empty for kernel threads and zombies.
///
/// # Errors
///
/// If there is no such process, or it may not be read.
pub(crate) fn executable_mappings(pid: Pid) -> Result<Vec<Mapping>, ProcError> {
    let failed = |source| ProcError::from_io(pid, "maps", source);
    let file = File::open(process::entry_path(pid, "maps")).map_err(failed)?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut mappings = Vec::new();
    let mut line = Vec::new();
    while mappings.len() < MAPPINGS_MAX {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        match parse(text).ok_or(ProcError::Malformed { pid, entry: "maps" })? {
            Some(mapping) => mappings.push(mapping),
            None => continue,
        }
    }
    Ok(mappings)
}

/// One line. `Some(None)` for a mapping that is not executable, `None` when the line cannot be understood.
pub(crate) fn parse(line: &[u8]) -> Option<Option<Mapping>> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let (start, end) = pair(fields.next()?, b'-')?;
    let executable = *fields.next()?.get(2)? == b'x';
    let offset = hexadecimal(fields.next()?)?;
    let (major, minor) = pair(fields.next()?, b':')?;
    let inode = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    if !executable {
        return Some(None);
    }
    Some(Some(Mapping {
        start: TargetAddr(start),
        end: TargetAddr(end),
        offset: FileOffset(offset),
        device: Device { major: u32::try_from(major).ok()?, minor: u32::try_from(minor).ok()? },
        inode,
        name: name(fields.next().unwrap_or_default().trim_ascii_start()),
    }))
}

/// What the last field says. Heaps and stacks that are executable hold generated code, if any, and `[anon:…]` is a
/// label that the process chose: all of these are anonymous memory.
fn name(field: &[u8]) -> MappingName {
    match field {
        b"[vdso]" | b"[vsyscall]" | b"[uprobes]" => MappingName::Special(String::from_utf8_lossy(field).into_owned()),
        [] | [b'[', ..] => MappingName::Anonymous,
        path => {
            let (path, deleted) = path.strip_suffix(DELETED).map_or((path, false), |path| (path, true));
            MappingName::File { path: PathBuf::from(OsString::from_vec(unescape(path))), deleted }
        }
    }
}

/// Undoes the one escape that the kernel makes here, that of a line feed (`seq_file_path(m, file, "\n")`).
pub(super) fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = tail;
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    plain
}

pub(super) fn pair(field: &[u8], separator: u8) -> Option<(u64, u64)> {
    let at = field.iter().position(|&byte| byte == separator)?;
    Some((hexadecimal(&field[..at])?, hexadecimal(&field[at + 1..])?))
}

pub(super) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(field: &[u8], expected: &MappingName) {
        let mut line = b"7f2d1000-7f2d3000 r-xp 00001000 fe:01 4711                     ".to_vec();
        line.extend_from_slice(field);
        let mapping = parse(&line).expect("a whole line").expect("an executable mapping");
        assert_eq!(&mapping.name, expected, "{}", String::from_utf8_lossy(field));
        assert_eq!((mapping.start, mapping.end), (TargetAddr(0x7f2d_1000), TargetAddr(0x7f2d_3000)));
        assert_eq!((mapping.offset, mapping.inode), (FileOffset(0x1000), 4711));
        assert_eq!(mapping.device, Device { major: 0xfe, minor: 1 });
    }

    fn file(path: &[u8], deleted: bool) -> MappingName {
        MappingName::File { path: PathBuf::from(OsString::from_vec(path.to_vec())), deleted }
    }

    #[test]
    fn names_are_told_apart() {
        check(b"/usr/bin/redis-server", &file(b"/usr/bin/redis-server", false));
        check(b"/opt/a b/c (deleted)", &file(b"/opt/a b/c", true));
        check(b"/tmp/line\\012feed", &file(b"/tmp/line\nfeed", false));
        check(b"/tmp/\xff\xfe", &file(b"/tmp/\xff\xfe", false));
        check(b"/SYSV", &file(b"/SYSV", false));
        check(b"/memfd:jit (deleted)", &file(b"/memfd:jit", true));
        check(b"[vdso]", &MappingName::Special("[vdso]".to_owned()));
        check(b"[uprobes]", &MappingName::Special("[uprobes]".to_owned()));
        check(b"[anon:v8]", &MappingName::Anonymous);
        check(b"[stack]", &MappingName::Anonymous);
        check(b"", &MappingName::Anonymous);
    }

    #[test]
    fn what_is_not_executable_is_left_out() {
        assert_eq!(parse(b"1000-2000 rw-p 00000000 00:00 0 "), Some(None));
        assert_eq!(parse(b"1000-2000 rw-"), None);
    }

    #[test]
    fn this_test_is_in_one_of_its_own_mappings() {
        let mappings = executable_mappings(Pid(std::process::id())).expect("readable");
        let here = TargetAddr(this_test_is_in_one_of_its_own_mappings as fn() as usize as u64);
        let own = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&here)).expect("mapped");
        let MappingName::File { path, deleted: false } = &own.name else { panic!("{own:?}") };
        assert_eq!(path, &std::env::current_exe().expect("known"));
        assert!(mappings.iter().any(|mapping| mapping.name == MappingName::Special("[vdso]".to_owned())));
        assert!(mappings.is_sorted_by_key(|mapping| mapping.start));
    }

    proptest! {
        #[test]
        fn any_line_is_survived(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn any_path_is_survived(path in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = name(&path);
        }
    }
}
