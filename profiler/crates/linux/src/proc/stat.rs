//! Statistics and threads of processes. The `procfs` crate is not used for `stat`: it panics on a truncated line.

use std::fs;
use std::time::Duration;

use heapbpf_base::ids::{Identity, Pid, StartTime, Tid};
use heapbpf_base::shown;

use crate::memory::page_bytes;
use crate::proc::{ProcError, process};

/// Read limit of a line: 52 numbers of at most 20 digits and a name of at most 64 bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// Flags `PF_EXITING` and `PF_KTHREAD` (<https://github.com/torvalds/linux/blob/v6.12/include/linux/sched.h#L1696>).
const EXITING: u32 = 0x4;
const KERNEL_THREAD: u32 = 0x0020_0000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub comm: String,
    /// State of the process: `R`, `S`, `D`, `T`, `t`, `I`, and `Z` or `X` after its exit.
    pub state: char,
    pub parent: Pid,
    pub group: i32,
    pub session: i32,
    /// The foreground process group of the process's terminal; -1 without a terminal.
    pub foreground: i32,
    pub start_ticks: StartTime,
    pub kernel_thread: bool,
    /// Whether the thread is on its way out, and runs no code of its program any more.
    pub exiting: bool,
    /// CPU time of all threads, user and system, in clock ticks.
    pub cpu_ticks: u64,
    /// Size of the process's address space; 0 for kernel threads and after its exit.
    pub virtual_bytes: u64,
    /// Resident memory, accurate to some pages: the kernel counts per CPU.
    pub resident_bytes: u64,
    /// Wait status of the process after its exit; 0 without the permission to trace it.
    pub exit_status: Option<i32>,
}

impl Stat {
    pub fn read(pid: Pid) -> Result<Self, ProcError> {
        let bytes = process::read(pid, "stat", LINE_BYTES_MAX)?;
        let page_bytes = page_bytes();
        parse(&shown::text(&bytes), page_bytes).ok_or(ProcError::Malformed { pid, entry: "stat" })
    }

    /// Statistics of a process. If the process runs on after its first thread has exited, state and memory are those of another
    /// thread.
    pub fn of_process(pid: Pid) -> Result<Self, ProcError> {
        let stat = Self::read(pid)?;
        if !stat.has_ended() {
            return Ok(stat);
        }
        let others = living_thread(pid).filter(|other| *other != pid).and_then(|other| Self::read(other).ok());
        Ok(match others {
            Some(Self { state, virtual_bytes, resident_bytes, .. }) => {
                Self { state, virtual_bytes, resident_bytes, ..stat }
            }
            None => stat,
        })
    }

    pub fn is_of(&self, identity: Identity) -> bool {
        self.start_ticks == identity.start_ticks
    }

    /// Number of CPUs that the process has used on average since its start; `boot_ns` is the present time since boot.
    #[expect(clippy::cast_precision_loss, reason = "a ratio of times")]
    pub fn cpus(&self, boot_ns: u64) -> f64 {
        let age_ticks = self.age(boot_ns).as_secs_f64() * rustix::param::clock_ticks_per_second() as f64;
        self.cpu_ticks as f64 / age_ticks.max(1.0)
    }

    /// Time since the start of the process, accurate to a clock tick; `boot_ns` is the present time since boot.
    pub fn age(&self, boot_ns: u64) -> Duration {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Duration::from_nanos(boot_ns.saturating_sub(self.start_ticks.0.saturating_mul(tick_ns)))
    }

    /// Whether the process has exited, or is exiting and has released its memory.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') || self.virtual_bytes == 0 && !self.kernel_thread
    }
}

/// Parses the line of a `stat` file (field numbers of `man 5 proc_pid_stat`, from 1).
pub fn parse(line: &str, page_bytes: u64) -> Option<Stat> {
    // A process chooses its name, which may contain blanks and parentheses; only numbers follow the last parenthesis.
    let (_, named) = line.split_once('(')?;
    let (comm, rest) = named.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        comm: comm.to_owned(),
        state: field(3)?.chars().next()?,
        parent: Pid(field(4)?.parse().ok()?),
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        foreground: field(8)?.parse().ok()?,
        start_ticks: StartTime(field(22)?.parse().ok()?),
        kernel_thread: field(9)?.parse::<u32>().ok()? & KERNEL_THREAD != 0,
        exiting: field(9)?.parse::<u32>().ok()? & EXITING != 0,
        cpu_ticks: field(14)?.parse::<u64>().ok()?.saturating_add(field(15)?.parse().ok()?),
        virtual_bytes: field(23)?.parse().ok()?,
        // The value is signed: the sum over the CPUs may be negative for a short time.
        resident_bytes: u64::try_from(field(24)?.parse::<i64>().ok()?).unwrap_or(0).saturating_mul(page_bytes),
        exit_status: field(52).and_then(|status| status.parse().ok()),
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub state: char,
    pub tracer: Option<Tid>,
    pub parent: Pid,
}

/// Threads that wait without being interruptible, as for a child of `vfork`, for a device, or in a frozen control group. Such
/// threads stop for no tracer until they go on. Empty if the process has ended.
pub fn waiting_threads(pid: Pid) -> Vec<Tid> {
    let is_waiting = |tid: &Tid| status(pid, *tid).is_some_and(|status| status.state == 'D');
    threads(pid).into_iter().flatten().filter(is_waiting).collect()
}

/// All threads of a process, including zombies.
pub fn threads(pid: Pid) -> Result<Vec<Tid>, ProcError> {
    let failed = |source| ProcError::from_io(pid, "task", source);
    let mut tids = Vec::new();
    for entry in fs::read_dir(process::entry_path(pid, "task")).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        tids.extend(name.to_str().and_then(|name| name.parse().ok()).map(Tid));
    }
    Ok(tids)
}

/// The first thread of a process, or another one if the first has exited before it (`pthread_exit` in `main`): the
/// memory of the process is then in the other's `/proc` entry. `None` if the process has exited.
pub fn living_thread(pid: Pid) -> Option<Pid> {
    let lives = |of: Pid| Stat::read(of).is_ok_and(|stat| !stat.has_ended());
    if lives(pid) {
        return Some(pid);
    }
    let others = threads(pid).ok()?.into_iter().map(|tid| Pid(tid.0)).filter(|tid| *tid != pid);
    others.into_iter().find(|tid| lives(*tid))
}

/// Whether the first thread of a process has exited before others. When a whole process exits, its threads do so one after the
/// other: threads that have been killed do not count.
pub fn first_thread_has_exited(pid: Pid) -> bool {
    if Stat::read(pid).is_ok_and(|stat| !stat.has_ended()) {
        return false;
    }
    let is_exiting = |tid: Tid, stat: &Stat| stat.has_ended() || stat.exiting || has_been_killed(pid, tid);
    let goes_on = |tid: Tid| Stat::read(Pid(tid.0)).is_ok_and(|stat| !is_exiting(tid, &stat));
    threads(pid).into_iter().flatten().any(goes_on)
}

/// Whether SIGKILL is pending for a thread, as in a process that exits.
fn has_been_killed(pid: Pid, tid: Tid) -> bool {
    let text = process::thread_status(pid, tid).unwrap_or_default();
    let pending = text.lines().find_map(|line| line.strip_prefix("SigPnd:\t"));
    pending.is_some_and(|set| u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set & 1 << (libc::SIGKILL - 1) != 0))
}

pub fn status(pid: Pid, tid: Tid) -> Option<Status> {
    parse_status(&process::thread_status(pid, tid).ok()?)
}

pub fn parse_status(text: &str) -> Option<Status> {
    // The name comes first, and the kernel escapes line feeds in it.
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    let tracer = field("TracerPid")?.trim().parse().ok()?;
    Some(Status {
        state: field("State")?.chars().next()?,
        tracer: (tracer != 0).then_some(Tid(tracer)),
        parent: Pid(field("PPid")?.trim().parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line with this name and fields up to 52.
    fn line(comm: &str) -> String {
        let numbers: Vec<String> = (5..=52).map(|field: u32| (field * 1000).to_string()).collect();
        format!("17514 ({comm}) S 17483 {}\n", numbers.join(" "))
    }

    fn check(comm: &str) {
        let expected = Stat {
            comm: comm.to_owned(),
            state: 'S',
            parent: Pid(17_483),
            group: 5000,
            session: 6000,
            foreground: 8000,
            start_ticks: StartTime(22_000),
            kernel_thread: false,
            exiting: false,
            cpu_ticks: 14_000 + 15_000,
            virtual_bytes: 23_000,
            resident_bytes: 24_000 * 4096,
            exit_status: Some(52_000),
        };
        assert_eq!(parse(&line(comm), 4096), Some(expected), "{comm}");
    }

    #[test]
    fn names_may_contain_anything() {
        for comm in ["sleep", "(sd-pam)", "tmux: server", ") R 1 1", "a) Z 2 (b", "", " ", "\n", "\u{fffd}"] {
            check(comm);
        }
    }

    #[test]
    fn a_truncated_line_is_rejected() {
        let whole = line("sleep");
        let end = whole.find(" 24000").expect("a field");
        for at in 0..end {
            assert_eq!(parse(&whole[..at], 4096), None, "{}", &whole[..at]);
        }
        assert!(parse(whole.trim_end_matches(" 52000\n"), 4096).is_some_and(|stat| stat.exit_status.is_none()));
    }

    #[test]
    fn negative_resident_memory_is_zero() {
        let text = line("x").replace(" 24000", " -3");
        assert_eq!(parse(&text, 4096).map(|stat| stat.resident_bytes), Some(0));
    }

    #[test]
    fn kernel_threads_are_recognised_by_their_flag() {
        // Like `kthreadd`: without memory, but running.
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
    fn a_zombie_has_ended() {
        let mut child = std::process::Command::new("true").spawn().expect("true starts");
        let pid = Pid(child.id());
        while !Stat::read(pid).expect("a zombie").has_ended() {
            std::thread::yield_now();
        }
        let stat = Stat::read(pid).expect("a zombie");
        assert_eq!(stat.virtual_bytes, 0);
        child.wait().expect("it has exited");
    }

    proptest! {
        #[test]
        fn any_name_is_preserved(comm in "\\PC{0,30}") {
            check(&comm);
        }

        #[test]
        fn any_line_is_parsed_without_panic(text in any::<String>(), cut in 0usize..400) {
            let _ = parse(&text, u64::MAX);
            let _ = parse(&line(&text).chars().take(cut).collect::<String>(), u64::MAX);
        }
    }
}

#[cfg(test)]
mod tasks_tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_is_parsed() {
        let text = "Name:\tState:\\n\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nPPid:\t4\nTracerPid:\t12\n";
        assert_eq!(parse_status(text), Some(Status { state: 'S', tracer: Some(Tid(12)), parent: Pid(4) }));
        let untraced = text.replace("12", "0");
        assert_eq!(parse_status(&untraced).expect("valid").tracer, None);
        assert_eq!(parse_status("State:\tS\n"), None);
    }

    #[test]
    fn threads_are_listed() {
        let pid = Pid(std::process::id());
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || receiver.recv());
        let tids = threads(pid).expect("readable");
        assert!(tids.len() >= 2 && tids.contains(&Tid(pid.0)), "{tids:?}");
        assert!(tids.iter().filter_map(|&tid| status(pid, tid)).all(|status| status.tracer.is_none()));
        drop(sender);
        thread.join().expect("no panic").expect_err("nothing was sent");
        assert!(matches!(threads(Pid(1 << 22)), Err(ProcError::NoSuchProcess { .. })));
        assert_eq!(status(pid, Tid(1 << 22)), None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in any::<String>()) {
            let _ = parse_status(&text);
        }
    }
}
