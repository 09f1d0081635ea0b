//! Which control groups a process is in, from `/proc/PID/cgroup`.

use super::{ProcError, process};
use crate::ids::Pid;

/// Most bytes that are read: a line per hierarchy, of which there are at most some 15, and paths of at most 4 KiB.
const BYTES_MAX: u64 = 1 << 16;

/// What the kernel appends to the path of a group that was removed.
const DELETED: &str = " (deleted)";

/// A process's place in one hierarchy of groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// The controllers of a version 1 hierarchy (`memory`, `cpu,cpuacct`, `name=systemd`); empty for version 2.
    pub controllers: String,
    /// The group's path from the hierarchy's root, or from the root of this process's cgroup namespace; begins with `/`.
    pub path: String,
}

/// The groups that the process is in, in the kernel's order: one with version 2, one per hierarchy with version 1, both
/// where both are mounted. Bytes that are not UTF-8 become `U+FFFD`.
///
/// # Errors
///
/// If there is no such process, or it may not be read.
pub(crate) fn of(pid: Pid) -> Result<Vec<Membership>, ProcError> {
    let bytes = process::read(pid, "cgroup", BYTES_MAX)?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

/// Takes the file apart: `number:controllers:path` a line. A line that cannot be understood is left out.
pub(crate) fn parse(text: &str) -> Vec<Membership> {
    let membership = |line: &str| {
        let (_number, rest) = line.split_once(':')?;
        // The name of a version 1 hierarchy is without colons, a path is not.
        let (controllers, path) = rest.split_once(':')?;
        let path = path.strip_suffix(DELETED).unwrap_or(path);
        path.starts_with('/').then(|| Membership { controllers: controllers.to_owned(), path: path.to_owned() })
    };
    text.split('\n').filter_map(membership).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: &[(&str, &str)]) {
        let found = parse(text);
        let found: Vec<_> = found.iter().map(|place| (place.controllers.as_str(), place.path.as_str())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn both_versions_are_understood() {
        check("0::/system.slice/redis.service\n", &[("", "/system.slice/redis.service")]);
        check(
            "9:name=systemd:/\n4:memory:/docker/abc\n3:cpu,cpuacct:/\n0::/\n",
            &[("name=systemd", "/"), ("memory", "/docker/abc"), ("cpu,cpuacct", "/"), ("", "/")],
        );
        check("0::/a:b/kubepods.slice:cri-containerd:0123\n", &[("", "/a:b/kubepods.slice:cri-containerd:0123")]);
        check("0::/gone (deleted)\n", &[("", "/gone")]);
        check("0::/../sibling", &[("", "/../sibling")]);
    }

    #[test]
    fn what_is_no_line_is_left_out() {
        check("", &[]);
        check("\n0:\n0::\n0::relative\nx\n0::/\n", &[("", "/")]);
    }

    #[test]
    fn this_process_is_somewhere() {
        let places = of(Pid(std::process::id())).expect("readable");
        assert!(places.iter().all(|place| place.path.starts_with('/')), "{places:?}");
        assert!(!places.is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn any_path_is_kept(path in "/[^\\n]{0,50}[^)\\n]") {
            check(&format!("0::{path}\n"), &[("", &path)]);
        }
    }
}
