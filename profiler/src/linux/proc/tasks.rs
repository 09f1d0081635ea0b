//! The threads of a process (`/proc/PID/task`), and what the kernel tells of one.

use std::fs::{self, File};
use std::io::Read;

use super::{ProcError, process};
use crate::ids::{Pid, Tid};

/// Most bytes of a thread's entry that are read.
const BYTES_MAX: u64 = 1 << 14;

/// What is used of `/proc/PID/task/TID/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// As in [`Stat`](super::stat::Stat).
    pub state: char,
    /// The thread that traces it.
    pub tracer: Option<Tid>,
    /// The process that it is a child of.
    pub parent: Pid,
}

/// All threads of a process, those that have ended and were not waited for among them.
///
/// # Errors
///
/// If there is no such process, or it may not be read.
pub(crate) fn threads(pid: Pid) -> Result<Vec<Tid>, ProcError> {
    let failed = |source| ProcError::from_io(pid, "task", source);
    let mut tids = Vec::new();
    for entry in fs::read_dir(process::entry_path(pid, "task")).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        tids.extend(name.to_str().and_then(|name| name.parse().ok()).map(Tid));
    }
    Ok(tids)
}

/// What the kernel tells of a thread; `None` if there is none.
pub(crate) fn status(pid: Pid, tid: Tid) -> Option<Status> {
    let mut bytes = Vec::with_capacity(4096);
    let file = File::open(format!("/proc/{pid}/task/{}/status", tid.0)).ok()?;
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    parse(&String::from_utf8_lossy(&bytes))
}

pub(crate) fn parse(text: &str) -> Option<Status> {
    // The name comes first, and the kernel writes line ends in it as `\n`.
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

    #[test]
    fn a_status_is_understood() {
        let text = "Name:\tState:\\n\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t7\nPPid:\t4\nTracerPid:\t12\n";
        assert_eq!(parse(text), Some(Status { state: 'S', tracer: Some(Tid(12)), parent: Pid(4) }));
        let untraced = text.replace("12", "0");
        assert_eq!(parse(&untraced).expect("understood").tracer, None);
        assert_eq!(parse("State:\tS\n"), None);
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
        thread.join().expect("it ends").expect_err("nothing was sent");
        assert!(matches!(threads(Pid(1 << 22)), Err(ProcError::NoSuchProcess { .. })));
        assert_eq!(status(pid, Tid(1 << 22)), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in any::<String>()) {
            let _ = parse(&text);
        }
    }
}
