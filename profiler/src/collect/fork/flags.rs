//! What a process has asked not to be copied by a fork.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::address::TargetAddr;
use crate::ids::Pid;
use crate::linux::proc::ProcError;

/// Most mappings that are looked at.
const REGIONS_MAX: usize = 1 << 20;

/// Where the mappings begin that are empty in a copy (`MADV_WIPEONFORK`), as the copy has them.
///
/// # Errors
///
/// If there is no such process, or it may not be read.
pub(super) fn wiped(pid: Pid) -> Result<BTreeSet<TargetAddr>, ProcError> {
    let failed = |source| ProcError::Io { pid, entry: "smaps", source };
    let file = File::open(format!("/proc/{pid}/smaps")).map_err(failed)?;
    let (mut wiped, mut start, mut seen) = (BTreeSet::new(), None, 0);
    // A file's name may be no text.
    for line in BufReader::with_capacity(1 << 16, file).split(b'\n') {
        let line = line.map_err(failed)?;
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            if flags.split(|&byte| byte == b' ').any(|flag| flag == b"wf") {
                wiped.extend(start);
            }
        } else if let Some(found) = begins(&line) {
            start = Some(TargetAddr(found));
            seen += 1;
            if seen > REGIONS_MAX {
                break;
            }
        }
    }
    Ok(wiped)
}

/// The first address of a mapping, of the line that begins what is told of it: those of its fields have no range.
pub(crate) fn begins(line: &[u8]) -> Option<u64> {
    let dash = line.iter().take(17).position(|&byte| byte == b'-')?;
    u64::from_str_radix(std::str::from_utf8(&line[..dash]).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_from_their_fields() {
        assert_eq!(begins(b"7f00-8f00 rw-p 00000000 00:00 0 "), Some(0x7f00));
        assert_eq!(begins(b"7ffd7f001000-7ffd7f005000 r-xp 00000000 00:00 0 [vdso]"), Some(0x7ffd_7f00_1000));
        assert_eq!(begins(b"Rss:                   4 kB"), None);
        assert_eq!(begins(b"VmFlags: rd wr mr mw me ac sd"), None);
    }
}
