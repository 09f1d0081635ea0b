//! Commands to a Java virtual machine by HotSpot's attach protocol (attachListener_posix.cpp in OpenJDK): a file and SIGQUIT make the
//! machine listen at a socket. Everything that the process controls is verified: the socket could be any other program's.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, fchown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::ids::Pid;
use crate::linux::pidfd::PidFd;
use crate::linux::proc::maps::{MappingName, executable_mappings};
use crate::linux::proc::process::{Owner, entry_path};

const LISTENS_WITHIN: Duration = Duration::from_secs(3);
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
const ANSWER_BYTES_MAX: u64 = 1 << 16;
/// Version of the protocol, command and its three arguments, each with a terminating zero.
const WRITE_PERF_MAP: &[u8] = b"1\0jcmd\0Compiler.perfmap\0\0\0";

#[derive(Debug, thiserror::Error)]
pub(crate) enum JvmError {
    #[error("it has exited")]
    Gone,
    #[error("it does not accept commands (`-Xrs` or `-XX:+DisableAttachMechanism`)")]
    Refuses,
    #[error("it did not listen within {} s", LISTENS_WITHIN.as_secs())]
    Silent,
    #[error("its socket `/tmp/.java_pid{0}` is not its own")]
    Foreign(u32),
    #[error("it answered `{0}` (JDK 17 or later has the command)")]
    Failed(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Whether a mapped file is HotSpot.
pub(crate) fn is_machine(path: &str) -> bool {
    path.rsplit('/').next() == Some("libjvm.so")
}

/// Makes a virtual machine write `/tmp/perf-PID.map`. Takes up to a few seconds.
pub(crate) fn write_perf_map(pid: Pid) -> Result<(), JvmError> {
    let process = PidFd::open(pid).map_err(|_| JvmError::Gone)?;
    let mappings = executable_mappings(pid).map_err(|_| JvmError::Gone)?;
    let is_libjvm =
        |name: &MappingName| matches!(name, MappingName::File { path, .. } if path.to_str().is_some_and(is_machine));
    let status = std::fs::read_to_string(entry_path(pid, "status"))?;
    let owner = Owner::parse(&status).ok_or(JvmError::Gone)?;
    // SIGQUIT would kill a program without a handler.
    if !mappings.iter().any(|mapping| is_libjvm(&mapping.name)) || !catches_quit(&status) {
        return Err(JvmError::Refuses);
    }
    let root = File::open(entry_path(pid, "root"))?;
    if process.has_ended()? {
        return Err(JvmError::Gone);
    }
    let socket = match socket(&root, owner)? {
        Some(socket) => socket,
        None => request_socket(&root, owner, &process)?,
    };
    ask(&socket)
}

/// Whether a process has a handler of SIGQUIT, by the text of `/proc/PID/status`.
fn catches_quit(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (libc::SIGQUIT - 1) != 0)
}

fn open(root: &File, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat2(root, Path::new("tmp").join(name), flags, mode, resolve)?))
}

/// The socket at which it listens, if it does.
fn socket(root: &File, owner: Owner) -> Result<Option<File>, JvmError> {
    let socket = match open(root, &format!(".java_pid{}", owner.own_pid), OFlags::PATH, Mode::empty()) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let metadata = socket.metadata()?;
    let is_own = metadata.file_type().is_socket() && metadata.uid() == owner.uid;
    if is_own { Ok(Some(socket)) } else { Err(JvmError::Foreign(owner.own_pid)) }
}

fn request_socket(root: &File, owner: Owner, process: &PidFd) -> Result<File, JvmError> {
    let name = format!(".attach_pid{}", owner.own_pid);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    match open(root, &name, flags, Mode::RUSR | Mode::WUSR) {
        // JDK 8 accepts files of its own user only.
        Ok(file) => fchown(&file, Some(owner.uid), None)?,
        // Of another tool, or of an earlier attempt.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.into()),
    }
    let result = process.quit().map_err(JvmError::from).and_then(|()| wait_for_socket(root, owner));
    // The machine removes neither.
    if let Ok(directory) = open(root, ".", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
        let _ = rustix::fs::unlinkat(directory, &name, rustix::fs::AtFlags::empty());
    }
    result
}

fn wait_for_socket(root: &File, owner: Owner) -> Result<File, JvmError> {
    let deadline = Instant::now() + LISTENS_WITHIN;
    while Instant::now() < deadline {
        if let Some(socket) = socket(root, owner)? {
            return Ok(socket);
        }
        thread::sleep(POLL);
    }
    Err(JvmError::Silent)
}

fn ask(socket: &File) -> Result<(), JvmError> {
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
    stream.write_all(WRITE_PERF_MAP)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    // The first line is the result; 0 is success.
    match answer.split_once('\n') {
        Some(("0", _)) => Ok(()),
        Some((_, reason)) => {
            Err(JvmError::Failed(reason.lines().next().unwrap_or_default().chars().take(200).collect()))
        }
        None => Err(JvmError::Silent),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_machines_receive_signals() {
        assert!(is_machine("/usr/lib/jvm/java-17/lib/server/libjvm.so") && !is_machine("/tmp/libjvm.so.1"));
        assert!(catches_quit("Name:\tjava\nSigCgt:\t0000000000000004\n"));
        assert!(!catches_quit("SigCgt:\t0000000000000003\n") && !catches_quit("") && !catches_quit("SigCgt:\tx\n"));
        let own = Pid(std::process::id());
        assert!(matches!(write_perf_map(own), Err(JvmError::Refuses)));
    }

    #[test]
    fn only_sockets_of_the_process_are_used() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let tmp = folder.path().join("tmp");
        std::fs::create_dir(&tmp).expect("ours");
        let root = File::open(folder.path()).expect("it is a folder");
        let uid = tmp.metadata().expect("ours").uid();
        let owner = |own_pid| Owner { own_pid, uid };
        let _listener = UnixListener::bind(tmp.join(".java_pid1")).expect("ours");
        std::os::unix::fs::symlink(".java_pid1", tmp.join(".java_pid2")).expect("ours");
        std::fs::write(tmp.join(".java_pid3"), "").expect("ours");
        assert!(matches!(socket(&root, owner(1)), Ok(Some(_))));
        assert!(matches!(socket(&root, Owner { uid: uid + 1, ..owner(1) }), Err(JvmError::Foreign(1))));
        for other in [2, 3] {
            assert!(matches!(socket(&root, owner(other)), Err(JvmError::Foreign(_))), "{other}");
        }
        assert!(matches!(socket(&root, owner(4)), Ok(None)));
    }

    #[test]
    fn answers_begin_with_a_result() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (answer, is_success) in [("0\nCommand executed successfully\n", true), ("1\nUnknown\n", false), ("", false)]
        {
            let path = folder.path().join("socket");
            let listener = UnixListener::bind(&path).expect("ours");
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut asked = [0; WRITE_PERF_MAP.len()];
                stream.read_exact(&mut asked).expect("it writes first");
                stream.write_all(answer.as_bytes()).expect("it reads");
                assert_eq!(asked, WRITE_PERF_MAP);
            });
            let socket = File::from(rustix::fs::open(&path, OFlags::PATH, Mode::empty()).expect("ours"));
            assert_eq!(ask(&socket).is_ok(), is_success, "{answer}");
            server.join().expect("it does not panic");
            std::fs::remove_file(&path).expect("ours");
        }
    }
}
