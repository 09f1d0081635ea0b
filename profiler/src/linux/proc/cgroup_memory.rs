//! How much memory its control groups leave a process: the limit of a container, of which the machine's own figures say nothing.

use std::fs;
use std::path::Path;

use super::cgroups::{self, Membership};
use crate::ids::Pid;

/// Where hierarchies are mounted, as systemd and container runtimes do it.
const HIERARCHIES: &str = "/sys/fs/cgroup";

/// A version's files: the limit, what is used, and the line of `memory.stat` with what of that the kernel gives back when asked.
/// See [cgroup-v2.rst](https://github.com/torvalds/linux/blob/v6.12/Documentation/admin-guide/cgroup-v2.rst) and
/// [memory.rst](https://github.com/torvalds/linux/blob/v6.12/Documentation/admin-guide/cgroup-v1/memory.rst).
struct Files {
    limit: &'static str,
    used: &'static str,
    reclaimable: &'static str,
}

const VERSION_1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", reclaimable: "total_inactive_file " };
const VERSION_2: Files = Files { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file " };

/// Bytes that this process may still take, by the narrowest of its groups. `None` where no group has a limit, or none can be read.
pub(crate) fn available_bytes() -> Option<u64> {
    let places = cgroups::of(Pid(std::process::id())).ok()?;
    available_in(&places, Path::new(HIERARCHIES))
}

fn available_in(places: &[Membership], hierarchies: &Path) -> Option<u64> {
    let groups = places.iter().filter_map(|place| {
        let is_memorys = place.controllers.split(',').any(|controller| controller == "memory");
        match place.controllers.as_str() {
            "" => Some((hierarchies.to_owned(), VERSION_2, &place.path)),
            _ if is_memorys => Some((hierarchies.join("memory"), VERSION_1, &place.path)),
            _ => None,
        }
    });
    // Limits hold for all that is below. In a container the upper groups, or its own by that name, may not be in sight.
    let left = groups.flat_map(|(hierarchy, files, path)| {
        let above = Path::new(path).ancestors().map(|group| group.strip_prefix("/").unwrap_or(group).to_owned());
        above.map(move |group| hierarchy.join(group)).filter_map(move |group| left_in(&group, &files))
    });
    left.min()
}

/// What a group has left, where it has a limit.
fn left_in(group: &Path, files: &Files) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // Version 2 writes `max` where there is none; version 1 a number that no machine has.
    let (limit, used) = (number(files.limit)?, number(files.used)?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat.lines().find_map(|line| line.strip_prefix(files.reclaimable)?.parse::<u64>().ok());
    Some(limit.saturating_sub(used).saturating_add(reclaimable.unwrap_or(0)).min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group with a limit, bytes used, and `memory.stat`.
    fn group(folder: &Path, files: &Files, [limit, used, stat]: [&str; 3]) {
        fs::create_dir_all(folder).expect("the directory is ours");
        for (file, text) in [(files.limit, limit), (files.used, used), ("memory.stat", stat)] {
            fs::write(folder.join(file), format!("{text}\n")).expect("the directory is ours");
        }
    }

    fn place(controllers: &str, path: &str) -> Membership {
        Membership { controllers: controllers.to_owned(), path: path.to_owned() }
    }

    #[test]
    fn the_narrowest_group_counts() {
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
        assert_eq!(available_in(&places, root), Some(630), "the container sees its group as the root");
    }

    #[test]
    fn this_process_has_some() {
        assert!(available_bytes().is_none_or(|bytes| bytes > 0));
    }
}
