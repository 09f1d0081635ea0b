//! A file system of one directory that a thread of the test serves by the protocol of `/dev/fuse`, and that stops answering on command.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// How a file system is mounted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Serves it. Other users get `EACCES` unless it is root.
    pub user: u32,
    /// Reads pass the kernel's page cache, and mappings cannot be shared.
    pub is_direct: bool,
}

/// A mounted file system. Unmounted when dropped; what waits for it gets an error.
#[derive(Debug)]
pub struct Fuse {
    folder: TempDir,
    server: Option<JoinHandle<()>>,
    commands: SyncSender<Command>,
    wake: PipeWriter,
    done: Receiver<()>,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Hang,
    Answer,
    Die,
}

impl Fuse {
    /// Serves copies of these files by their names, executable for all.
    #[track_caller]
    pub fn mount(files: &[(&str, &Path)], options: Options) -> Self {
        let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let files = files.iter().map(|(name, path)| ((*name).to_owned(), read(path))).collect();
        let folder = tempfile::tempdir_in("/var/tmp").expect("there is such a directory");
        // The kernel opens it anew for each mount; no program may inherit it.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty());
        let device = File::from(device.expect("the kernel has FUSE (`modprobe fuse`)"));
        let Options { user, is_direct } = options;
        let others = if user == 0 { ",allow_other" } else { "" };
        let data = format!("fd={},rootmode=40000,user_id={user},group_id={user}{others}", device.as_raw_fd());
        let data = CString::new(data).expect("no zeros");
        mount("heapbpf-test", folder.path(), "fuse", MountFlags::empty(), &*data).expect("tests run as root");
        let (commands, orders) = mpsc::sync_channel(1);
        let (answers, done) = mpsc::sync_channel(1);
        let (waked, wake) = std::io::pipe().expect("descriptors");
        let server = Server { device: Some(device), files, is_direct, user, unanswered: None, waked };
        let server = thread::spawn(move || server.serve(&orders, &answers));
        Self { folder, server: Some(server), commands, wake, done }
    }

    /// The directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The directory itself.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// From now on, requests are received and not answered: what waits for them cannot be killed.
    pub fn hang(&mut self) {
        self.command(Command::Hang);
    }

    /// Answers all requests, including those that wait.
    pub fn answer(&mut self) {
        self.command(Command::Answer);
    }

    /// The program that serves the file system exits.
    pub fn die(&mut self) {
        self.command(Command::Die);
    }

    fn command(&mut self, command: Command) {
        // A server that has died receives none.
        if self.commands.send(command).is_ok() {
            let _ = self.wake.write_all(&[0]);
            let _ = self.done.recv();
        }
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.die();
        let _ = self.server.take().map(JoinHandle::join);
        let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}

/// Number of the directory. Files follow.
const ROOT: u64 = 1;
/// `fuse_in_header` in include/uapi/linux/fuse.h.
const HEADER_BYTES: usize = 40;
/// As the kernel requires: the largest write and a page.
const REQUEST_BYTES_MAX: usize = (128 << 10) + 4096;

struct Server {
    device: Option<File>,
    files: BTreeMap<String, Vec<u8>>,
    is_direct: bool,
    user: u32,
    /// Requests, while none is answered.
    unanswered: Option<Vec<Vec<u8>>>,
    waked: PipeReader,
}

impl Server {
    fn serve(mut self, orders: &Receiver<Command>, done: &SyncSender<()>) {
        while let Some(device) = &self.device {
            let mut polled = [PollFd::new(device, PollFlags::IN), PollFd::new(&self.waked, PollFlags::IN)];
            poll(&mut polled, None).expect("both are open");
            let [requests, wakes] = polled.map(|polled| polled.revents());
            if wakes.contains(PollFlags::IN) {
                let _ = self.waked.read(&mut [0]);
                match orders.recv() {
                    Ok(Command::Hang) => self.unanswered = Some(Vec::new()),
                    Ok(Command::Answer) => {
                        self.unanswered.take().into_iter().flatten().for_each(|request| self.reply(&request));
                    }
                    // Closing the only descriptor ends the connection.
                    Ok(Command::Die) | Err(_) => self.device = None,
                }
                let _ = done.send(());
            } else if requests.contains(PollFlags::IN) {
                self.receive();
            } else if requests.intersects(PollFlags::ERR | PollFlags::HUP) {
                self.device = None;
            }
        }
    }

    fn receive(&mut self) {
        let mut request = vec![0; REQUEST_BYTES_MAX];
        let Some(mut device) = self.device.as_ref() else { return };
        // A request can be withdrawn in between.
        let Ok(length) = device.read(&mut request) else { return };
        request.truncate(length);
        match &mut self.unanswered {
            Some(unanswered) => unanswered.push(request),
            None => self.reply(&request),
        }
    }

    fn reply(&self, request: &[u8]) {
        let (opcode, unique) = (u32_at(request, 4), u64_at(request, 8));
        let answer = match opcode {
            // `FORGET`, `INTERRUPT` and `BATCH_FORGET` have no answers.
            2 | 36 | 42 => return,
            _ => self.answer(opcode, u64_at(request, 16), request.get(HEADER_BYTES..).unwrap_or_default()),
        };
        let (error, bytes) = match answer {
            Ok(bytes) => (0, bytes),
            Err(error) => (-error.raw_os_error(), Vec::new()),
        };
        let length = u32::try_from(16 + bytes.len()).expect("answers are small");
        let whole = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes(), &bytes].concat();
        // What waited for it may be gone.
        let _ = self.device.as_ref().map(|mut device| device.write(&whole));
    }

    fn answer(&self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, Errno> {
        match opcode {
            // `LOOKUP`: the number, and no time for which the answer is valid.
            1 => {
                let name = body.split(|&byte| byte == 0).next().unwrap_or_default();
                let place = self.files.keys().position(|known| known.as_bytes() == name).ok_or(Errno::NOENT)?;
                let number = ROOT + 1 + place as u64;
                Ok([words(&[number, 0, 0, 0, 0]), self.attributes(number)?].concat())
            }
            // `GETATTR`
            3 => Ok([words(&[0, 0]), self.attributes(node)?].concat()),
            // `OPEN`: reads are direct (1), or the pages in memory are kept (2).
            14 => Ok(words(&[0, if self.is_direct { 1 } else { 2 }])),
            // `READ`
            15 => {
                let bytes = self.file(node).ok_or(Errno::ISDIR)?;
                let start = usize::try_from(u64_at(body, 8)).expect("offsets are small").min(bytes.len());
                let end = (start + u32_at(body, 16) as usize).min(bytes.len());
                Ok(bytes[start..end].to_vec())
            }
            // `STATFS`
            17 => Ok(vec![0; 80]),
            // `RELEASE` and `FLUSH`
            18 | 25 => Ok(Vec::new()),
            // `INIT`: version 7.31, no optional features, writes of at most 128 KiB, times in nanoseconds.
            26 => {
                let mut answer = [7_u32, 31, 128 << 10, 0, 0, 128 << 10, 1].map(u32::to_ne_bytes).concat();
                answer.resize(64, 0);
                Ok(answer)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn file(&self, node: u64) -> Option<&Vec<u8>> {
        self.files.values().nth(usize::try_from(node.checked_sub(ROOT + 1)?).ok()?)
    }

    /// `fuse_attr`.
    fn attributes(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let (mode, size) = match (node, self.file(node)) {
            (ROOT, _) => (0o40_755, 0),
            (_, Some(bytes)) => (0o100_755, bytes.len() as u64),
            _ => return Err(Errno::NOENT),
        };
        let sizes = words(&[node, size, size.div_ceil(512), 1_700_000_000, 1_700_000_000, 1_700_000_000]);
        let rest = [0, 0, 0, mode, 1, self.user, self.user, 0, 4096, 0].map(u32::to_ne_bytes).concat();
        Ok([sizes, rest].concat())
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
