//! Memory of the machine, of control groups and of this process, and buffers for copies of memory.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use heapbpf_base::ids::Pid;
use memmap2::{Advice, MmapMut, MmapOptions};
use procfs::Current;
use procfs::process::{MMapPath, Process};
use rustix::system::sysinfo;
use tracing::debug;

use crate::proc::process::{self, Membership};
use crate::proc::writable;

/// Size of a page, which on some processors the kernel's configuration determines.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Size below which requests succeed in a process without limits of its own: half of the machine's memory, which heuristic
/// overcommit does not refuse (`__vm_enough_memory` in mm/util.c).
pub fn throw_safe_bytes() -> u64 {
    let info = sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit)) / 2
}

/// Maximum number of mappings of a process. 0 when `/proc` cannot be read.
pub fn map_count_max() -> u32 {
    fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Memory that is available without swapping or killing, in bytes, as the kernel estimates (`MemAvailable`).
pub fn available_bytes() -> Option<u64> {
    procfs::Meminfo::current().ok()?.mem_available
}

/// Returns freed memory to the kernel, which glibc otherwise keeps for later allocations.
#[expect(unsafe_code, reason = "rustix has no interface to the allocator")]
pub fn release_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number, and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

const OOM_SCORE: &str = "oom_score_adj";

/// Number of guards, and the score from before the first guard.
static OOM_PREFERENCES: Mutex<(usize, Option<String>)> = Mutex::new((0, None));

/// RAII guard that makes this process the first candidate of the OOM killer, for control groups as well. The last of
/// several guards restores the score from before.
#[derive(Debug)]
pub struct OomPreference(());

impl OomPreference {
    pub fn raise() -> Self {
        let mut state = OOM_PREFERENCES.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 == 0 {
            state.1 = fs::read_to_string(Path::new("/proc/self").join(OOM_SCORE)).ok();
            let _ = writable::write_own(OOM_SCORE, "1000");
        }
        state.0 += 1;
        Self(())
    }
}

impl Drop for OomPreference {
    fn drop(&mut self) {
        let mut state = OOM_PREFERENCES.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 -= 1;
        if state.0 == 0
            && let Some(before) = state.1.take()
            && let Err(error) = writable::write_own(OOM_SCORE, before.trim())
        {
            debug!("cannot restore `{OOM_SCORE}` of this process: {error}");
        }
    }
}

/// Resident memory of this process, in bytes. Excludes BPF maps, which are mapped as files without a name. 0 when `/proc` cannot
/// be read.
pub fn resident_bytes() -> u64 {
    let read = |process: Process| process.smaps();
    let Ok(maps) = Process::myself().and_then(read) else { return 0 };
    let own = maps.iter().filter(|map| !is_bpf_map(&map.pathname));
    own.filter_map(|map| map.extension.map.get("Rss")).sum()
}

fn is_bpf_map(name: &MMapPath) -> bool {
    matches!(name, MMapPath::Path(path) if path.as_os_str() == "anon_inode:bpf-map")
}

const HIERARCHIES: &str = "/sys/fs/cgroup";

/// Names of the files with the limit and the usage, and of the lines of `memory.stat` with reclaimable parts (cgroup-v2.rst and
/// cgroup-v1/memory.rst).
struct Files {
    limit: &'static str,
    used: &'static str,
    inactive: &'static str,
    active: &'static str,
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    inactive: "total_inactive_file ",
    active: "total_active_file ",
};
const VERSION_2: Files =
    Files { limit: "memory.max", used: "memory.current", inactive: "inactive_file ", active: "active_file " };

/// Memory of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    pub limit_bytes: u64,
    /// Memory that can be used without making the group slower.
    pub left_bytes: u64,
    /// Memory that can be used without processes being killed: all pages of files are reclaimed first.
    pub left_bytes_max: u64,
}

/// Memory of the most restrictive group of this process; `None` where no group has a limit, or none is readable.
pub fn own_group() -> Option<GroupMemory> {
    let memberships = process::memberships(Pid(std::process::id())).ok()?;
    group_of(&memberships, Path::new(HIERARCHIES))
}

pub fn available_in_cgroup_bytes() -> Option<u64> {
    own_group().map(|group| group.left_bytes)
}

fn group_of(memberships: &[Membership], hierarchies: &Path) -> Option<GroupMemory> {
    let groups = memberships.iter().filter_map(|place| {
        let has_memory = place.controllers.split(',').any(|controller| controller == "memory");
        match place.controllers.as_str() {
            "" => Some((hierarchies.to_owned(), VERSION_2, &place.path)),
            _ if has_memory => Some((hierarchies.join("memory"), VERSION_1, &place.path)),
            _ => None,
        }
    });
    // Limits include all descendants. In a container, ancestors, or the process's own group by that name, may not be visible.
    let left = groups.flat_map(|(hierarchy, files, path)| {
        let above = Path::new(path).ancestors().map(|group| group.strip_prefix("/").unwrap_or(group).to_owned());
        above.map(move |group| hierarchy.join(group)).filter_map(move |group| left_in(&group, &files))
    });
    left.min_by_key(|group| group.left_bytes)
}

fn left_in(group: &Path, files: &Files) -> Option<GroupMemory> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // Version 2 writes `max` where there is no limit; version 1 a number larger than any memory.
    let (limit, used) = (number(files.limit)?, number(files.used)?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let bytes = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok()).unwrap_or(0);
    // Usage can exceed the limit for a short time.
    let left_bytes = |reclaimable: u64| limit.saturating_add(reclaimable).saturating_sub(used).min(limit);
    let inactive = bytes(files.inactive);
    Some(GroupMemory {
        limit_bytes: limit,
        left_bytes: left_bytes(inactive),
        left_bytes_max: left_bytes(inactive.saturating_add(bytes(files.active))),
    })
}

/// Reason why allocations may fail within the limits of their process, as a clause after "and". Limits of control groups kill
/// processes and fail no requests.
pub fn overcommit_reason() -> Option<&'static str> {
    let overcommit = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    // The value 2 is `OVERCOMMIT_NEVER` (Documentation/mm/overcommit-accounting.rst).
    (overcommit.trim() == "2").then_some("this machine does not overcommit memory (`vm.overcommit_memory` is 2)")
}

/// Creates a buffer whose pages are allocated when written or [prepared](prepare). It is not in core dumps, because it has
/// another process's memory.
pub fn buffer(length: usize) -> io::Result<MmapMut> {
    let buffer = MmapOptions::new().len(length).no_reserve_swap().map_anon()?;
    // The buffer has no huge pages: copying into them was not faster, and on a machine with little free memory finding them took
    // four times as long as filling small ones (2 s of CPU time per GiB, not 0.5 s).
    let _ = buffer.advise(Advice::DontDump);
    Ok(buffer)
}

/// Allocates pages now, so that later writes do not wait for page faults. No effect before Linux 5.14.
pub fn prepare(buffer: &mut MmapMut, length: usize) {
    let _ = buffer.advise_range(Advice::PopulateWrite, 0, length.min(buffer.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpf_maps_are_distinguished_from_other_files() {
        let check = |name: &str| is_bpf_map(&MMapPath::from(name).expect("a valid name"));
        assert!(check("anon_inode:bpf-map"), "Linux's name");
        assert!(!["anon_inode:[perf_event]", "/usr/lib/libc.so.6", "[heap]", ""].iter().any(|name| check(name)));
    }

    #[test]
    fn machines_have_memory() {
        let bytes = throw_safe_bytes();
        assert!((16 << 20..1 << 46).contains(&bytes), "{bytes}");
    }

    #[test]
    fn processes_may_have_mappings() {
        assert!(map_count_max() > 0);
    }
}

#[cfg(test)]
mod cgroup_memory_tests {
    use super::*;

    /// Writes a group's limit, usage, and `memory.stat`.
    fn group(folder: &Path, files: &Files, [limit, used, stat]: [&str; 3]) {
        fs::create_dir_all(folder).expect("the directory is ours");
        for (file, text) in [(files.limit, limit), (files.used, used), ("memory.stat", stat)] {
            fs::write(folder.join(file), format!("{text}\n")).expect("the directory is ours");
        }
    }

    fn place(controllers: &str, path: &str) -> Membership {
        Membership { controllers: controllers.to_owned(), path: path.to_owned() }
    }

    fn available_in(memberships: &[Membership], hierarchies: &Path) -> Option<u64> {
        group_of(memberships, hierarchies).map(|group| group.left_bytes)
    }

    #[test]
    fn files_are_reclaimed_before_processes_are_killed() {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        group(&folder.path().join("pod"), &VERSION_2, ["1000", "900", "active_file 70\ninactive_file 50"]);
        let expected = GroupMemory { limit_bytes: 1000, left_bytes: 150, left_bytes_max: 220 };
        assert_eq!(group_of(&[place("", "/pod")], folder.path()), Some(expected));
    }

    #[test]
    fn the_most_restrictive_group_counts() {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let root = folder.path();
        let places = [place("", "/pod/container")];
        assert_eq!(available_in(&places, root), None, "nothing is mounted");
        group(&root.join("pod/container"), &VERSION_2, ["max", "700", "anon 5"]);
        assert_eq!(available_in(&places, root), None, "no limit");
        group(&root.join("pod"), &VERSION_2, ["1000", "900", "active_file 7\ninactive_file 50"]);
        assert_eq!(available_in(&places, root), Some(150));
        group(&root.join("pod/container"), &VERSION_2, ["800", "700", ""]);
        assert_eq!(available_in(&places, root), Some(100));
        group(&root.join("pod/container"), &VERSION_2, ["800", "900", "inactive_file 5000"]);
        assert_eq!(available_in(&places, root), Some(150), "no more than the limit");
        assert_eq!(available_in(&[place("", "/other")], root), None);
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own() {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let root = folder.path();
        group(&root.join("memory"), &VERSION_1, ["1000", "400", "inactive_file 1\ntotal_inactive_file 30"]);
        group(&root.join("cpu"), &VERSION_1, ["1", "1", ""]);
        let places = [place("cpu,cpuacct", "/"), place("memory", "/docker/abc"), place("", "/")];
        assert_eq!(available_in(&places, root), Some(630), "the container's group is mounted as the root");
    }

    #[test]
    fn limits_of_this_process_are_readable() {
        assert!(available_in_cgroup_bytes().is_none_or(|bytes| bytes > 0));
    }
}

#[cfg(test)]
mod mapping_tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_writable() {
        for length in [0, 1, 4096, 5 << 20] {
            let mut buffer = buffer(length).expect("a small mapping");
            prepare(&mut buffer, length / 2);
            assert_eq!(buffer.len(), length);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn a_buffer_larger_than_the_address_space_is_refused() {
        assert!(buffer(1 << 60).is_err());
    }
}
