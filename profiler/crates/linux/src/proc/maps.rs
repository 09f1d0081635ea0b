//! Mappings of a process. The `procfs` crate panics on a mapped file called `/SYSV`, and requires UTF-8 for all paths.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use rustix::fs::Statx;
use serde::{Deserialize, Serialize};

use super::process::{ProcError, entry_path, executable};
use crate::known;

/// Maximum number of mappings of one process: sixteen times what the kernel allows by default (`vm.max_map_count`).
pub(super) const MAPPINGS_MAX: usize = 1 << 20;

/// Suffix that the kernel appends to the path of a deleted or replaced file.
const DELETED: &[u8] = b" (deleted)";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl Device {
    pub fn from_raw(device: u64) -> Self {
        Self { major: rustix::fs::major(device), minor: rustix::fs::minor(device) }
    }

    pub fn of(metadata: &Statx) -> Self {
        Self { major: metadata.stx_dev_major, minor: metadata.stx_dev_minor }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    device: Device,
    inode: u64,
}

impl FileIdentity {
    pub fn new(device: Device, inode: u64) -> Self {
        Self { device, inode }
    }

    pub fn device(&self) -> Device {
        self.device
    }
}

/// Identity of a process's executable. Device and inode are those of `stat`, or of the memory manager where only the owner of the
/// file system may request them.
pub fn executable_identity(pid: Pid) -> io::Result<FileIdentity> {
    match known::at(&entry_path(pid, "exe")) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => executable_mapping(pid).ok_or(error),
        found => found.map(|found| FileIdentity::new(Device::of(&found), found.stx_ino)),
    }
}

fn executable_mapping(pid: Pid) -> Option<FileIdentity> {
    let executable = executable(pid).ok()?;
    let is_of = |mapping: &Mapping| matches!(&mapping.name, MappingName::File { path, .. } if *path == executable);
    let mapping = executable_mappings(pid).ok()?.into_iter().find(is_of)?;
    Some(FileIdentity::new(mapping.device, mapping.inode))
}

/// Name of a mapping. Its file may have been deleted or replaced since; a file name that really ends with ` (deleted)` is
/// indistinguishable. `Special` is code of the kernel: `[vdso]`, `[vsyscall]`, `[uprobes]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MappingName {
    Anonymous,
    File { path: PathBuf, deleted: bool },
    Special(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    pub start: TargetAddr,
    /// End of the mapping, exclusive.
    pub end: TargetAddr,
    pub offset: FileOffset,
    /// Device of the file, as the memory manager sees it: on overlays and btrfs, `stat` may report another.
    pub device: Device,
    /// Inode of the file; 0 without a file.
    pub inode: u64,
    pub name: MappingName,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    pub start: TargetAddr,
    /// End of the region, exclusive.
    pub end: TargetAddr,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// Whether other processes that map the region see writes: `s` instead of `p`.
    pub shared: bool,
    pub offset: FileOffset,
    pub kind: RegionKind,
}

/// Kind of a region. The name of anonymous memory is without `[anon:` and `]`. A file's path is in the process's mount namespace,
/// or the kernel's name (`/dev/zero (deleted)`, `/memfd:…`). Mappings of the kernel are `[vdso]`, `[vvar]` and others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RegionKind {
    Anonymous { name: Option<String> },
    Brk,
    Stack,
    File { path: PathBuf },
    Kernel,
}

/// Name of the memfd with the inline engine's stubs.
pub const STUBS_NAME: &str = "heapbpf-stubs";

/// Whether a path in `maps` is that of stubs.
pub fn is_stubs(path: &Path) -> bool {
    path.to_str().and_then(|path| path.strip_prefix("/memfd:")).is_some_and(|name| name.starts_with(STUBS_NAME))
}

impl Mapping {
    pub fn is_stubs(&self) -> bool {
        matches!(&self.name, MappingName::File { path, .. } if is_stubs(path))
    }
}

impl Region {
    pub fn is_stubs(&self) -> bool {
        matches!(&self.kind, RegionKind::File { path } if is_stubs(path))
    }

    /// Whether the region is a map of the kernel side that a program shares, such as the inline engine's.
    pub fn is_bpf_map(&self) -> bool {
        matches!(&self.kind, RegionKind::File { path } if path.as_os_str() == "anon_inode:bpf-map")
    }

    /// Whether the region is memory of memfd_secret(2): the kernel refuses to read it for other processes.
    pub fn is_secret(&self) -> bool {
        matches!(&self.kind, RegionKind::File { path } if path.to_str().is_some_and(|path| path.starts_with("/secretmem")))
    }

    pub fn size_bytes(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    pub fn contains(&self, address: TargetAddr) -> bool {
        (self.start..self.end).contains(&address)
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn synthetic(start: u64, size_bytes: u64, kind: RegionKind) -> Self {
        Self {
            start: TargetAddr(start),
            end: TargetAddr(start + size_bytes),
            readable: true,
            writable: true,
            executable: false,
            shared: false,
            offset: FileOffset(0),
            kind,
        }
    }

    pub fn is_anonymous(&self) -> bool {
        matches!(self.kind, RegionKind::Anonymous { .. } | RegionKind::Brk)
    }
}

/// Returns the region that contains an address, from regions by rising address.
pub fn region_of(regions: &[Region], address: TargetAddr) -> Option<&Region> {
    let behind = regions.partition_point(|region| region.start <= address);
    regions[..behind].last().filter(|region| region.contains(address))
}

/// Executable mappings of a process, by rising address, at most 2²⁰. Empty for kernel threads and zombies.
pub fn executable_mappings(pid: Pid) -> Result<Vec<Mapping>, ProcError> {
    Ok(read(pid, parse_mapping)?.0)
}

/// Mappings of files of a process, whatever their permissions, by rising address, at most 2²⁰.
pub fn file_mappings(pid: Pid) -> Result<Vec<Mapping>, ProcError> {
    let parse = |line: &[u8]| parse_any(line).map(|mapping| Some(mapping).filter(|it| it.inode != 0));
    Ok(read(pid, parse)?.0)
}

/// Regions of a process by rising address; empty for kernel threads and zombies. Fails above 2²⁰: leaving some out would report
/// false leaks.
pub fn regions(pid: Pid) -> Result<Vec<Region>, ProcError> {
    match read(pid, |line| parse_region(line).map(Some))? {
        (regions, false) => Ok(regions),
        (_, true) => Err(ProcError::TooManyMappings { pid, max: MAPPINGS_MAX }),
    }
}

/// Reads the lines of `/proc/PID/maps`. `parse` returns `Some(None)` for lines to skip. Also returns whether there are more than
/// the limit.
fn read<T>(pid: Pid, parse: impl Fn(&[u8]) -> Option<Option<T>>) -> Result<(Vec<T>, bool), ProcError> {
    let failed = |source| ProcError::from_io(pid, "maps", source);
    let file = File::open(entry_path(pid, "maps")).map_err(failed)?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut all, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok((all, false));
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let Some(found) = parse(text).ok_or(ProcError::Malformed { pid, entry: "maps" })? else { continue };
        if all.len() == MAPPINGS_MAX {
            return Ok((all, true));
        }
        all.push(found);
    }
}

struct Line<'a> {
    start: TargetAddr,
    end: TargetAddr,
    permissions: &'a [u8],
    offset: FileOffset,
    device: &'a [u8],
    inode: &'a [u8],
    name: &'a [u8],
}

fn split(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let (start, end) = pair(fields.next()?, b'-')?;
    Some(Line {
        start: TargetAddr(start),
        end: TargetAddr(end),
        permissions: fields.next()?,
        offset: FileOffset(hexadecimal(fields.next()?)?),
        device: fields.next()?,
        inode: fields.next()?,
        name: fields.next().unwrap_or_default().trim_ascii_start(),
    })
}

/// Parses a line. `Some(None)` for a mapping that is not executable, `None` for an invalid line.
pub fn parse_mapping(line: &[u8]) -> Option<Option<Mapping>> {
    let executable = *split(line)?.permissions.get(2)? == b'x';
    let mapping = parse_any(line)?;
    Some(executable.then_some(mapping))
}

fn parse_any(line: &[u8]) -> Option<Mapping> {
    let Line { start, end, offset, device, inode, name, .. } = split(line)?;
    let (major, minor) = pair(device, b':')?;
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    let device = Device { major: u32::try_from(major).ok()?, minor: u32::try_from(minor).ok()? };
    Some(Mapping { start, end, offset, device, inode, name: mapping_name(name) })
}

/// Name of a mapping. Executable heaps and stacks (generated code) and labels `[anon:…]`, which the process chooses, are
/// anonymous memory.
fn mapping_name(field: &[u8]) -> MappingName {
    match field {
        b"[vdso]" | b"[vsyscall]" | b"[uprobes]" => MappingName::Special(shown::text(field).into_owned()),
        [] | [b'[', ..] => MappingName::Anonymous,
        path => {
            let (path, deleted) = path.strip_suffix(DELETED).map_or((path, false), |path| (path, true));
            MappingName::File { path: unescape(path), deleted }
        }
    }
}

pub fn parse_region(line: &[u8]) -> Option<Region> {
    let Line { start, end, permissions, offset, name, .. } = split(line)?;
    let &[read, write, execute, share, ..] = permissions else { return None };
    Some(Region {
        start,
        end,
        readable: read == b'r',
        writable: write == b'w',
        executable: execute == b'x',
        shared: share == b's',
        offset,
        kind: region_kind(name),
    })
}

fn region_kind(field: &[u8]) -> RegionKind {
    let named = field.strip_prefix(b"[anon:").or_else(|| field.strip_prefix(b"[anon_shmem:"));
    match field {
        [] => RegionKind::Anonymous { name: None },
        b"[heap]" => RegionKind::Brk,
        b"[stack]" => RegionKind::Stack,
        _ if let Some(name) = named => {
            let name = name.strip_suffix(b"]").unwrap_or(name);
            RegionKind::Anonymous { name: Some(shown::text(name).into_owned()) }
        }
        [b'[', ..] => RegionKind::Kernel,
        path => RegionKind::File { path: unescape(path) },
    }
}

/// Undoes the only escape of the kernel in this file, that of a line feed (`seq_file_path(m, file, "\n")`).
fn unescape(mut path: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(path.len());
    while let Some((&first, tail)) = path.split_first() {
        let line_feed = path.strip_prefix(b"\\012");
        plain.push(if line_feed.is_some() { b'\n' } else { first });
        path = line_feed.unwrap_or(tail);
    }
    PathBuf::from(OsString::from_vec(plain))
}

fn pair(field: &[u8], separator: u8) -> Option<(u64, u64)> {
    let at = field.iter().position(|&byte| byte == separator)?;
    Some((hexadecimal(&field[..at])?, hexadecimal(&field[at + 1..])?))
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(field: &[u8], expected: &MappingName) {
        let mut line = b"7f2d1000-7f2d3000 r-xp 00001000 fe:01 4711                     ".to_vec();
        line.extend_from_slice(field);
        let mapping = parse_mapping(&line).expect("a whole line").expect("an executable mapping");
        assert_eq!(&mapping.name, expected, "{}", String::from_utf8_lossy(field));
        assert_eq!((mapping.start, mapping.end), (TargetAddr(0x7f2d_1000), TargetAddr(0x7f2d_3000)));
        assert_eq!((mapping.offset, mapping.inode), (FileOffset(0x1000), 4711));
        assert_eq!(mapping.device, Device { major: 0xfe, minor: 1 });
    }

    fn file(path: &[u8], deleted: bool) -> MappingName {
        MappingName::File { path: PathBuf::from(OsString::from_vec(path.to_vec())), deleted }
    }

    #[test]
    fn names_are_classified() {
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
    fn non_executable_mappings_are_skipped() {
        assert_eq!(parse_mapping(b"1000-2000 rw-p 00000000 00:00 0 "), Some(None));
        assert_eq!(parse_mapping(b"1000-2000 rw-"), None);
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
        fn any_line_is_parsed_without_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_mapping(&line);
        }

        #[test]
        fn any_path_is_parsed_without_panic(path in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = mapping_name(&path);
        }
    }
}

#[cfg(test)]
mod region_tests {
    use proptest::prelude::*;

    use super::*;

    fn check(line: &str, permissions: [bool; 4], expected: &RegionKind) {
        let region = parse_region(line.as_bytes()).expect("a whole line");
        assert_eq!((region.start, region.end), (TargetAddr(0x7f00), TargetAddr(0x8f00)), "{line}");
        assert_eq!([region.readable, region.writable, region.executable, region.shared], permissions, "{line}");
        assert_eq!(&region.kind, expected, "{line}");
    }

    #[test]
    fn kinds_and_permissions_are_parsed() {
        let anonymous = |name: Option<&str>| RegionKind::Anonymous { name: name.map(str::to_owned) };
        let file = |path: &str| RegionKind::File { path: path.into() };
        let rw = [true, true, false, false];
        check("7f00-8f00 rw-p 00000000 00:00 0 ", rw, &anonymous(None));
        check("7f00-8f00 rw-p 00000000 00:00 0      [heap]", rw, &RegionKind::Brk);
        check("7f00-8f00 rw-p 00000000 00:00 0      [stack]", rw, &RegionKind::Stack);
        check("7f00-8f00 rw-p 00000000 00:00 0  [anon:scudo:primary]", rw, &anonymous(Some("scudo:primary")));
        check("7f00-8f00 rw-s 00000000 00:01 42 [anon_shmem:x]", [true, true, false, true], &anonymous(Some("x")));
        check("7f00-8f00 r-xp 00000000 00:00 0 [vdso]", [true, false, true, false], &RegionKind::Kernel);
        check("7f00-8f00 ---p 00001000 fe:01 7 /opt/a b/c", [false; 4], &file("/opt/a b/c"));
        check(
            "7f00-8f00 rw-s 00000000 00:01 7 /dev/zero (deleted)",
            [true, true, false, true],
            &file("/dev/zero (deleted)"),
        );
    }

    #[test]
    fn own_data_and_stack_are_found() {
        let regions = regions(Pid(std::process::id())).expect("readable");
        assert!(regions.is_sorted_by_key(|region| region.start));
        let local = 0_u8;
        let here = TargetAddr((&raw const local).addr() as u64);
        let own = region_of(&regions, here).expect("mapped");
        assert!(own.readable && own.writable && !own.shared, "{own:?}");
        assert!(regions.iter().any(|region| region.kind == RegionKind::Stack));
        assert_eq!(region_of(&regions, TargetAddr(0)), None);
    }

    proptest! {
        #[test]
        fn any_line_is_parsed_without_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_region(&line);
        }
    }
}

#[cfg(test)]
mod executable_tests {
    use super::*;

    #[test]
    fn programs_are_distinguished_by_their_file() {
        let own = executable_identity(Pid(std::process::id())).expect("this process runs");
        let mut sleep = std::process::Command::new("sleep").arg("9").spawn().expect("sleep starts");
        let other = executable_identity(Pid(sleep.id()));
        let _ = sleep.kill();
        let _ = sleep.wait();
        assert_ne!(own, other.expect("it ran"));
        assert!(executable_identity(Pid(u32::MAX)).is_err());
    }
}
