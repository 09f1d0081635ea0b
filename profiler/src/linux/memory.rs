//! How much memory this machine has, and this process takes.

use procfs::Current;
use procfs::process::{MMapPath, Process};
use rustix::system::sysinfo;

/// Requests below this many bytes succeed in a process without limits of its own: half of what the machine has, which not
/// even the kernel's cautious accounting refuses (`OVERCOMMIT_GUESS` in
/// [`__vm_enough_memory`](https://github.com/torvalds/linux/blob/v6.12/mm/util.c#L946)).
pub(crate) fn throw_safe_bytes() -> u64 {
    let info = sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit)) / 2
}

/// Memory that can be had without anything being swapped out or ended for it, in bytes, as the kernel guesses (`MemAvailable`).
pub(crate) fn available_bytes() -> Option<u64> {
    procfs::Meminfo::current().ok()?.mem_available
}

/// Has the kernel end this process before any other where memory runs out, that of a control group too.
pub(crate) fn give_way() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Resident memory of this process, in bytes, without what of it are the kernel's maps: those are mapped as files that have
/// no name. 0 when `/proc` does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let read = |process: Process| process.smaps();
    let Ok(maps) = Process::myself().and_then(read) else { return 0 };
    let own = maps.iter().filter(|map| !is_bpf_map(&map.pathname));
    own.filter_map(|map| map.extension.map.get("Rss")).sum()
}

/// Whether this is what a BPF map is called that is mapped into a process.
fn is_bpf_map(name: &MMapPath) -> bool {
    matches!(name, MMapPath::Path(path) if path.as_os_str() == "anon_inode:bpf-map")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpf_maps_are_told_from_other_files() {
        let check = |name: &str| is_bpf_map(&MMapPath::from(name).expect("it is a name"));
        assert!(check("anon_inode:bpf-map"), "as Linux writes it");
        assert!(!["anon_inode:[perf_event]", "/usr/lib/libc.so.6", "[heap]", ""].iter().any(|name| check(name)));
    }

    #[test]
    fn machines_have_memory() {
        let bytes = throw_safe_bytes();
        assert!((16 << 20..1 << 46).contains(&bytes), "{bytes}");
    }
}
