//! Stubs of the inline engine in a process, and the slots that lead to them, read from `/proc/PID`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Name of the mappings that contain stubs, and the start of the data that they share with the kernel side.
const STUBS: &str = "heapbpf-stubs";

/// A mapping of a process.
struct Mapping {
    range: Range<u64>,
    is_writable: bool,
    offset: u64,
    path: String,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let offset = number(fields.next()?)?;
        Some(Self {
            range: number(start)?..number(end)?,
            is_writable: permissions.contains('w'),
            offset,
            path: fields.skip(2).collect::<Vec<_>>().join(" "),
        })
    }

    fn is_of_stubs(&self) -> bool {
        self.path.contains(STUBS)
    }

    /// Whether it is of a module, whose tables of pointers are private copies of its file.
    fn is_of_module(&self) -> bool {
        self.path.starts_with('/') && !self.path.starts_with("/memfd:") && !self.path.starts_with("/dev/")
    }
}

fn mappings(pid: u32) -> io::Result<Vec<Mapping>> {
    Ok(fs::read_to_string(format!("/proc/{pid}/maps"))?.lines().filter_map(Mapping::parse).collect())
}

/// Number of mappings of stubs in a process.
#[track_caller]
pub fn mapped(pid: u32) -> usize {
    let mappings = mappings(pid).unwrap_or_else(|error| panic!("maps of {pid}: {error}"));
    mappings.iter().filter(|mapping| mapping.is_of_stubs()).count()
}

/// Returns the words in the data of a process's modules that point into stubs, as `module+0xoffset`.
///
/// # Errors
///
/// When the process has exited.
pub fn slots_to_stubs(pid: u32) -> io::Result<Vec<String>> {
    let (mappings, memory) = (mappings(pid)?, File::open(format!("/proc/{pid}/mem"))?);
    let stubs: Vec<&Range<u64>> = mappings.iter().filter(|it| it.is_of_stubs()).map(|it| &it.range).collect();
    let mut slots = Vec::new();
    // A mapping may disappear meanwhile.
    for mapping in mappings.iter().filter(|_| !stubs.is_empty()).filter(|it| it.is_of_module()) {
        let mut bytes = vec![0; usize::try_from(mapping.range.end - mapping.range.start).unwrap_or(0)];
        if memory.read_exact_at(&mut bytes, mapping.range.start).is_err() {
            continue;
        }
        for (at, word) in (mapping.offset..).step_by(8).zip(bytes.as_chunks::<8>().0) {
            let target = u64::from_ne_bytes(*word);
            if stubs.iter().any(|range| range.contains(&target)) {
                slots.push(format!("{}+{at:#x}", mapping.path));
            }
        }
    }
    Ok(slots)
}

/// Fails unless no slot of a process leads to a stub.
#[track_caller]
pub fn assert_restored(pid: u32) {
    let slots = slots_to_stubs(pid).unwrap_or_else(|error| panic!("memory of {pid}: {error}"));
    assert!(slots.is_empty(), "{} slots of {pid} lead to stubs: {slots:?}", slots.len());
}

/// Returns the contents of the pages of a process's modules that the dynamic linker has made read-only again: they
/// contain most slots, and the process does not change them.
#[track_caller]
pub fn relocated_pages(pid: u32) -> BTreeMap<String, Vec<u8>> {
    let mappings = mappings(pid).unwrap_or_else(|error| panic!("maps of {pid}: {error}"));
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap_or_else(|error| panic!("memory of {pid}: {error}"));
    let modules = mappings.iter().filter(|mapping| mapping.is_of_module() && !mapping.is_writable);
    let pages = modules.map(|mapping| {
        let mut bytes = vec![0; usize::try_from(mapping.range.end - mapping.range.start).expect("fits")];
        memory
            .read_exact_at(&mut bytes, mapping.range.start)
            .unwrap_or_else(|error| panic!("{}: {error}", mapping.path));
        (format!("{}+{:#x}", mapping.path, mapping.offset), bytes)
    });
    pages.collect()
}
