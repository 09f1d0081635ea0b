//! All that a process has mapped, from `/proc/PID/maps`, whatever it permits: where data can lie. What code is mapped is
//! [`maps`](super::maps)'.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::maps::{hexadecimal, pair, unescape};
use super::{ProcError, process};
use crate::address::{FileOffset, TargetAddr};
use crate::ids::Pid;

/// Most mappings that are kept of one process: sixteen times what the kernel lets a process have by default.
const REGIONS_MAX: usize = 1 << 20;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: TargetAddr,
    /// First address behind it.
    pub end: TargetAddr,
    /// It may be read.
    pub readable: bool,
    /// It may be written.
    pub writable: bool,
    /// It may be executed.
    pub executable: bool,
    /// What is written is seen by others that map it.
    pub shared: bool,
    /// Where in the file it begins.
    pub offset: FileOffset,
    /// What it is.
    pub kind: RegionKind,
}

/// What is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Memory without a file; a process may name it, and that name is only its own word (`[anon:NAME]`).
    Anonymous {
        /// The name, where there is one.
        name: Option<String>,
    },
    /// What `brk` has made.
    Brk,
    /// The first thread's stack.
    Stack,
    /// A file; for memory that is shared and has none, what the kernel calls it (`/dev/zero (deleted)`, `/memfd:…`).
    File {
        /// Its path in the process's mount namespace.
        path: PathBuf,
    },
    /// What the kernel maps itself: `[vdso]`, `[vvar]`, `[uprobes]` and others.
    Kernel,
}

impl Region {
    /// Bytes.
    pub fn size_bytes(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: TargetAddr) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// One that may be read and written, from the beginning of what it is.
    #[cfg(test)]
    pub(crate) fn made_up(start: u64, size_bytes: u64, kind: RegionKind) -> Self {
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

    /// Whether it has no file, shared or not: memory that the process alone has filled.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.kind, RegionKind::Anonymous { .. } | RegionKind::Brk)
    }
}

/// The region that an address is in, of regions by rising address.
pub fn region_of(regions: &[Region], address: TargetAddr) -> Option<&Region> {
    let behind = regions.partition_point(|region| region.start <= address);
    regions[..behind].last().filter(|region| region.contains(address))
}

/// All mappings of a process, by rising address. Empty for kernel threads and zombies.
///
/// # Errors
///
/// If there is no such process, it may not be read, or it has more than 2²⁰: what is held by the others would look lost.
pub fn regions(pid: Pid) -> Result<Vec<Region>, ProcError> {
    let failed = |source| ProcError::from_io(pid, "maps", source);
    let file = File::open(process::entry_path(pid, "maps")).map_err(failed)?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut regions = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok(regions);
        }
        if regions.len() == REGIONS_MAX {
            return Err(ProcError::TooManyMappings { pid, max: REGIONS_MAX });
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        regions.push(parse(text).ok_or(ProcError::Malformed { pid, entry: "maps" })?);
    }
}

pub(crate) fn parse(line: &[u8]) -> Option<Region> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let (start, end) = pair(fields.next()?, b'-')?;
    let &[read, write, execute, share, ..] = fields.next()? else { return None };
    let offset = hexadecimal(fields.next()?)?;
    let (_device, _inode) = (fields.next()?, fields.next()?);
    Some(Region {
        start: TargetAddr(start),
        end: TargetAddr(end),
        readable: read == b'r',
        writable: write == b'w',
        executable: execute == b'x',
        shared: share == b's',
        offset: FileOffset(offset),
        kind: kind(fields.next().unwrap_or_default().trim_ascii_start()),
    })
}

fn kind(field: &[u8]) -> RegionKind {
    let named = field.strip_prefix(b"[anon:").or_else(|| field.strip_prefix(b"[anon_shmem:"));
    match field {
        [] => RegionKind::Anonymous { name: None },
        b"[heap]" => RegionKind::Brk,
        b"[stack]" => RegionKind::Stack,
        _ if let Some(name) = named => {
            let name = name.strip_suffix(b"]").unwrap_or(name);
            RegionKind::Anonymous { name: Some(String::from_utf8_lossy(name).into_owned()) }
        }
        [b'[', ..] => RegionKind::Kernel,
        path => RegionKind::File { path: PathBuf::from(OsString::from_vec(unescape(path))) },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(line: &str, permissions: [bool; 4], expected: &RegionKind) {
        let region = parse(line.as_bytes()).expect("a whole line");
        assert_eq!((region.start, region.end), (TargetAddr(0x7f00), TargetAddr(0x8f00)), "{line}");
        assert_eq!([region.readable, region.writable, region.executable, region.shared], permissions, "{line}");
        assert_eq!(&region.kind, expected, "{line}");
    }

    #[test]
    fn kinds_and_permissions_are_told_apart() {
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
        fn any_line_is_survived(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }
    }
}
