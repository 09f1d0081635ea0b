//! `/proc/PID/stat`: what the kernel tells of a process in one line that costs little to read.
//!
//! The `procfs` crate is not used for it: it panics on a line that is cut short.

use super::{ProcError, process};
use crate::ids::{Identity, Pid, StartTime};

/// Most bytes that are read: 52 numbers of at most 20 digits and a name of at most 64 bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// `PF_KTHREAD` (<https://github.com/torvalds/linux/blob/v6.12/include/linux/sched.h#L1696>).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// What is used of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The kernel's name for the process. Bytes that are not UTF-8 become `U+FFFD`.
    pub comm: String,
    /// `R`, `S`, `D`, `T`, `t`, `I`, and `Z` or `X` for one that has ended.
    pub state: char,
    /// When it started.
    pub start_ticks: StartTime,
    /// It is a part of the kernel, without memory of its own.
    pub kernel_thread: bool,
    /// Size of its address space; 0 for kernel threads, which have none, and for what has ended.
    pub virtual_bytes: u64,
    /// Memory that it has in use, some pages off: the kernel collects the number in each CPU by itself.
    pub resident_bytes: u64,
    /// The wait status of one that has ended; 0 without the right to read its memory.
    pub exit_status: Option<i32>,
}

impl Stat {
    /// Reads the line of a process.
    ///
    /// # Errors
    ///
    /// If there is no such process, or it may not be read.
    pub(crate) fn read(pid: Pid) -> Result<Self, ProcError> {
        let bytes = process::read(pid, "stat", LINE_BYTES_MAX)?;
        let page_bytes = rustix::param::page_size() as u64;
        parse(&String::from_utf8_lossy(&bytes), page_bytes).ok_or(ProcError::Malformed { pid, entry: "stat" })
    }

    /// Whether it is of this process, and not of another one that had its number before or has it now.
    pub(crate) fn is_of(&self, identity: Identity) -> bool {
        self.start_ticks == identity.start_ticks
    }

    /// Whether the process has ended, or is about to and has given back its memory.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.virtual_bytes == 0 && !self.kernel_thread
    }
}

/// Takes a line apart (field numbers of `man 5 proc_pid_stat`, from 1).
pub(crate) fn parse(line: &str, page_bytes: u64) -> Option<Stat> {
    // The name is what the process likes, blanks and parentheses too; behind the last one are numbers alone.
    let (_, named) = line.split_once('(')?;
    let (comm, rest) = named.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        comm: comm.to_owned(),
        state: field(3)?.chars().next()?,
        start_ticks: StartTime(field(22)?.parse().ok()?),
        kernel_thread: field(9)?.parse::<u32>().ok()? & KERNEL_THREAD != 0,
        virtual_bytes: field(23)?.parse().ok()?,
        // Signed: the sum over the CPUs may be below 0 for a moment.
        resident_bytes: u64::try_from(field(24)?.parse::<i64>().ok()?).unwrap_or(0).saturating_mul(page_bytes),
        exit_status: field(52).and_then(|status| status.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line with this name, field 4 and all that follows up to field 52.
    fn line(comm: &str) -> String {
        let numbers: Vec<String> = (5..=52).map(|field: u32| (field * 1000).to_string()).collect();
        format!("17514 ({comm}) S 17483 {}\n", numbers.join(" "))
    }

    fn check(comm: &str) {
        let expected = Stat {
            comm: comm.to_owned(),
            state: 'S',
            start_ticks: StartTime(22_000),
            kernel_thread: false,
            virtual_bytes: 23_000,
            resident_bytes: 24_000 * 4096,
            exit_status: Some(52_000),
        };
        assert_eq!(parse(&line(comm), 4096), Some(expected), "{comm}");
    }

    #[test]
    fn names_may_hold_anything() {
        for comm in ["sleep", "(sd-pam)", "tmux: server", ") R 1 1", "a) Z 2 (b", "", " ", "\n", "\u{fffd}"] {
            check(comm);
        }
    }

    #[test]
    fn a_line_that_is_cut_short_is_refused() {
        let whole = line("sleep");
        let end = whole.find(" 24000").expect("a field");
        for at in 0..end {
            assert_eq!(parse(&whole[..at], 4096), None, "{}", &whole[..at]);
        }
        assert!(parse(whole.trim_end_matches(" 52000\n"), 4096).is_some_and(|stat| stat.exit_status.is_none()));
    }

    #[test]
    fn nobody_has_less_than_no_memory() {
        let text = line("x").replace(" 24000", " -3");
        assert_eq!(parse(&text, 4096).map(|stat| stat.resident_bytes), Some(0));
    }

    #[test]
    fn kernel_threads_are_told_by_their_flag() {
        // As of `kthreadd`: without memory, and yet it has not ended.
        let text = line("kthreadd").replace(" 9000 ", " 2129984 ").replace(" 23000", " 0");
        let stat = parse(&text, 4096).expect("a whole line");
        assert!(stat.kernel_thread && !stat.has_ended(), "{stat:?}");
    }

    #[test]
    fn this_process_is_described() {
        let stat = Stat::read(Pid(std::process::id())).expect("readable");
        assert!(!stat.has_ended());
        assert!(stat.virtual_bytes > stat.resident_bytes && stat.resident_bytes > 1 << 16, "{stat:?}");
    }

    #[test]
    fn a_process_that_is_not_reaped_has_ended() {
        let mut child = std::process::Command::new("true").spawn().expect("true starts");
        let pid = Pid(child.id());
        while !Stat::read(pid).expect("it is not reaped").has_ended() {
            std::thread::yield_now();
        }
        let stat = Stat::read(pid).expect("it is not reaped");
        assert_eq!(stat.virtual_bytes, 0);
        child.wait().expect("it ended");
    }

    proptest! {
        #[test]
        fn any_name_is_kept(comm in "\\PC{0,30}") {
            check(&comm);
        }

        #[test]
        fn any_line_is_survived(text in any::<String>(), cut in 0usize..400) {
            let _ = parse(&text, u64::MAX);
            let _ = parse(&line(&text).chars().take(cut).collect::<String>(), u64::MAX);
        }
    }
}
