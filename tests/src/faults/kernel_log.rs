//! Reads messages of the kernel log about breakpoints that could not be removed.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

/// The kernel's message when it cannot remove a breakpoint (`uprobe_unregister` in kernel/events/uprobes.c), after the
/// thread's name and number: `uprobe: heapbpf:123 failed to unregister, leaking uprobe`.
const LEAK: &str = "leaking uprobe";

/// A reader of the kernel log, which starts at its end.
#[derive(Debug)]
pub(super) struct KernelLog(File);

impl KernelLog {
    /// # Panics
    ///
    /// When the log cannot be read.
    pub(super) fn open() -> Self {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("flags are small");
        let opened = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg");
        let mut log = opened.unwrap_or_else(|error| panic!("`/dev/kmsg`: {error}"));
        log.seek(SeekFrom::End(0)).expect("the kernel log has an end");
        Self(log)
    }

    /// Messages since the last call about breakpoints of these threads. Other sessions on the machine cause messages, too.
    pub(super) fn leaks_of(&mut self, threads: &[u32]) -> Vec<String> {
        let mut leaks = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => break,
                Ok(length) => leaks.extend(leak(&String::from_utf8_lossy(&record[..length]), threads)),
                // The oldest messages were overwritten: the next read continues after them.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("`/dev/kmsg`: {error}"),
            }
        }
        leaks
    }
}

/// The message of a record, if it is about a breakpoint of one of these threads.
fn leak(record: &str, threads: &[u32]) -> Option<String> {
    let line = record.lines().next()?.split_once(';')?.1;
    let thread = line.strip_prefix("uprobe: ")?.split_once(" failed")?.0.rsplit_once(':')?.1;
    let of_ours = thread.parse().is_ok_and(|thread| threads.contains(&thread));
    (line.contains(LEAK) && of_ours).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_attributed_to_threads() {
        let record = "4,123,456,-;uprobe: heapbpf:17 failed to unregister, leaking uprobe\n SUBSYSTEM=x\n";
        assert_eq!(leak(record, &[16, 17]).as_deref(), Some("uprobe: heapbpf:17 failed to unregister, leaking uprobe"));
        assert_eq!(leak(record, &[7]), None);
        assert_eq!(leak("4,1,2,-;something else\n", &[17]), None);
    }
}
