//! What may make a process run out of memory before the machine does.

use super::process;
use crate::ids::Pid;

/// Most bytes of a limits file; real ones have about 1,300.
const BYTES_MAX: u64 = 1 << 16;

/// Why a request for memory may fail in this process though the machine has enough: in words, behind "and". `None` where
/// nothing speaks for it. A memory limit of a control group does not count: that ends a process and refuses nothing.
pub(crate) fn of_memory(pid: Pid) -> Option<String> {
    let overcommit = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    reason(&read(pid).unwrap_or_default(), &overcommit)
}

fn read(pid: Pid) -> Option<String> {
    String::from_utf8(process::read(pid, "limits", BYTES_MAX).ok()?).ok()
}

pub(crate) fn reason(limits: &str, overcommit: &str) -> Option<String> {
    for (name, what) in [("Max address space", "ulimit -v"), ("Max data size", "ulimit -d")] {
        let soft = limits.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        if let Some(bytes) = soft.filter(|&soft| soft != "unlimited") {
            return Some(format!("this process may use {bytes} bytes alone (`{what}`)"));
        }
    }
    // `OVERCOMMIT_NEVER` (Documentation/mm/overcommit-accounting.rst).
    (overcommit.trim() == "2")
        .then(|| "this machine commits no more memory than it has (`vm.overcommit_memory` is 2)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max data size             unlimited            unlimited            bytes
Max address space         unlimited            unlimited            bytes
";

    fn check(limits: &str, overcommit: &str, expected: Option<&str>) {
        let reason = reason(limits, overcommit);
        assert_eq!(reason.is_some(), expected.is_some(), "{reason:?}");
        assert!(reason.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    #[test]
    fn limits_of_memory_are_told() {
        check(LIMITS, "0\n", None);
        check("", "", None);
        check(LIMITS, "2\n", Some("overcommit"));
        check(&LIMITS.replace("address space         unlimited", "address space         1048576000"), "0", Some("-v"));
        check(
            &LIMITS.replace("data size             unlimited", "data size             4096"),
            "0",
            Some("4096 bytes"),
        );
    }

    #[test]
    fn this_process_is_told_of_too() {
        let own = read(Pid(std::process::id())).expect("there");
        assert!(own.contains("Max address space"), "{own}");
    }
}
