//! Background thread that processes jobs in order, so that the session continues draining the ring buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use tokio::sync::oneshot;

use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;

/// Handle to the thread. Dropping it waits for the thread, which removes files that it has not completed.
pub(super) struct Worker<J, R> {
    /// `None` once the queue is closed.
    queue: Option<Sender<J>>,
    pending: Arc<AtomicUsize>,
    /// `None` once joined.
    thread: Option<JoinHandle<Result<R>>>,
    /// Resolves when the thread ends.
    ended: oneshot::Receiver<()>,
    interrupt: Interrupt,
}

/// The thread's end of the queue. Ends when the queue is closed.
pub(super) struct Jobs<J> {
    queue: Receiver<J>,
    pending: Arc<AtomicUsize>,
    is_processing: bool,
}

impl<J> Iterator for Jobs<J> {
    type Item = J;

    fn next(&mut self) -> Option<J> {
        if self.is_processing {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
        let job = self.queue.recv().ok();
        self.is_processing = job.is_some();
        job
    }
}

impl<J: Send + 'static, R: Send + 'static> Worker<J, R> {
    /// Starts a thread that runs `work` with the queue and a resolver of its own.
    pub(super) fn start(
        name: &str,
        work: impl FnOnce(&mut Jobs<J>, Resolver) -> Result<R> + Send + 'static,
    ) -> Result<Self> {
        let (queue, receiver) = mpsc::channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let mut jobs = Jobs { queue: receiver, pending: Arc::clone(&pending), is_processing: false };
        let (on_end, ended) = oneshot::channel::<()>();
        let interrupt = Interrupt::default();
        let of_thread = interrupt.clone();
        let run = move || {
            // Dropped on return and on panic.
            let _on_end = on_end;
            // A resolver is not Send.
            work(&mut jobs, Resolver::sandboxed(of_thread))
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run).context("cannot start a thread")?;
        Ok(Self { queue: Some(queue), pending, thread: Some(thread), ended, interrupt })
    }

    pub(super) fn send(&self, job: J) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        // A thread that has failed reports its error in `finish`.
        let _ = self.queue.as_ref().map(|queue| queue.send(job));
    }

    /// Number of jobs that are queued or being processed.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Waits until the thread has processed all jobs, and returns its result. When `stop` resolves first, remaining
    /// frames are not symbolized.
    pub(super) async fn finish(mut self, stop: impl Future<Output = ()>) -> Result<R> {
        self.queue = None;
        tokio::select! {
            _ = &mut self.ended => {}
            () = stop => self.interrupt.raise(),
        }
        self.join()
    }

    /// Like [`finish`](Self::finish), for callers without a runtime.
    pub(super) fn finish_blocking(mut self) -> Result<R> {
        self.join()
    }
}

impl<J, R> Worker<J, R> {
    fn join(&mut self) -> Result<R> {
        self.queue = None;
        let thread = self.thread.take().context("the thread was joined before")?;
        thread.join().map_err(|_| anyhow!("internal error: a worker thread panicked; please report it"))?
    }
}

impl<J, R> Drop for Worker<J, R> {
    fn drop(&mut self) {
        // Fails where the thread is joined already; its own error is secondary to that which led here.
        let _ = self.join();
    }
}
