//! The user who called sudo, if heapbpf runs under it.

use std::fs;
use std::path::PathBuf;

use rustix::process::geteuid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Invoker {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) home: PathBuf,
}

pub(super) fn invoker() -> Option<Invoker> {
    let uid = std::env::var("SUDO_UID").ok()?.parse().ok().filter(|&uid| uid != 0 && geteuid().is_root())?;
    find(&fs::read_to_string("/etc/passwd").ok()?, uid)
}

/// Finds a user. `passwd` is a file in the format of passwd(5). Users of directory services are not found.
fn find(passwd: &str, uid: u32) -> Option<Invoker> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let (found, gid, home) = (fields.next()?, fields.next()?, fields.nth(1)?);
        let is_same = found.parse() == Ok(uid);
        (is_same && !home.is_empty()).then_some(Invoker { uid, gid: gid.parse().ok()?, home: home.into() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_number() {
        let passwd =
            "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\nbroken\nann:x:1000:1001:Ann,,,:/home/ann:/bin/bash\n";
        assert_eq!(find(passwd, 1000), Some(Invoker { uid: 1000, gid: 1001, home: "/home/ann".into() }));
        assert_eq!(find(passwd, 1001), None);
    }
}
