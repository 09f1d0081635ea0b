//! The thread that finds the names of snapshots, so that neither the session nor a view waits for files.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use heapbpf_ledger::model::Profile;
use tokio::sync::oneshot;

use crate::snapshot::{Scope, Snapshot};
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;
use crate::symbolize::sources::Sources;
use crate::symbolize::trim::Trim;

pub(super) struct Job {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) scope: Scope,
    pub(super) reply: oneshot::Sender<Arc<Profile>>,
}

/// Handle of the thread. When it is dropped, the thread ends after its current job, which is cut short.
pub(super) struct Namer {
    jobs: Sender<Job>,
    interrupt: Interrupt,
}

impl Namer {
    pub(super) fn start(trim: Trim, sources: Sources) -> Self {
        let (jobs, queue) = mpsc::channel();
        let interrupt = Interrupt::default();
        let of_thread = interrupt.clone();
        std::thread::spawn(move || work(&queue, &of_thread, trim, &sources));
        Self { jobs, interrupt }
    }

    /// Sends a job. A thread that has panicked drops the job, and with it the way to reply.
    pub(super) fn send(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}

impl Drop for Namer {
    fn drop(&mut self) {
        self.interrupt.raise();
    }
}

fn work(queue: &Receiver<Job>, interrupt: &Interrupt, trim: Trim, sources: &Sources) {
    let mut resolver = Resolver::sandboxed(interrupt.clone(), sources.clone());
    let mut recording = None;
    for Job { snapshot, scope, reply } in queue {
        if reply.is_closed() {
            continue;
        }
        // Numbers of modules belong to one recording, and names are cached by them.
        if recording.replace(snapshot.started_monotonic_ns).is_some_and(|last| last != snapshot.started_monotonic_ns) {
            resolver = Resolver::sandboxed(interrupt.clone(), sources.clone());
        }
        let _ = reply.send(Arc::new(profile(&snapshot, scope, &resolver, trim)));
        // The release keeps names, and closes the files from which they were read.
        resolver.release();
    }
}
