//! Resident memory of each mapping of a process (`/proc/PID/smaps`). The kernel walks the page tables to write it: about a
//! millisecond per 100 MiB of resident memory.

use std::fs::File;
use std::io::{BufRead, BufReader};

use heapbpf_base::ids::Pid;
use heapbpf_base::units::MappedAmounts;

use super::maps::{MAPPINGS_MAX, Region, parse_region};
use super::process::{ProcError, entry_path};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedMemory {
    pub region: Region,
    pub rss_bytes: u64,
    pub amounts: MappedAmounts,
}

/// Memory of the mappings of a process by rising address; empty for kernel threads and zombies.
pub fn smaps(pid: Pid) -> Result<Vec<MappedMemory>, ProcError> {
    let failed = |source| ProcError::from_io(pid, "smaps", source);
    let file = File::open(entry_path(pid, "smaps")).map_err(failed)?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut all, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok(all);
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        add_line(&mut all, text).ok_or(ProcError::Malformed { pid, entry: "smaps" })?;
        if all.len() > MAPPINGS_MAX {
            return Err(ProcError::TooManyMappings { pid, max: MAPPINGS_MAX });
        }
    }
}

/// Adds a line; `None` for an invalid line. Skips fields that are not needed.
fn add_line(all: &mut Vec<MappedMemory>, line: &[u8]) -> Option<()> {
    // Names of fields start with a capital letter, addresses are hexadecimal with small letters.
    if !line.first()?.is_ascii_uppercase() {
        all.push(MappedMemory { region: parse_region(line)?, rss_bytes: 0, amounts: MappedAmounts::default() });
        return Some(());
    }
    let mapped = all.last_mut()?;
    let colon = line.iter().position(|&byte| byte == b':')?;
    let field = match &line[..colon] {
        b"Rss" => &mut mapped.rss_bytes,
        b"Pss" => &mut mapped.amounts.pss_bytes,
        b"Private_Clean" => &mut mapped.amounts.private_clean_bytes,
        b"Private_Dirty" => &mut mapped.amounts.private_dirty_bytes,
        b"Shared_Clean" => &mut mapped.amounts.shared_clean_bytes,
        b"Shared_Dirty" => &mut mapped.amounts.shared_dirty_bytes,
        b"Swap" => &mut mapped.amounts.swap_bytes,
        _ => return Some(()),
    };
    let text = std::str::from_utf8(&line[colon + 1..]).ok()?;
    let kibibytes: u64 = text.trim().strip_suffix(" kB")?.parse().ok()?;
    *field = kibibytes.checked_mul(1024)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Vec<MappedMemory>> {
        let mut all = Vec::new();
        text.lines().try_for_each(|line| add_line(&mut all, line.as_bytes()))?;
        Some(all)
    }

    #[test]
    fn amounts_belong_to_the_mapping_before_them() {
        let all = parsed(
            "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nRss:    8 kB\nPss: 4 kB\nPss_Dirty: 1 kB\nShared_Clean: 4 kB\nShared_Dirty: 8 kB\nPrivate_Clean: 12 kB\n\
             Private_Dirty: 16 kB\nVmFlags: rd wr\n5000-6000 r-xp 00001000 fe:01 7  /bin/a\nRss: 4 kB\nSwap: 12 kB\n",
        )
        .expect("valid");
        let first = MappedAmounts {
            pss_bytes: 4096,
            private_clean_bytes: 12288,
            private_dirty_bytes: 16384,
            shared_clean_bytes: 4096,
            shared_dirty_bytes: 8192,
            swap_bytes: 0,
        };
        let amounts = |at: usize| (all[at].region.start.0, all[at].rss_bytes, all[at].amounts);
        assert_eq!(all.len(), 2);
        assert_eq!(amounts(0), (0x1000, 8192, first));
        assert_eq!(amounts(1), (0x5000, 4096, MappedAmounts { swap_bytes: 12288, ..MappedAmounts::default() }));
    }

    #[test]
    fn invalid_lines_are_errors() {
        for text in ["Rss: 4 kB", "1000-2000 rw-p 0 00:00 0 \nRss: x kB", "1000-2000 rw-p 0 00:00 0 \nRss: 4", "\n"] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
        let huge = format!("1000-2000 rw-p 0 00:00 0 \nRss: {} kB", u64::MAX);
        assert_eq!(parsed(&huge), None);
    }

    #[test]
    fn the_sum_of_this_process_is_its_resident_set() {
        let pid = Pid(std::process::id());
        // Maps the code that reads it, which would count in the second sum only.
        smaps(pid).expect("readable");
        let sum: u64 = smaps(pid).expect("readable").iter().map(|mapped| mapped.rss_bytes).sum();
        // The kernel's own sum, from the same page tables: counters, such as those in `status`, lag behind.
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("readable");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a line");
        let resident: u64 = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024;
        assert!(sum.abs_diff(resident) < resident / 4, "{sum} of {resident}");
    }
}
