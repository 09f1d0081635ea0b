//! Detaches links off the session's task: the kernel lets each wait until no program can be in its handler any more.

use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use super::{Link, detach_all};

/// A thread that detaches what it is handed. Dropping it waits until all of that is gone.
#[derive(Debug)]
pub struct Detacher {
    links: Option<Sender<Vec<Link>>>,
    thread: Option<JoinHandle<()>>,
}

/// Links that are detached side by side at most: each takes a thread while it waits.
const BATCH: usize = 64;

impl Detacher {
    /// Starts the thread.
    #[must_use]
    pub fn start() -> Self {
        let (sender, receiver) = mpsc::channel::<Vec<Link>>();
        let thread = thread::spawn(move || {
            while let Ok(mut links) = receiver.recv() {
                while links.len() < BATCH
                    && let Ok(more) = receiver.try_recv()
                {
                    links.extend(more);
                }
                detach_all(links);
            }
        });
        Self { links: Some(sender), thread: Some(thread) }
    }

    /// Has these detached soon.
    pub fn detach(&self, links: Vec<Link>) {
        if let Some(sender) = self.links.as_ref().filter(|_| !links.is_empty()) {
            // The thread ends with this value alone; should it be gone, dropping the links detaches them as well.
            let _ = sender.send(links);
        }
    }
}

impl Drop for Detacher {
    fn drop(&mut self) {
        self.links = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn all_is_detached_when_it_is_dropped() {
        let detached = Arc::new(AtomicUsize::new(0));
        let detacher = Detacher::start();
        for count in [0, 1, 200] {
            detacher.detach((0..count).map(|_| Link::new(Counted(Arc::clone(&detached)))).collect());
        }
        drop(detacher);
        assert_eq!(detached.load(Ordering::SeqCst), 201);
    }
}
