//! Rights of a user: what a process may open with them.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use super::invoker::invoker;
use super::proc::process::entry_path;
use crate::ids::Pid;

const NOBODY: u32 = 65534;

/// User, group and further groups of a process, as the kernel compares them with those of files.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rights {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Root's right to read all files and to search all folders (`CAP_DAC_READ_SEARCH`).
    reads_all: bool,
}

impl Rights {
    /// Those with which a process opens files. `None` if it has exited.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let status = fs::read_to_string(entry_path(pid, "status")).ok()?;
        let is_of_our_namespace = || {
            let namespace = |process: &str| fs::metadata(format!("/proc/{process}/ns/user")).ok().map(|it| it.ino());
            let own = namespace("self");
            own.is_some() && namespace(&pid.to_string()) == own
        };
        Self::parse(&status, is_of_our_namespace)
    }

    /// Parses the text of `/proc/PID/status`. Capabilities count only in the user namespace of heapbpf: root of another one is a user
    /// here.
    fn parse(status: &str, is_of_our_namespace: impl FnOnce() -> bool) -> Option<Self> {
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // The fourth one is for files (`task_state` in fs/proc/array.c).
        let for_files = |name: &str| line(name)?.split_ascii_whitespace().nth(3)?.parse::<u32>().ok();
        let (uid, gid) = (for_files("Uid:")?, for_files("Gid:")?);
        let groups = line("Groups:")?.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let effective = u64::from_str_radix(line("CapEff:")?.trim(), 16).ok()?;
        let reading = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        let reads_all = uid == 0 && effective & reading.bits() != 0 && is_of_our_namespace();
        Some(Self { uid, gid, groups, reads_all })
    }

    /// Those of the user who invoked heapbpf, also through sudo or pkexec.
    pub(crate) fn of_invoker() -> Self {
        if let Some((uid, gid)) = invoker() {
            return Self { uid: uid.as_raw(), gid: gid.as_raw(), groups: Vec::new(), reads_all: false };
        }
        let uid = geteuid().as_raw();
        let groups = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
        Self { uid, gid: getegid().as_raw(), groups, reads_all: uid == 0 }
    }

    /// Those of a file's owner, of whose groups only the file's is known. Of root's files: root's.
    pub(crate) fn of_owner(metadata: &Metadata) -> Self {
        Self { uid: metadata.uid(), gid: metadata.gid(), groups: Vec::new(), reads_all: metadata.uid() == 0 }
    }

    /// Those of a user who owns nothing (`nobody`).
    pub(crate) fn of_nobody() -> Self {
        Self { uid: NOBODY, gid: NOBODY, groups: Vec::new(), reads_all: false }
    }

    /// The owner of files that this user creates.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Takes them on for the calling thread, permanently and without any other capability. If heapbpf may not change its user, its
    /// own user's rights are left, but not root's for another user (`EPERM`: without `CAP_SETUID` and `CAP_SETGID`).
    pub(crate) fn take_on(&self) -> io::Result<()> {
        match self.change_user() {
            Ok(()) => {}
            Err(Errno::PERM) if self.uid == geteuid().as_raw() || !geteuid().is_root() => {}
            Err(error) => return Err(error.into()),
        }
        let kept =
            if self.reads_all && geteuid().is_root() { CapabilitySet::DAC_READ_SEARCH } else { CapabilitySet::empty() };
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        // Root without this capability in its bounding set.
        if set_capabilities(None, sets).is_err() {
            let none = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
        }
        Ok(set_no_new_privs(true)?)
    }

    fn change_user(&self) -> rustix::io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    }
}

#[cfg(test)]
mod tests {
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
}
