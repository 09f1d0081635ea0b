//! Probes of other tools on the instructions that heapbpf probes. The kernel calls all probes of an instruction at each
//! hit, in whichever process, so even those that are limited to other processes slow down the targets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use heapbpf_base::shown::Shown;
use heapbpf_linux::bpf;
use heapbpf_linux::proc::maps::FileIdentity;
use tracing::debug;

use super::leftover::CodeLocation;
use super::plan::PlannedHook;
use crate::object::image::{Image, identity_here};
use crate::object::module::ModuleStore;

#[derive(Debug, Default)]
pub(crate) struct Found<'a> {
    pub count: u64,
    /// Names of probed functions by the path of their file.
    pub functions: BTreeMap<&'a str, Vec<&'a str>>,
    is_complete: bool,
}

/// Finds probes of other tools. Each of `breakpoints` counts as one probe where no owner is listed.
pub(crate) fn find<'a>(
    own: &[BorrowedFd<'_>],
    hooks: impl Iterator<Item = &'a PlannedHook>,
    modules: &ModuleStore,
    breakpoints: &BTreeSet<CodeLocation>,
) -> Found<'a> {
    let listed = list(own).unwrap_or_else(|error| {
        debug!("cannot list probes of other tools: {error}");
        Listed::default()
    });
    let mut found = Found { is_complete: listed.is_complete, ..Found::default() };
    for planned in hooks {
        let place = (planned.hook.module, planned.offset());
        let count = listed.count_at(place, modules).max(u64::from(breakpoints.contains(&place)));
        if count > 0 {
            found.count += count;
            found.functions.entry(&planned.hook.path).or_default().push(planned.hook.spec.function);
        }
    }
    found
}

impl Found<'_> {
    /// Number of probes; `None` if there may be probes that the kernel does not list.
    pub(crate) fn known_count(&self) -> Option<u64> {
        (self.count > 0 || self.is_complete).then_some(self.count)
    }
}

/// Offsets of other tools' probes, by file.
#[derive(Debug, Default)]
struct Listed {
    by_file: HashMap<FileIdentity, Vec<u64>>,
    is_complete: bool,
}

impl Listed {
    fn count_at(&self, (module, offset): CodeLocation, modules: &ModuleStore) -> u64 {
        let file = modules.get(module).image().ok().map(Image::file_identity);
        let offsets = file.and_then(|file| self.by_file.get(&file));
        offsets.map_or(0, |offsets| offsets.iter().filter(|&&other| other == offset.0).count() as u64)
    }
}

/// Whether all probes at these places are of other recordings by the same heapbpf.
pub(crate) fn are_of_heapbpf(
    own: &[BorrowedFd<'_>],
    places: &[CodeLocation],
    modules: &ModuleStore,
) -> io::Result<bool> {
    let programs = own.iter().map(bpf::equal_programs).collect::<io::Result<Vec<_>>>()?.concat();
    let listed = list_without(&programs)?;
    Ok(listed.is_complete && places.iter().all(|&place| listed.count_at(place, modules) == 0))
}

fn list(own: &[BorrowedFd<'_>]) -> io::Result<Listed> {
    list_without(&own.iter().map(bpf::program_id).collect::<io::Result<Vec<u32>>>()?)
}

fn list_without(programs: &[u32]) -> io::Result<Listed> {
    let links = bpf::uprobe_links(programs)?;
    let mut listed = Listed { is_complete: links.iter().all(Option::is_some), ..Listed::default() };
    let links = links.into_iter().flatten().map(|link| (link.path, link.offsets));
    for (path, offsets) in links.chain(enabled_events()) {
        // For a perf event, the kernel keeps the path that its owner used.
        if path.starts_with("/proc/self") {
            listed.is_complete = false;
            continue;
        }
        match identity_here(&path) {
            Some(file) => listed.by_file.entry(file).or_default().extend(offsets),
            None => debug!("probed by another tool, and not found: `{}`", Shown::of(&path)),
        }
    }
    Ok(listed)
}

/// Enabled probes of tracefs, such as those of `perf probe`.
fn enabled_events() -> Vec<(PathBuf, Vec<u64>)> {
    for folder in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].map(Path::new) {
        let Ok(text) = fs::read_to_string(folder.join("uprobe_events")) else { continue };
        let is_enabled = |name: &str| {
            let state = fs::read_to_string(folder.join("events").join(name).join("enable"));
            state.is_ok_and(|state| state.starts_with('1'))
        };
        let events = text.lines().filter_map(parse_event).filter(|(name, ..)| is_enabled(name));
        return events.map(|(_, path, offset)| (path, vec![offset])).collect();
    }
    Vec::new()
}

/// Parses a line of `uprobe_events`: `p:GROUP/NAME PATH:0xOFFSET ARGUMENTS` (`trace_uprobe_show` in
/// kernel/trace/trace_uprobe.c).
fn parse_event(line: &str) -> Option<(&str, PathBuf, u64)> {
    let (name, rest) = line.split_once(':')?.1.split_once(' ')?;
    let (path, rest) = rest.split_once(":0x")?;
    let digits = rest.split(|digit: char| !digit.is_ascii_hexdigit()).next()?;
    Some((name, PathBuf::from(path), u64::from_str_radix(digits, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_tracefs_have_files_and_offsets() {
        let parsed = |line| parse_event(line).map(|(name, path, offset)| (name, path.display().to_string(), offset));
        assert_eq!(
            parsed("p:probe_libc/malloc /usr/lib/a b/libc.so.6:0x0000000000098970 size=%di:u64"),
            Some(("probe_libc/malloc", "/usr/lib/a b/libc.so.6".to_owned(), 0x98970))
        );
        assert_eq!(parsed("r:g/n /bin/x:0x10(0x20)"), Some(("g/n", "/bin/x".to_owned(), 0x10)));
        assert_eq!((parsed(""), parsed("p:g/n /bin/x"), parsed("p:g/n /bin/x:0xz")), (None, None, None));
    }
}
