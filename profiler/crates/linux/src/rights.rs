//! Rights of a user to open, create and remove files.

#![expect(unsafe_code, reason = "rustix 1 has neither setfsuid nor setfsgid")]

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::{io, thread};

use heapbpf_base::ids::Pid;
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Uid, dumpable_behavior, getegid, geteuid, getgroups, set_dumpable_behavior,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use super::invoker::invoker;
use super::proc::mounts::is_of_our_users;
use super::proc::process::status;
use super::proc::stat::living_thread;

const NOBODY: u32 = 65534;

/// User, group and further groups of a process, as the kernel compares them with those of files.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Rights {
    /// User, as heapbpf's user namespace numbers it.
    uid: u32,
    /// Group.
    gid: u32,
    /// Further groups.
    groups: Vec<u32>,
    /// Root's right to read all files and to search all folders (`CAP_DAC_READ_SEARCH`).
    reads_all: bool,
}

impl Rights {
    /// Rights with which a process opens files. `None` if the process has exited.
    pub fn of(pid: Pid) -> Option<Self> {
        // The first thread, if it has exited before others, keeps the rights that it had then.
        let thread = living_thread(pid).unwrap_or(pid);
        Self::parse(&status(thread).ok()?, || is_of_our_users(pid))
    }

    /// Rights of the first thread of a process; `None` if it has exited.
    pub(super) fn of_first_thread(pid: Pid) -> Option<Self> {
        let status = status(pid).ok()?;
        let state = status.lines().find_map(|line| line.strip_prefix("State:"))?.trim_start();
        if state.starts_with(['Z', 'X']) {
            return None;
        }
        Self::parse(&status, || is_of_our_users(pid))
    }

    /// Parses the text of `/proc/PID/status`. Capabilities count only in the user namespace of heapbpf: root of another namespace
    /// is an ordinary user here.
    fn parse(status: &str, is_of_our_namespace: impl FnOnce() -> bool) -> Option<Self> {
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // The fourth number is the one for files (`task_state` in fs/proc/array.c).
        let for_files = |name: &str| line(name)?.split_ascii_whitespace().nth(3)?.parse::<u32>().ok();
        let (uid, gid) = (for_files("Uid:")?, for_files("Gid:")?);
        let groups = line("Groups:")?.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let effective = u64::from_str_radix(line("CapEff:")?.trim(), 16).ok()?;
        let reading = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        let reads_all = uid == 0 && effective & reading.bits() != 0 && is_of_our_namespace();
        Some(Self { uid, gid, groups, reads_all })
    }

    /// Rights of the user who invoked heapbpf, also through sudo or pkexec.
    pub fn of_invoker() -> Self {
        if let Some((uid, gid)) = invoker() {
            return Self { uid, gid, groups: Vec::new(), reads_all: false };
        }
        let uid = geteuid().as_raw();
        let groups = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
        Self { uid, gid: getegid().as_raw(), groups, reads_all: uid == 0 }
    }

    /// Rights of a file's owner, of whose groups only the file's is known. For root's files, these are root's.
    pub fn of_owner(metadata: &Metadata) -> Self {
        Self { uid: metadata.uid(), gid: metadata.gid(), groups: Vec::new(), reads_all: metadata.uid() == 0 }
    }

    /// Rights of a user who owns nothing (`nobody`).
    pub fn of_nobody() -> Self {
        Self { uid: NOBODY, gid: NOBODY, groups: Vec::new(), reads_all: false }
    }

    /// Rights that are not more than either of both, for a process that had one and then the other. If neither user may read all
    /// that the other may, these are nobody's.
    pub(crate) fn narrowed(&self, other: &Self) -> Self {
        if self == other || other.reads_all {
            self.clone()
        } else if self.reads_all {
            other.clone()
        } else {
            Self::of_nobody()
        }
    }

    /// Owner of files that a process with these rights creates.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Runs a function in a thread that opens, creates and removes files with these rights and without any other capability. For all other
    /// purposes the thread's user remains heapbpf's: one of another user could be traced or killed by that user, with all of heapbpf.
    pub fn run<T: Send>(&self, run: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("rights".to_owned());
            let with_rights = thread.spawn_scoped(scope, || self.take_on_for_files().map(|()| run()))?;
            with_rights.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        })
    }

    /// Takes on these rights for the calling thread, permanently and without any other capability. For processes that have no
    /// other thread.
    pub fn take_on(&self) -> io::Result<()> {
        self.permit(self.change_user())?;
        self.drop_capabilities()?;
        Ok(set_no_new_privs(true)?)
    }

    fn take_on_for_files(&self) -> io::Result<()> {
        let dumpable = dumpable_behavior()?;
        self.permit(self.change_user_for_files())?;
        // When a thread changes its user, the kernel changes this attribute for the whole process.
        if dumpable != DumpableBehavior::NotDumpable {
            set_dumpable_behavior(dumpable)?;
        }
        self.drop_capabilities()
    }

    /// Accepts that heapbpf may not change its user (`EPERM`: without `CAP_SETUID` and `CAP_SETGID`): its own user's rights
    /// remain, but root's rights are not accepted for another user.
    fn permit(&self, changed: rustix::io::Result<()>) -> io::Result<()> {
        match changed {
            Err(Errno::PERM) if self.uid == geteuid().as_raw() || !geteuid().is_root() => Ok(()),
            other => Ok(other?),
        }
    }

    fn change_user(&self) -> rustix::io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&self.groups())?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    }

    fn change_user_for_files(&self) -> rustix::io::Result<()> {
        set_thread_groups(&self.groups())?;
        set_for_files(libc::SYS_setfsgid, self.gid)?;
        set_for_files(libc::SYS_setfsuid, self.uid)
    }

    fn groups(&self) -> Vec<Gid> {
        self.groups.iter().copied().map(Gid::from_raw).collect()
    }

    /// Drops all capabilities except root's right to read all files, if these rights include it.
    fn drop_capabilities(&self) -> io::Result<()> {
        let kept =
            if self.reads_all && geteuid().is_root() { CapabilitySet::DAC_READ_SEARCH } else { CapabilitySet::empty() };
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        // Setting fails for root without this capability in its bounding set.
        if set_capabilities(None, sets).is_err() {
            let none = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
        }
        Ok(())
    }
}

/// Changes the user or group by which the kernel decides about files.
fn set_for_files(call: libc::c_long, id: u32) -> rustix::io::Result<()> {
    // SAFETY: both calls take a number, and act on the calling thread alone. They return the number from before, and fail in silence.
    let set = |id: u32| unsafe { libc::syscall(call, id) };
    set(id);
    // -1 changes nothing.
    if set(u32::MAX) == libc::c_long::from(id) { Ok(()) } else { Err(Errno::PERM) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    const STATUS: &str = "Name:\ta\nUid:\t1000\t1001\t1002\t1003\nGid:\t100\t101\t102\t103\nGroups:\t7 8 \n\
        CapEff:\t0000000000000000\n";

    #[test]
    fn rights_are_those_for_files() {
        let rights = Rights::parse(STATUS, || true).expect("complete");
        assert_eq!(rights, Rights { uid: 1003, gid: 103, groups: vec![7, 8], reads_all: false });
        assert!(Rights::parse("Uid:\t0\t0\t0\t0\n", || true).is_none(), "lines are missing");
    }

    #[test]
    fn the_lesser_rights_of_two_are_kept() {
        let user = |uid| Rights { uid, ..Rights::of_nobody() };
        let root = Rights { uid: 0, gid: 0, groups: Vec::new(), reads_all: true };
        let bare_root = Rights { reads_all: false, ..root.clone() };
        let (one, other) = (user(1000), user(1001));
        let of_a_group = Rights { groups: vec![7], ..one.clone() };
        for (first, second, expected) in [
            (&root, &one, &one),
            (&one, &root, &one),
            (&root, &bare_root, &bare_root),
            (&bare_root, &root, &bare_root),
            (&one, &one, &one),
            (&one, &other, &Rights::of_nobody()),
            (&one, &bare_root, &Rights::of_nobody()),
            (&one, &of_a_group, &Rights::of_nobody()),
        ] {
            assert_eq!(first.narrowed(second), *expected, "{first:?} and {second:?}");
        }
        let other_root = Rights { gid: 5, ..root.clone() };
        assert!(root.narrowed(&other_root).reads_all && other_root.narrowed(&root).reads_all);
    }

    #[test]
    fn only_root_of_our_own_namespace_reads_all() {
        let status = |uid: u32, capabilities: &str| {
            format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\nGroups:\t\nCapEff:\t{capabilities}\n")
        };
        let reads_all =
            |text: &str, is_ours| Rights::parse(text, || is_ours).map(|rights| rights.reads_all).expect("complete");
        assert!(reads_all(&status(0, "000001ffffffffff"), true));
        assert!(!reads_all(&status(0, "000001ffffffffff"), false), "root of a container's namespace");
        assert!(!reads_all(&status(0, "0000000000000000"), true), "root without capabilities");
        assert!(!reads_all(&status(5, "000001ffffffffff"), true));
        assert!(Rights::of(Pid(std::process::id())).expect("it runs").reads_all, "tests run as root");
    }

    #[test]
    fn a_thread_with_other_rights_accesses_files_alone_with_them() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| folder.path().join(name);
        let set_mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("ours");
        set_mode(folder.path(), 0o755);
        for (name, mode) in [("own", 0o600), ("group", 0o640), ("all", 0o644)] {
            fs::write(path(name), name).expect("ours");
            set_mode(&path(name), mode);
        }
        let read = |rights: Rights| {
            rights.run(|| ["own", "group", "all"].map(|name| fs::read(path(name)).is_ok())).expect("tests run as root")
        };
        assert_eq!(read(Rights::of_nobody()), [false, false, true]);
        assert_eq!(read(Rights { groups: vec![0], ..Rights::of_nobody() }), [false, true, true]);
        assert_eq!(read(Rights::of_invoker()), [true; 3]);
        let create = || fs::write(path("new"), "").map_err(|error| error.kind());
        assert_eq!(Rights::of_nobody().run(create).expect("it runs"), Err(io::ErrorKind::PermissionDenied));
        set_mode(folder.path(), 0o777);
        // The kernel compares the user, not that for files, with the user who traces or signals a thread.
        let (created, uid) = Rights::of_nobody().run(|| (create(), geteuid())).expect("it runs");
        assert!(created.is_ok() && uid.is_root(), "{created:?}, user {uid:?}");
        assert_eq!(path("new").metadata().expect("it was created").uid(), NOBODY);
        assert_eq!(dumpable_behavior().expect("it has one"), DumpableBehavior::Dumpable);
        let is_root_elsewhere = fs::read(path("own")).is_ok() && geteuid().is_root();
        assert!(is_root_elsewhere, "other threads keep their rights");
    }
}
