//! Paths of control groups from the root of the host's hierarchy, also where this process is in a control group namespace
//! of its own, as in pods. There, `/proc/PID/cgroup` has paths relative to this process's root: `/../../x.service`
//! (cgroup_namespaces(7)).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use heapbpf_base::ids::Pid;
use heapbpf_base::shown;

use super::process::{Membership, ProcError, memberships};

/// Mount points of the hierarchies: in the file system of the first process, which is the host's where heapbpf is in the host's
/// PID namespace, and in this one, for pods with the host's hierarchy.
const MOUNTS: [&str; 2] = ["/proc/1/root/sys/fs/cgroup", "/sys/fs/cgroup"];
/// Name of the file with the processes of a group, one per line.
const PROCESSES: &str = "cgroup.procs";
/// Maximum number of groups whose processes are compared with this process; they are as deep as its own group.
const GROUPS_MAX: usize = 20_000;
/// Read limit: 4 million processes at most.
const PROCESSES_BYTES_MAX: u64 = 32 << 20;

/// The root of this process's namespace in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Root {
    /// Number of groups above the root, the root included.
    depth: usize,
    /// Names of the groups from the host's root on; `None` if they are unknown.
    names: Option<Vec<String>>,
}

/// Groups of a process, like [`memberships`], with the paths of the host where that is possible: see [`is_relative`].
pub fn cgroups(pid: Pid) -> Result<Vec<Membership>, ProcError> {
    Ok(memberships(pid)?.into_iter().map(absolute).collect())
}

/// Makes a path absolute. The path stays relative where the groups above this process's group are unknown: see [`is_relative`].
fn absolute(membership: Membership) -> Membership {
    static ROOTS: OnceLock<HashMap<String, Root>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| roots(&MOUNTS.map(Path::new)));
    match roots.get(&membership.controllers).and_then(|root| root.absolute(&membership.path)) {
        Some(path) => Membership { path, ..membership },
        None => membership,
    }
}

/// Whether a path begins above this process's root, so that no group of the host can be compared with it.
pub fn is_relative(path: &str) -> bool {
    path == "/.." || path.starts_with("/../")
}

/// Roots by controllers, for hierarchies in which the first process is not below this process's root.
fn roots(mounts: &[&Path]) -> HashMap<String, Root> {
    let own_pid = Pid(std::process::id());
    let (first, own) = (memberships(Pid(1)).unwrap_or_default(), memberships(own_pid).unwrap_or_default());
    let root = |first: Membership| {
        let (depth, _) = split(&first.path);
        if depth == 0 {
            return None;
        }
        let own = own.iter().find(|own| own.controllers == first.controllers)?;
        let directories = mounts.iter().flat_map(|mount| directories(mount, &first.controllers));
        // With both versions mounted, the first of the directories is no group, and contains the hierarchies of version 1.
        let directories: Vec<PathBuf> = directories.filter(|directory| directory.join(PROCESSES).exists()).collect();
        let names = directories.iter().find_map(|directory| names(directory, depth, &own.path, own_pid));
        Some((first.controllers, Root { depth, names }))
    };
    first.into_iter().filter_map(root).collect()
}

/// Possible mount points of a hierarchy: version 2 is mounted by itself or besides others.
fn directories(mount: &Path, controllers: &str) -> Vec<PathBuf> {
    match controllers {
        "" => vec![mount.to_owned(), mount.join("unified")],
        controllers => vec![mount.join(controllers.strip_prefix("name=").unwrap_or(controllers))],
    }
}

/// Finds the group of this process, whose path in the namespace is `own`, below the host's root, and returns the names of
/// the namespace's root.
fn names(directory: &Path, depth: usize, own: &str, pid: Pid) -> Option<Vec<String>> {
    let own: Vec<&str> = own.split('/').filter(|name| !name.is_empty()).collect();
    let mut groups = vec![(directory.to_owned(), Vec::new())];
    for level in 0..depth + own.len() {
        let below = groups.into_iter().flat_map(|(path, names)| {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
            entries.filter(is_directory).map(move |entry| {
                let mut names: Vec<String> = names.clone();
                names.push(shown::os_text(&entry.file_name()).into_owned());
                (entry.path(), names)
            })
        });
        let is_own = |(_, names): &(PathBuf, Vec<String>)| level < depth || names[level] == own[level - depth];
        groups = below.filter(is_own).take(GROUPS_MAX).collect();
    }
    let has_process = |(path, _): &(PathBuf, Vec<String>)| {
        let processes = super::process::read_file(path.join(PROCESSES), PROCESSES_BYTES_MAX).unwrap_or_default();
        shown::text(&processes).lines().any(|line| line == pid.to_string())
    };
    let (_, mut names) = groups.into_iter().find(has_process)?;
    names.truncate(depth);
    Some(names)
}

/// Splits a path into the number of `..` at its beginning, and the names after them.
fn split(path: &str) -> (usize, Vec<&str>) {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let above = names.iter().take_while(|name| **name == "..").count();
    (above, names[above..].to_vec())
}

impl Root {
    fn absolute(&self, path: &str) -> Option<String> {
        let (above, below) = split(path);
        let shared = self.depth.checked_sub(above)?;
        let shared: &[String] = match &self.names {
            Some(names) => names.get(..shared)?,
            // The path leaves all names of the root.
            None if shared == 0 => &[],
            None => return None,
        };
        let names: Vec<&str> = shared.iter().map(String::as_str).chain(below).collect();
        Some(format!("/{}", names.join("/")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(names: Option<&[&str]>) -> Root {
        Root { depth: 3, names: names.map(|names| names.iter().map(|name| (*name).to_owned()).collect()) }
    }

    #[test]
    fn paths_are_those_of_the_host() {
        let known = root(Some(&["kubepods.slice", "pod1.slice", "cri-a.scope"]));
        for (path, expected) in [
            ("/../../../system.slice/x.service", Some("/system.slice/x.service")),
            ("/../../pod2.slice/cri-b.scope", Some("/kubepods.slice/pod2.slice/cri-b.scope")),
            ("/../cri-b.scope", Some("/kubepods.slice/pod1.slice/cri-b.scope")),
            ("/", Some("/kubepods.slice/pod1.slice/cri-a.scope")),
            ("/init", Some("/kubepods.slice/pod1.slice/cri-a.scope/init")),
            ("/../../..", Some("/")),
            // Above the host's root: the first process was in another group.
            ("/../../../../x", None),
        ] {
            assert_eq!(known.absolute(path).as_deref(), expected, "{path}");
        }
        let unknown = root(None);
        assert_eq!(unknown.absolute("/../../../a/b").as_deref(), Some("/a/b"));
        assert_eq!((unknown.absolute("/../b"), unknown.absolute("/b")), (None, None));
        assert!(is_relative("/..") && is_relative("/../b") && !is_relative("/..b") && !is_relative("/a/../b"));
    }

    #[test]
    fn the_own_group_is_found_by_its_processes() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (group, processes) in
            [("a/x/b/own", "1\n12\n"), ("a/y/b/own", "7\n123\n"), ("a/y/b/other", "123\n"), ("c", "123\n")]
        {
            let path = folder.path().join(group);
            fs::create_dir_all(&path).expect("ours");
            fs::write(path.join("cgroup.procs"), processes).expect("ours");
        }
        let found = |own: &str, pid| names(folder.path(), 3, own, Pid(pid)).map(|names| names.join("/"));
        assert_eq!(found("/own", 123).as_deref(), Some("a/y/b"));
        assert_eq!(found("/own", 12).as_deref(), Some("a/x/b"));
        assert_eq!((found("/own", 2), found("/", 123)), (None, None));
    }
}
