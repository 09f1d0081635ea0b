//! Words of a process that the kernel keeps for it: what it gave with a file descriptor to be told of (`epoll_event.data`), and with a
//! timer (`sigevent.sigev_value`). Often that is the only pointer to a block. Other requests that the kernel holds are not told by it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::ids::Pid;

/// Most words that are kept of a process: as many files as it can have open by the kernel's highest default.
const WORDS_MAX: usize = 1 << 20;
/// Most bytes of one entry that are read.
const BYTES_MAX: u64 = 1 << 28;
/// Most files of a process that are looked at.
const FILES_MAX: usize = 1 << 20;

/// Where a process's words are asked for: its epoll descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keepers {
    epolls: Vec<u32>,
}

impl Keepers {
    /// Those of a process; none where it does not run any more. Asks for each of its files, so this is not to be done while it is stopped.
    pub(crate) fn of(pid: Pid) -> Self {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Self::default() };
        let is_epoll = |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]");
        let files = files.take(FILES_MAX).filter_map(|entry| Some(entry.ok()?.path()));
        let epolls = files.filter(|path| is_epoll(path)).filter_map(|path| path.file_name()?.to_str()?.parse().ok());
        Self { epolls: epolls.collect() }
    }

    /// The words that the kernel has now. What cannot be read has none: a kernel without `CONFIG_CHECKPOINT_RESTORE` tells of no timer.
    pub(crate) fn words(&self, pid: Pid) -> Vec<u64> {
        let mut words = Vec::new();
        for descriptor in &self.epolls {
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
    fn words_are_read_as_the_kernel_writes_them() {
        let line = "tfd:        4 events:       19 data:     559d89d542a0  pos:0 ino:40e sdev:10";
        assert_eq!(of_epoll(line), Some(0x559d_89d5_42a0));
        assert_eq!(of_epoll("pos:\t0"), None);
        assert_eq!(of_timer("signal: 10/0000559d89d54320"), Some(0x559d_89d5_4320));
        assert_eq!(of_timer("notify: signal/pid.24420"), None);
    }

    #[test]
    fn data_given_to_epoll_is_told_of_at_each_look() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let queue = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let own = Pid(std::process::id());
        let keepers = Keepers::of(own);
        let word = 0x1234_5678_9abc_def0;
        assert!(!keepers.words(own).contains(&word));
        epoll::add(&queue, &reader, epoll::EventData::new_u64(word), epoll::EventFlags::IN).expect("added");
        assert!(keepers.words(own).contains(&word), "asked for anew, of the same descriptors");
        assert_eq!(Keepers::of(Pid(u32::MAX >> 1)), Keepers::default());
    }

    proptest! {
        #[test]
        fn any_line_is_survived(line in any::<String>()) {
            let _ = (of_epoll(&line), of_timer(&line));
        }
    }
}
