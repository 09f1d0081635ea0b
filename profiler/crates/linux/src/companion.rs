//! Helper processes: this program started again with a hidden command, connected by a [`Channel`].

#![expect(unsafe_code, reason = "runs code between fork and exec")]

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use heapbpf_base::ids::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The file that this process runs, even if its path now names another.
const PROGRAM: &str = "/proc/self/exe";

/// Signals that a terminal, a service manager or `pkill heapbpf` sends to all processes of a group or name.
const IGNORED: [libc::c_int; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A running companion. Dropping it closes the channel, and waits until the companion has completed its current work and exited.
#[derive(Debug)]
pub struct Companion {
    child: Child,
    channel: Option<Channel>,
}

impl Companion {
    /// Runs a hidden command in its own session, ignoring signals of terminals and service managers, with the channel
    /// as standard input, no standard output, and shared standard error.
    pub fn start(command: &str) -> io::Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let mut program = Command::new(PROGRAM);
        // The name is not `heapbpf`, so that `kill -USR1 $(pidof heapbpf)` does not reach the companion.
        program.arg0(format!("heapbpf-{command}")).arg(command);
        program.stdin(Stdio::from(OwnedFd::from(theirs.0))).stdout(Stdio::null());
        let before_exec = || {
            rustix::process::setsid()?;
            // A suspended companion goes on when the agent exits: it may hold processes.
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::CONT))?;
            for signal in IGNORED {
                // SAFETY: ignoring a signal runs no code.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            Ok(())
        };
        // SAFETY: the closure makes system calls with plain numbers, allocates no memory and takes no lock.
        unsafe { program.pre_exec(before_exec) };
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let child = program.spawn()?;
        running.push(Pid(child.id()));
        Ok(Self { child, channel: Some(channel) })
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Channel to the companion; `None` after [`hang_up`](Self::hang_up).
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    pub(crate) fn hang_up(&mut self) {
        self.channel = None;
    }

    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills the companion without waiting: it can be in a system call that a signal does not end.
    pub fn abandon(mut self) {
        self.channel = None;
        let _ = self.child.kill();
        let reaper = thread::Builder::new().name("reaper".to_owned());
        // If no thread can be started, dropping the companion waits.
        let _ = reaper.spawn(move || drop(self));
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.hang_up();
        let _ = self.child.wait();
        let pid = self.pid();
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|&other| other != pid);
    }
}

/// Process ids of the companions that are running.
pub fn all() -> Vec<Pid> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub fn is_companion(pid: Pid) -> bool {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
}

/// Sets the name of this process in `ps` and `top`. At most 15 bytes are kept.
pub fn set_name(name: &str) {
    // The process has the name of its main thread; this may be another thread.
    let _ = super::proc::writable::write_own("comm", name);
}

/// Maximum number of descriptors in a message. The kernel's limit is 253 (`SCM_MAX_FD` in include/net/scm.h).
pub(crate) const DESCRIPTORS_MAX: usize = 160;

const HEADER_BYTES: usize = 8;

#[derive(Debug)]
pub struct Channel(UnixStream);

#[derive(Debug, Default)]
pub struct Message {
    pub bytes: Vec<u8>,
    /// Descriptors of the message, received with `FD_CLOEXEC`.
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self(one), Self(other)))
    }

    /// Returns the end that is this process's standard input. Errors: `ENOTSOCK` when standard input is something else.
    pub fn of_standard_input() -> io::Result<Self> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        stream.peer_addr()?;
        Ok(Self(stream))
    }

    /// Sends a message. Errors: `EPIPE` or `ECONNRESET` when the peer has exited, `InvalidInput` for too many descriptors or
    /// bytes.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let wait = || retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None));
        self.send_while(bytes, descriptors, || Ok(wait().map(drop)?))
    }

    /// Sends a message. Calls `wait` when the peer has not received enough to send more: `wait` waits until the channel is
    /// writable, or fails.
    pub fn send_while(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
        mut wait: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let header = header(bytes.len(), descriptors.len())?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let mut sent = 0;
        while sent < HEADER_BYTES + bytes.len() {
            // Header and data are sent in one call: a process that is killed in between would leave a part, for the rest of which
            // its peer waits.
            let rest = [&header[sent.min(HEADER_BYTES)..], &bytes[sent.saturating_sub(HEADER_BYTES)..]];
            match sendmsg(&self.0, &rest.map(IoSlice::new), &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                // The descriptors arrive with the first byte.
                Ok(count) => (sent, ancillary) = (sent + count, SendAncillaryBuffer::default()),
                Err(Errno::AGAIN) => wait()?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives a message; `None` when the peer has closed its end. Errors: `UnexpectedEof` in a message, `InvalidData` above
    /// `bytes_max`.
    pub fn receive(&self, bytes_max: usize) -> io::Result<Option<Message>> {
        self.receive_while(bytes_max, || Ok(()))
    }

    pub fn send_value(&self, value: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(&encode(value)?, descriptors)
    }

    pub fn receive_value<T: DeserializeOwned>(&self, bytes_max: usize) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_value_while(bytes_max, || Ok(()))
    }

    /// Receives a value like [`receive_while`](Self::receive_while).
    pub fn receive_value_while<T: DeserializeOwned>(
        &self,
        bytes_max: usize,
        wait: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let Some(message) = self.receive_while(bytes_max, wait)? else { return Ok(None) };
        let value = postcard::from_bytes(&message.bytes).map_err(io::Error::other)?;
        Ok(Some((value, message.descriptors)))
    }

    /// Receives a message. Calls `wait` before each part: `wait` waits until the channel is [readable](Self::readable) or fails,
    /// so that a time limit covers the whole message, however slowly it is sent.
    pub fn receive_while(
        &self,
        bytes_max: usize,
        mut wait: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Option<Message>> {
        let mut header = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        wait()?;
        let received = {
            let mut parts = [IoSliceMut::new(&mut header)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            retry_on_intr(|| recvmsg(&self.0, &mut parts, &mut ancillary, flags))?.bytes
        };
        if received == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        self.fill(&mut header[received..], &mut wait)?;
        let number =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
        let (length, count) = (number(0), number(4));
        if length > bytes_max || count != descriptors.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        self.fill(&mut bytes, &mut wait)?;
        Ok(Some(Message { bytes, descriptors }))
    }

    fn fill(&self, mut bytes: &mut [u8], wait: &mut impl FnMut() -> io::Result<()>) -> io::Result<()> {
        while !bytes.is_empty() {
            wait()?;
            match (&self.0).read(bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until there is data, or the end of the connection. Returns false after the time limit.
    pub fn readable(&self, limit: Duration) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut polled, Some(&limit)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Header of a message with this number of bytes and descriptors.
pub fn header(bytes: usize, descriptors: usize) -> io::Result<[u8; HEADER_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    for (field, number) in header.chunks_exact_mut(4).zip([bytes, descriptors]) {
        field.copy_from_slice(&u32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?.to_ne_bytes());
    }
    Ok(header)
}

/// Encodes a value as the bytes of a message.
pub fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(end: OwnedFd) -> Self {
        Self(end.into())
    }
}

#[cfg(test)]
mod channel_tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::thread;

    use super::*;

    #[test]
    fn messages_arrive_complete_and_in_order_with_their_descriptors() {
        let (one, other) = Channel::pair().expect("descriptors");
        let large = vec![7; 3 << 20];
        let file = File::open("/proc/self/comm").expect("readable");
        thread::scope(|scope| {
            scope.spawn(|| {
                one.send(b"first", &[file.as_fd()]).expect("sent");
                one.send(&large, &[]).expect("sent");
                one.send(b"", &[file.as_fd(), file.as_fd()]).expect("sent");
            });
            let first = other.receive(100).expect("received").expect("a message");
            assert_eq!((first.bytes.as_slice(), first.descriptors.len()), (&b"first"[..], 1));
            let mut text = String::new();
            let descriptor = first.descriptors.into_iter().next().expect("one");
            File::from(descriptor).read_to_string(&mut text).expect("readable");
            assert!(!text.is_empty());
            assert_eq!(other.receive(4 << 20).expect("received").expect("a message").bytes, large);
            assert_eq!(other.receive(100).expect("received").expect("a message").descriptors.len(), 2);
        });
        drop(one);
        assert!(other.receive(100).expect("closed").is_none());
        assert_eq!(other.send(b"x", &[]).expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn messages_that_are_too_large_or_late_are_errors() {
        let (one, other) = Channel::pair().expect("descriptors");
        one.send(&[0; 100], &[]).expect("sent");
        assert_eq!(other.receive(99).expect_err("too large").kind(), io::ErrorKind::InvalidData);
        let (_one, other) = Channel::pair().expect("descriptors");
        other.0.set_read_timeout(Some(Duration::from_millis(5))).expect("valid");
        assert_eq!(other.receive(99).expect_err("late").kind(), io::ErrorKind::WouldBlock);
        let too_many = vec![other.as_fd(); DESCRIPTORS_MAX + 1];
        assert_eq!(other.send(b"", &too_many).expect_err("too many").kind(), io::ErrorKind::InvalidInput);
    }
}
