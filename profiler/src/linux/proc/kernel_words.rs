//! Pointers that the kernel stores for a process: user data of epoll registrations (`epoll_event.data`) and timers
//! (`sigevent.sigev_value`). Often these are the only pointers to a block. The kernel does not expose others.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::ids::Pid;

/// Maximum number of words: as many files as a process can have open by the kernel's highest default.
const WORDS_MAX: usize = 1 << 20;
/// Maximum number of bytes read from one entry.
const BYTES_MAX: u64 = 1 << 28;
/// Maximum number of inspected files.
const FILES_MAX: usize = 1 << 20;

/// The epoll descriptors of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EpollSet {
    descriptors: Vec<u32>,
}

impl EpollSet {
    /// Finds them; empty if the process has exited. Reads the link of each open file, so call it before the process is
    /// stopped.
    pub(crate) fn of(pid: Pid) -> Self {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Self::default() };
        let is_epoll = |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]");
        let files = files.take(FILES_MAX).filter_map(|entry| Some(entry.ok()?.path()));
        let epolls = files.filter(|path| is_epoll(path)).filter_map(|path| path.file_name()?.to_str()?.parse().ok());
        Self { descriptors: epolls.collect() }
    }

    /// The user data words that the kernel stores now, for these descriptors and all timers. Unreadable entries have
    /// none: a kernel without `CONFIG_CHECKPOINT_RESTORE` lists no timers.
    pub(crate) fn user_data(&self, pid: Pid) -> Vec<u64> {
        let mut words = Vec::new();
        for descriptor in &self.descriptors {
            collect(&format!("/proc/{pid}/fdinfo/{descriptor}"), of_epoll, &mut words);
        }
        collect(&format!("/proc/{pid}/timers"), of_timer, &mut words);
        words
    }
}

fn collect(path: &str, word: fn(&str) -> Option<u64>, words: &mut Vec<u64>) {
    let Ok(file) = File::open(path) else { return };
    let lines = BufReader::new(file.take(BYTES_MAX)).lines().map_while(Result::ok);
    let room = WORDS_MAX.saturating_sub(words.len());
    words.extend(lines.filter_map(|line| word(&line)).take(room));
}

/// `tfd:        4 events:       19 data:     559d89d542a0  pos:0 ino:40e sdev:10`
pub(crate) fn of_epoll(line: &str) -> Option<u64> {
    let (_, data) = line.strip_prefix("tfd:")?.split_once("data:")?;
    u64::from_str_radix(data.split_ascii_whitespace().next()?, 16).ok()
}

/// `signal: 10/0000559d89d54320`
pub(crate) fn of_timer(line: &str) -> Option<u64> {
    let (_, value) = line.strip_prefix("signal:")?.split_once('/')?;
    u64::from_str_radix(value.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::event::epoll;

    use super::*;

    #[test]
    fn lines_of_the_kernel_are_parsed() {
        let line = "tfd:        4 events:       19 data:     559d89d542a0  pos:0 ino:40e sdev:10";
        assert_eq!(of_epoll(line), Some(0x559d_89d5_42a0));
        assert_eq!(of_epoll("pos:\t0"), None);
        assert_eq!(of_timer("signal: 10/0000559d89d54320"), Some(0x559d_89d5_4320));
        assert_eq!(of_timer("notify: signal/pid.24420"), None);
    }

    #[test]
    fn epoll_user_data_is_read_again_at_each_call() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let queue = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let own = Pid(std::process::id());
        let epolls = EpollSet::of(own);
        let word = 0x1234_5678_9abc_def0;
        assert!(!epolls.user_data(own).contains(&word));
        epoll::add(&queue, &reader, epoll::EventData::new_u64(word), epoll::EventFlags::IN).expect("added");
        assert!(epolls.user_data(own).contains(&word), "read again from the same descriptors");
        assert_eq!(EpollSet::of(Pid(u32::MAX >> 1)), EpollSet::default());
    }

    proptest! {
        #[test]
        fn any_line_is_parsed_without_panic(line in any::<String>()) {
            let _ = (of_epoll(&line), of_timer(&line));
        }
    }
}
