//! `--cgroup`: control groups by path, or by container ID.

use std::fmt;
use std::str::FromStr;

use heapbpf_linux::proc::process::Membership;

const MOUNT: &str = "/sys/fs/cgroup";

/// Minimum number of digits of a container ID: shorter ones are common in other names.
const ID_DIGITS_MIN: usize = 6;
const ID_DIGITS_MAX: usize = 64;

/// Prefixes that container engines add to an ID in a group's name.
const ENGINES: [&str; 6] = ["docker-", "cri-containerd-", "crio-", "libpod-", "containerd-", "nerdctl-"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    text: String,
    matcher: Matcher,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher {
    Path(Vec<String>),
    /// Prefix of a container's ID, in lower case.
    Container(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    #[error("the control group `{0}` is empty; give a path as in `/proc/PID/cgroup`, or a container's id")]
    Empty(String),
    #[error(
        "the container id `{0}` is too short: give at least {ID_DIGITS_MIN} digits of it, or a path that begins with `/`"
    )]
    TooShort(String),
    #[error(
        "the container id `{0}` has more than {ID_DIGITS_MAX} digits; give its beginning, or a path that begins with `/`"
    )]
    TooLong(String),
    #[error(
        "the control group `{0}` is neither a path that begins with `/`, as in `/proc/PID/cgroup`, nor a container's id, \
         which is hexadecimal; `systemd-cgls` and `docker ps` show both"
    )]
    Unknown(String),
}

impl Cgroup {
    /// Whether a process with these memberships is in the group or a descendant. The path is that of reports, see [`of_memory`],
    /// or begins with the directory of a version 1 hierarchy, and is of that hierarchy.
    pub fn contains(&self, memberships: &[Membership]) -> bool {
        match &self.matcher {
            Matcher::Path(names) => {
                let of_hierarchy = |names: &[String]| {
                    let (mount, names) = names.split_first()?;
                    let mut memberships = memberships.iter().filter(|membership| is_hierarchy(membership, mount));
                    Some(memberships.any(|membership| is_within(&membership.path, names)))
                };
                of_memory(memberships).is_some_and(|path| is_within(path, names))
                    || of_hierarchy(names).unwrap_or_default()
            }
            Matcher::Container(id) => memberships.iter().any(|membership| is_of_container(&membership.path, id)),
        }
    }
}

/// Returns the group that a process's memory is charged to, for reports and for `--cgroup`. With both versions mounted, one of the
/// two has the memory controller. Without memory accounting, in which all processes are in the root of that hierarchy, returns the
/// group of version 2, or that of systemd.
pub(crate) fn of_memory(memberships: &[Membership]) -> Option<&str> {
    let of = |matches: fn(&str) -> bool| {
        let found = memberships.iter().find(|membership| matches(&membership.controllers));
        found.map(|membership| membership.path.as_str())
    };
    let memory = of(|controllers| controllers.split(',').any(|controller| controller == "memory"));
    let groups = [memory, of(str::is_empty), of(|controllers| controllers == "name=systemd")];
    let known = || groups.into_iter().flatten();
    known().find(|path| *path != "/").or_else(|| known().next())
}

fn is_within(path: &str, names: &[String]) -> bool {
    let mut own = components(path);
    names.iter().all(|name| own.next() == Some(name))
}

fn is_hierarchy(membership: &Membership, mount: &str) -> bool {
    match membership.controllers.as_str() {
        "" => mount == "unified",
        controllers => {
            controllers == mount
                || controllers.strip_prefix("name=") == Some(mount)
                || controllers.split(',').any(|controller| controller == mount)
        }
    }
}

fn is_of_container(path: &str, id: &str) -> bool {
    // With systemd, containerd may name a group `kubepods-….slice:cri-containerd:ID`.
    components(path).flat_map(|name| name.split(':')).any(|name| {
        let bare = ENGINES.iter().find_map(|engine| name.strip_prefix(engine)).unwrap_or(name);
        bare.starts_with(id)
    })
}

fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

impl FromStr for Cgroup {
    type Err = CgroupError;

    fn from_str(text: &str) -> Result<Self, CgroupError> {
        let owned = || text.to_owned();
        let matcher = if text.starts_with('/') {
            let below =
                text.strip_prefix(MOUNT).filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(text);
            Matcher::Path(components(below).map(str::to_owned).collect())
        } else if text.trim().is_empty() {
            return Err(CgroupError::Empty(owned()));
        } else if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(CgroupError::Unknown(owned()));
        } else if text.len() < ID_DIGITS_MIN {
            return Err(CgroupError::TooShort(owned()));
        } else if text.len() > ID_DIGITS_MAX {
            return Err(CgroupError::TooLong(owned()));
        } else {
            Matcher::Container(text.to_ascii_lowercase())
        };
        Ok(Self { text: owned(), matcher })
    }
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "4f1ab2c9d05e7788990011223344556677889900aabbccddeeff001122334455";

    fn check(cgroup: &str, controllers: &str, path: &str, expected: bool) {
        let membership = Membership { controllers: controllers.to_owned(), path: path.to_owned() };
        let root = Membership { controllers: "name=systemd".to_owned(), path: "/".to_owned() };
        let parsed: Cgroup = cgroup.parse().expect("a control group");
        assert_eq!(parsed.contains(&[root, membership]), expected, "{cgroup} against {controllers}:{path}");
    }

    #[test]
    fn a_path_matches_itself_and_its_descendants() {
        let unit = "/system.slice/redis.service";
        for cgroup in
            ["/system.slice", "/system.slice/", unit, "/sys/fs/cgroup/system.slice//redis.service", "/", MOUNT]
        {
            check(cgroup, "", unit, true);
        }
        check(unit, "", "/system.slice/redis.service/worker", true);
        for cgroup in
            ["/system", "/system.slice/redis", "/redis.service", "/user.slice", "/system.slice/redis.service/x"]
        {
            check(cgroup, "", unit, false);
        }
        check("/sys/fs/cgroups/a", "", "/a", false);
        check("/a", "", "/b:/a", false);
        check("/../other", "", "/../other/x", true);
    }

    #[test]
    fn version_1_has_a_directory_per_hierarchy() {
        check("/sys/fs/cgroup/memory/job", "memory", "/job/5", true);
        check("/sys/fs/cgroup/memory/job", "cpuset", "/job/5", false);
        check("/sys/fs/cgroup/cpu/job", "cpu,cpuacct", "/job", true);
        check("/sys/fs/cgroup/cpu,cpuacct/job", "cpu,cpuacct", "/job", true);
        check("/sys/fs/cgroup/systemd/job", "name=systemd", "/job", true);
        check("/sys/fs/cgroup/unified/job", "", "/job", true);
        check("/sys/fs/cgroup/memory/job", "", "/job", false);
        check("/sys/fs/cgroup/memory/job", "", "/memory/job", true);
        check("/job", "memory", "/job/5", true);
        // Its memory is charged to another group.
        check("/job", "cpu,cpuacct", "/job", false);
    }

    #[test]
    fn the_path_in_reports_selects_and_no_other() {
        let memberships = [("name=systemd", "/s/x.service"), ("memory", "/docker/m"), ("cpu", "/c"), ("", "/u")];
        let memberships = memberships
            .map(|(controllers, path)| Membership { controllers: controllers.to_owned(), path: path.to_owned() });
        let contains = |cgroup: &str| cgroup.parse::<Cgroup>().expect("a control group").contains(&memberships);
        let shown = of_memory(&memberships).expect("it is in one");
        assert!(contains(shown) && contains("/docker") && contains("/sys/fs/cgroup/docker/m"));
        assert!(!contains("/c") && !contains("/u") && !contains("/s/x.service"));
        // By hierarchy.
        assert!(contains("/memory/docker") && contains("/cpu/c") && contains("/unified/u") && contains("/systemd/s"));
        assert!(!contains("/cpu/docker"));
    }

    #[test]
    fn the_group_that_memory_is_charged_to_is_selected() {
        let check = |memberships: &[(&str, &str)], expected: Option<&str>| {
            let memberships: Vec<Membership> = memberships
                .iter()
                .map(|&(controllers, path)| Membership { controllers: controllers.to_owned(), path: path.to_owned() })
                .collect();
            assert_eq!(of_memory(&memberships), expected, "{memberships:?}");
        };
        check(&[("", "/system.slice/x.service")], Some("/system.slice/x.service"));
        check(&[("name=systemd", "/s"), ("cpu,memory", "/docker/abc"), ("", "/u")], Some("/docker/abc"));
        check(&[("name=systemd", "/s"), ("cpu", "/docker/abc"), ("", "/u")], Some("/u"));
        check(&[("cpu", "/c"), ("name=systemd", "/s")], Some("/s"));
        // The root has all processes where memory is not accounted for.
        check(&[("memory", "/"), ("name=systemd", "/s")], Some("/s"));
        check(&[("memory", "/"), ("name=systemd", "/s"), ("", "/u")], Some("/u"));
        check(&[("memory", "/"), ("name=systemd", "/"), ("", "/")], Some("/"));
        check(&[("memory_recursiveprot", "/c")], None);
        check(&[], None);
    }

    #[test]
    fn containers_are_found_with_every_engine() {
        let short = &ID[..12];
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/system.slice/docker-{ID}.scope/init.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice/cri-containerd-{ID}.scope"
            ),
            format!("/kubepods/besteffort/pod12-34/{ID}"),
            format!("/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
        ] {
            for id in [&ID[..6], short, ID, &ID.to_uppercase()] {
                check(id, "", &path, true);
            }
            check("123456789abc", "", &path, false);
            check(&ID[1..13], "", &path, false);
        }
        // A container's monitor is not in it.
        check(short, "", &format!("/machine.slice/libpod-conmon-{ID}.scope"), false);
    }

    #[test]
    fn invalid_groups_are_refused_by_name() {
        for (text, message) in [
            ("", "the control group `` is empty"),
            ("abc12", "the container id `abc12` is too short: give at least 6 digits of it"),
            ("redis.service", "the control group `redis.service` is neither a path that begins with `/`"),
            ("system.slice/x", "the control group `system.slice/x` is neither"),
        ] {
            let error = text.parse::<Cgroup>().expect_err("refused").to_string();
            assert!(error.starts_with(message), "{error}");
        }
        assert_eq!("a".repeat(65).parse::<Cgroup>(), Err(CgroupError::TooLong("a".repeat(65))));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in any::<String>(), path in any::<String>(), controllers in any::<String>()) {
            for text in [format!("/{text}"), text] {
                if let Ok(cgroup) = text.parse::<Cgroup>() {
                    let _ = cgroup.contains(&[Membership { controllers: controllers.clone(), path: path.clone() }]);
                }
            }
        }

        #[test]
        fn a_group_contains_itself_and_its_descendants(names in proptest::collection::vec("[a-z@:.-]{1,9}", 1..5), depth in 1usize..5) {
            let path = format!("/{}", names.join("/"));
            let above = format!("/{}", names[..depth.min(names.len())].join("/"));
            check(&above, "", &path, true);
            check(&format!("{MOUNT}{above}"), "", &path, true);
            check(&format!("{path}/x"), "", &path, false);
        }
    }
}
