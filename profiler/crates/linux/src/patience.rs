//! Limits the time of work that a target can make wait for ever: reads of its memory where it handles page faults itself
//! (`userfaultfd`), or maps a file of a file system of its own (FUSE). Such reads can only be ended by ending the thread's process.

use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

/// Time limit that is long enough for any read on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs `work` on a thread of its own. Returns `None` after a second: the thread stays until the work or the process ends, so the
/// caller must not try again with the same target.
pub fn within_a_second<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    within(PATIENCE, work)
}

/// Runs `work` like [`within_a_second`], for another time.
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = sync_channel(1);
    let thread = thread::Builder::new().name("heapbpf-read".to_owned());
    // The receiver may have given up.
    let spawned = thread.spawn(move || drop(sender.send(work())));
    spawned.ok()?;
    receiver.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_has_a_result_unless_it_takes_too_long() {
        assert_eq!(within_a_second(|| 5), Some(5));
        let (_sender, receiver) = sync_channel::<()>(1);
        assert_eq!(within_a_second(move || receiver.recv().is_ok()), None);
    }
}
