//! The user who invoked heapbpf through sudo or pkexec.

use std::env;

/// The user and group in the variables of sudo and pkexec, which count only where heapbpf is root.
pub(crate) fn invoker() -> Option<(u32, u32)> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    if !rustix::process::getuid().is_root() {
        return None;
    }
    let (uid, gid) = match (number("SUDO_UID"), number("SUDO_GID"), number("PKEXEC_UID")) {
        (Some(uid), Some(gid), _) => (uid, gid),
        // pkexec does not pass the group. The group that is used instead owns no files.
        (_, _, Some(uid)) => (uid, u32::MAX - 1),
        _ => return None,
    };
    // -1 stands for no change.
    (uid != 0 && ![uid, gid].contains(&u32::MAX)).then_some((uid, gid))
}
