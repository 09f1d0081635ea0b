//! Waits for the end of any of many processes: one descriptor, however many there are.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::retry_on_intr;

use crate::ids::Pid;
use crate::linux::readiness::Readiness;

/// Processes whose end is waited for. A pidfd is readable once its process has ended, and epoll forgets descriptors that
/// are closed, so a process that is dropped needs no goodbye.
#[derive(Debug)]
pub(crate) struct Ends {
    epoll: OwnedFd,
    readiness: Readiness,
}

/// Ends that are told at once.
const BATCH: usize = 256;

impl Ends {
    /// Waits for nobody yet.
    ///
    /// # Errors
    ///
    /// When there are no more descriptors to be had.
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let readiness = Readiness::of(&epoll)?;
        Ok(Self { epoll, readiness })
    }

    /// Waits for this process too, by its pidfd.
    pub(crate) fn add(&self, pid: Pid, pidfd: impl AsFd) -> io::Result<()> {
        // Told once: a pidfd stays readable.
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        Ok(epoll::add(&self.epoll, pidfd, EventData::new_u64(u64::from(pid.0)), flags)?)
    }

    /// Those that have ended, each told once. Waits until there is one.
    pub(crate) async fn next(&self) -> Vec<Pid> {
        loop {
            let ended = self.ended();
            if !ended.is_empty() {
                return ended;
            }
            if self.readiness.readable().await.is_err() {
                // The runtime is going down, and this task with it.
                std::future::pending::<()>().await;
            }
        }
    }

    fn ended(&self) -> Vec<Pid> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; BATCH];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // Whoever is told of later must not be passed over: readiness is told once.
        let count = retry_on_intr(|| epoll::wait(&self.epoll, &mut events, Some(&now))).unwrap_or(0);
        events[..count].iter().map(|event| Pid(u32::try_from(event.data.u64()).unwrap_or(0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::pidfd::PidFd;
    use std::process::{Child, Command, Stdio};

    fn waiting() -> Child {
        Command::new("sh").args(["-c", "read x"]).stdin(Stdio::piped()).spawn().expect("sh starts")
    }

    #[tokio::test]
    async fn each_end_is_told_once_and_no_other() {
        let ends = Ends::new().expect("descriptors are to be had");
        let mut children = [waiting(), waiting(), waiting()];
        let pidfds = children.each_ref().map(|child| PidFd::open(Pid(child.id())).expect("it waits"));
        for (child, pidfd) in children.iter().zip(&pidfds) {
            ends.add(Pid(child.id()), pidfd).expect("a pidfd can be waited for");
        }
        for chosen in [1, 0] {
            drop(children[chosen].stdin.take());
            assert_eq!(ends.next().await, [Pid(children[chosen].id())]);
        }
        assert_eq!(ends.ended(), [], "the third still runs");
        drop(children[2].stdin.take());
        assert_eq!(ends.next().await, [Pid(children[2].id())]);
        children.iter_mut().for_each(|child| drop(child.wait()));
    }
}
