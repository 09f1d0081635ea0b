//! The rights of the user who invoked heapbpf, also where sudo or pkexec made it root.

use std::{env, io, thread};

use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// Runs a function in a thread that has the rights of the invoking user alone: no capabilities, and of groups only the
/// primary one where sudo or pkexec started heapbpf. Root's own if root invoked it.
pub(crate) fn as_invoker<T: Send>(run: impl FnOnce() -> T + Send) -> io::Result<T> {
    let dumpable = dumpable_behavior()?;
    let result = thread::scope(|scope| {
        let thread = thread::Builder::new().name("invoker".to_owned());
        let restricted = thread.spawn_scoped(scope, || restrict(invoker()).map(|()| run()))?;
        restricted.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    });
    // The kernel changes it for the whole process when a thread changes its user.
    if dumpable != DumpableBehavior::NotDumpable {
        let _ = set_dumpable_behavior(dumpable);
    }
    result
}

/// The user and group in the variables of sudo and pkexec, which count only where heapbpf is root.
pub(super) fn invoker() -> Option<(Uid, Gid)> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let (uid, gid) = match (number("SUDO_UID"), number("SUDO_GID"), number("PKEXEC_UID")) {
        (Some(uid), Some(gid), _) => (uid, gid),
        // pkexec does not pass the group. This one owns no files.
        (_, _, Some(uid)) => (uid, u32::MAX - 1),
        _ => return None,
    };
    // -1 stands for no change.
    (uid != 0 && ![uid, gid].contains(&u32::MAX)).then(|| (Uid::from_raw(uid), Gid::from_raw(gid)))
}

/// Acts on the calling thread alone: these are system calls, not libc's functions, which act on all threads.
fn restrict(user: Option<(Uid, Gid)>) -> io::Result<()> {
    if let Some((uid, gid)) = user {
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    if user.is_some() || !rustix::process::getuid().is_root() {
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Needs root, as most tests do.
    #[test]
    fn a_restricted_thread_cannot_read_other_users_files() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let path = |name: &str| folder.path().join(name);
        for (name, mode) in [("own", 0o600), ("group", 0o640), ("all", 0o644)] {
            fs::write(path(name), name).expect("ours");
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).expect("ours");
        }
        let nobody = Some((Uid::from_raw(65_534), Gid::from_raw(65_534)));
        let read = |user| {
            let readable = || ["own", "group", "all"].map(|name| fs::read(path(name)).is_ok());
            thread::scope(|scope| scope.spawn(|| restrict(user).map(|()| readable())).join().expect("no panic"))
        };
        assert_eq!(read(nobody).expect("root may change users"), [false, false, true]);
        assert_eq!(read(None).expect("nothing changes"), [true; 3]);
        assert_eq!(as_invoker(|| 7).expect("it runs"), 7);
        assert!(rustix::process::getuid().is_root(), "other threads keep their user");
    }
}
