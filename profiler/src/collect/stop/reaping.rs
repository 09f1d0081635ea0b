//! Waits for threads that were killed while they stood still, at the side of the thread that stops the others. An exec waits for
//! that, and whoever would take hold of a thread that calls exec waits in the kernel for the exec, without a limit: each for the other.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::ids::{Pid, Tid};
use crate::linux::pid;
use crate::linux::proc::tasks;

/// How often is looked: threads that end come and go faster.
const PERIOD: Duration = Duration::from_millis(20);

/// See the module. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Reaping {
    reaped: Arc<Mutex<Vec<Tid>>>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaping {
    /// Of threads of this process that the calling thread traces.
    pub(super) fn begin(pid: Pid) -> io::Result<Self> {
        let reaped = Arc::new(Mutex::new(Vec::new()));
        let (list, tracer) = (Arc::clone(&reaped), own_tid());
        let (end, ended) = mpsc::channel();
        let work = move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                reap(pid, tracer, &list);
            }
        };
        let thread = std::thread::Builder::new().name("collect-reap".to_owned()).spawn(work)?;
        Ok(Self { reaped, end: Some(end), thread: Some(thread) })
    }

    /// Whether this has seen the end of a thread, which nobody else can then.
    pub(super) fn has_reaped(&self, tid: Tid) -> bool {
        self.reaped.lock().unwrap_or_else(PoisonError::into_inner).contains(&tid)
    }
}

impl Drop for Reaping {
    fn drop(&mut self) {
        self.end = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The calling thread.
pub(super) fn own_tid() -> Tid {
    Tid(rustix::thread::gettid().as_raw_pid().unsigned_abs())
}

/// The first thread's end is the process's, and is left alone.
fn reap(pid: Pid, tracer: Tid, reaped: &Mutex<Vec<Tid>>) {
    let threads = tasks::threads(pid).unwrap_or_default().into_iter().filter(|tid| tid.0 != pid.0);
    let is_over = |tid: &Tid| {
        tasks::status(pid, *tid).is_some_and(|status| status.tracer == Some(tracer) && matches!(status.state, 'Z'))
    };
    // Stops are left for the one that traces.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let options = options | WaitIdOptions::from_bits_retain(libc::__WALL.unsigned_abs());
    for tid in threads.filter(is_over) {
        let Some(id) = pid::raw(Pid(tid.0)).map(WaitId::Pid) else { continue };
        // Under the lock, so that the other thread knows of it when it finds the thread gone.
        let mut list = reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(waitid(id, options), Ok(Some(_))) {
            list.push(tid);
        }
    }
}
