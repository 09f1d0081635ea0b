//! Commands to a Java virtual machine by HotSpot's attach protocol (attachListener_posix.cpp in OpenJDK): a file and SIGQUIT make the
//! machine listen at a socket. Everything that the process controls is verified: the socket could be any other program's. Files are
//! created with the rights of the process, whose `/tmp` can be a folder that its user may not write to.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use heapbpf_linux::folder::Folder;
use heapbpf_linux::pidfd::PidFd;
use heapbpf_linux::place::Place;
use heapbpf_linux::proc::maps::{MappingName, executable_mappings};
use heapbpf_linux::proc::process::{self, Owner};
use heapbpf_linux::rights::Rights;

const LISTENS_WITHIN: Duration = Duration::from_secs(3);
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
const ANSWER_BYTES_MAX: u64 = 1 << 16;
/// Request with the version of the protocol, the command and its three arguments, each with a terminating zero.
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

/// Whether a mapped file is HotSpot, by its name.
pub(crate) fn is_machine(path: &str) -> bool {
    path.rsplit('/').next() == Some("libjvm.so")
}

/// Makes a virtual machine write `/tmp/perf-PID.map`. Takes up to a few seconds.
pub(crate) fn write_perf_map(pid: Pid) -> Result<(), JvmError> {
    let process = PidFd::open(pid).map_err(|_| JvmError::Gone)?;
    let mappings = executable_mappings(pid).map_err(|_| JvmError::Gone)?;
    let is_libjvm =
        |name: &MappingName| matches!(name, MappingName::File { path, .. } if path.to_str().is_some_and(is_machine));
    let status = process::status(pid)?;
    let owner = Owner::parse(&status).ok_or(JvmError::Gone)?;
    // SIGQUIT would kill a program without a handler.
    if !mappings.iter().any(|mapping| is_libjvm(&mapping.name)) || !catches_quit(&status) {
        return Err(JvmError::Refuses);
    }
    let root = process::root(pid)?;
    let rights = Rights::of(pid).ok_or(JvmError::Gone)?;
    if process.has_ended()? {
        return Err(JvmError::Gone);
    }
    let temporary = rights.run(|| Folder::beneath(&root.into(), Path::new("tmp"), rights.uid(), pid))??;
    let machine = Machine { temporary, owner, rights };
    let socket = match machine.socket()? {
        Some(socket) => socket,
        None => machine.request_socket(&process)?,
    };
    machine.rights.run(|| ask(&socket))?
}

/// A virtual machine that accepts commands.
struct Machine {
    /// The folder `/tmp` as the machine's process has it.
    temporary: Folder,
    owner: Owner,
    rights: Rights,
}

/// Whether a process has a handler of SIGQUIT, by the text of `/proc/PID/status`.
fn catches_quit(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (libc::SIGQUIT - 1) != 0)
}

impl Machine {
    /// The socket at which the machine listens, if it does.
    fn socket(&self) -> Result<Option<File>, JvmError> {
        let Owner { own_pid, uid } = self.owner;
        let Some(socket) = self.temporary.place(&format!(".java_pid{own_pid}"))?.entry()? else { return Ok(None) };
        let metadata = socket.metadata()?;
        let is_own = metadata.file_type().is_socket() && metadata.uid() == uid;
        if is_own { Ok(Some(socket)) } else { Err(JvmError::Foreign(own_pid)) }
    }

    fn request_socket(&self, process: &PidFd) -> Result<File, JvmError> {
        let (name, file) = self.create_request()?;
        let result = process.quit().map_err(JvmError::from).and_then(|()| self.wait_for_socket());
        // The machine does not remove the file.
        if let Some(file) = file {
            let _ = self.rights.run(|| name.remove(&file));
        }
        result
    }

    fn create_request(&self) -> Result<(Place, Option<File>), JvmError> {
        let name = self.temporary.place(&format!(".attach_pid{}", self.owner.own_pid))?;
        let file = match self.rights.run(|| name.create_new(0o600))? {
            // The file belongs to another tool, or to an earlier attempt.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => name.entry()?,
            created => Some(created?),
        };
        Ok((name, file))
    }

    fn wait_for_socket(&self) -> Result<File, JvmError> {
        let deadline = Instant::now() + LISTENS_WITHIN;
        while Instant::now() < deadline {
            if let Some(socket) = self.socket()? {
                return Ok(socket);
            }
            thread::sleep(POLL);
        }
        Err(JvmError::Silent)
    }
}

fn ask(socket: &File) -> Result<(), JvmError> {
    let mut stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
    stream.write_all(WRITE_PERF_MAP)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let answer = shown::text(&answer);
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
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn only_machines_receive_signals() {
        assert!(is_machine("/usr/lib/jvm/java-17/lib/server/libjvm.so") && !is_machine("/tmp/libjvm.so.1"));
        assert!(catches_quit("Name:\tjava\nSigCgt:\t0000000000000004\n"));
        assert!(!catches_quit("SigCgt:\t0000000000000003\n") && !catches_quit("") && !catches_quit("SigCgt:\tx\n"));
        let own = Pid(std::process::id());
        assert!(matches!(write_perf_map(own), Err(JvmError::Refuses)));
    }

    /// A machine with the rights of a user who owns nothing of this test, in a new folder.
    fn machine(own_pid: u32) -> (Machine, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        std::fs::create_dir(folder.path().join("tmp")).expect("ours");
        let root = File::open(folder.path()).expect("it is a folder");
        let rights = Rights::of_nobody();
        let temporary =
            Folder::beneath(&root.into(), Path::new("tmp"), rights.uid(), Pid(std::process::id())).expect("it exists");
        let uid = folder.path().metadata().expect("ours").uid();
        (Machine { temporary, owner: Owner { own_pid, uid }, rights }, folder)
    }

    #[test]
    fn only_sockets_of_the_process_are_used() {
        let (mut machine, folder) = machine(1);
        let tmp = folder.path().join("tmp");
        let _listener = UnixListener::bind(tmp.join(".java_pid1")).expect("ours");
        std::os::unix::fs::symlink(".java_pid1", tmp.join(".java_pid2")).expect("ours");
        std::fs::write(tmp.join(".java_pid3"), "").expect("ours");
        assert!(matches!(machine.socket(), Ok(Some(_))));
        machine.owner.uid += 1;
        assert!(matches!(machine.socket(), Err(JvmError::Foreign(1))));
        machine.owner.uid -= 1;
        for other in [2, 3] {
            machine.owner.own_pid = other;
            assert!(matches!(machine.socket(), Err(JvmError::Foreign(_))), "{other}");
        }
        machine.owner.own_pid = 4;
        assert!(matches!(machine.socket(), Ok(None)));
    }

    /// A process can have any folder mounted at `/tmp`, also one that only root may write to.
    #[test]
    fn requests_are_created_with_the_rights_of_the_process() {
        let (machine, folder) = machine(1);
        let (tmp, request) = (folder.path().join("tmp"), folder.path().join("tmp/.attach_pid1"));
        let error = machine.create_request().expect_err("it may not write there");
        assert!(matches!(&error, JvmError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied), "{error}");
        assert!(!request.exists());
        std::fs::set_permissions(&tmp, PermissionsExt::from_mode(0o1777)).expect("ours");
        let (name, file) = machine.create_request().expect("all may write there");
        let metadata = request.metadata().expect("it was created");
        assert_eq!((metadata.uid(), metadata.mode() & 0o777), (machine.rights.uid(), 0o600));
        let (_, found) = machine.create_request().expect("one of an earlier attempt is used");
        assert_eq!(found.expect("it is there").metadata().expect("ours").ino(), metadata.ino());
        let file = file.expect("it is there");
        machine.rights.run(|| name.remove(&file)).expect("it runs").expect("its own");
        assert!(!request.exists());
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
