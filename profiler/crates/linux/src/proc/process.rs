//! Facts about a process, never cached, because every value may change.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_base::shown;
use rustix::fs::{CWD, Mode, OFlags, openat};

#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    #[error("no process `{pid}`: it does not exist or has exited; `ps -e` lists running processes")]
    NoSuchProcess { pid: Pid },
    #[error(
        "process `{pid}` exists, but `/proc` hides it (mounted with `hidepid`: `grep hidepid /proc/mounts`); run as root or with CAP_SYS_PTRACE"
    )]
    Hidden { pid: Pid },
    #[error("cannot read `/proc/{pid}/{entry}`: permission denied; run as root or with CAP_SYS_PTRACE")]
    Permission { pid: Pid, entry: &'static str },
    #[error("cannot read `/proc/{pid}/{entry}`: {source}; check that /proc is mounted (`mount -t proc proc /proc`)")]
    Io { pid: Pid, entry: &'static str, source: io::Error },
    /// The default of `vm.max_map_count` is 65,530.
    #[error("process `{pid}` has more mappings than the limit of {max}; see `sysctl vm.max_map_count`")]
    TooManyMappings { pid: Pid, max: usize },
    #[error("cannot list `/proc`: {0}; check that it is mounted (`mount -t proc proc /proc`)")]
    List(io::Error),
    /// An entry does not have the format of all kernels since 5.15.
    #[error("cannot parse `/proc/{pid}/{entry}`; please report its contents (`cat`)")]
    Malformed { pid: Pid, entry: &'static str },
}

impl ProcError {
    /// Classifies an error. A process that exits between opening and reading yields `ESRCH`, not `ENOENT`.
    pub(super) fn from_io(pid: Pid, entry: &'static str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { pid, entry },
            io::ErrorKind::NotFound if exists(pid) || !exists_proc() => Self::Io { pid, entry, source },
            io::ErrorKind::NotFound if is_hidden(pid) => Self::Hidden { pid },
            io::ErrorKind::NotFound => Self::NoSuchProcess { pid },
            _ if source.raw_os_error() == Some(libc::ESRCH) => Self::NoSuchProcess { pid },
            _ => Self::Io { pid, entry, source },
        }
    }
}

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE_INODE: u64 = 0xEFFF_FFFC;
/// Inode of the initial user namespace (`PROC_USER_INIT_INO` in include/linux/proc_ns.h).
const INITIAL_USER_NAMESPACE_INODE: u64 = 0xEFFF_FFFD;

/// Read limit of a command line, which a target may enlarge to megabytes.
const ARGUMENTS_BYTES_MAX: u64 = 1 << 20;

const NAME_BYTES_MAX: u64 = 64;
/// Read limit of a status: a line has 65,536 groups (`NGROUPS_MAX`) of at most 11 bytes.
const STATUS_BYTES_MAX: u64 = 1 << 20;
const SYSCALL_BYTES_MAX: u64 = 512;

/// Whether the process exists; true for zombies.
pub(crate) fn exists(pid: Pid) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Whether procfs is mounted for this PID namespace.
fn exists_proc() -> bool {
    Path::new("/proc/self").exists()
}

/// Whether a process exists that procfs does not show.
fn is_hidden(pid: Pid) -> bool {
    let pid = i32::try_from(pid.0).ok().and_then(rustix::process::Pid::from_raw);
    let answer = pid.map(rustix::process::test_kill_process);
    matches!(answer, Some(Ok(()) | Err(rustix::io::Errno::PERM)))
}

/// Arguments of a process, as it may have overwritten them; bytes that are not UTF-8 are escaped. Empty for kernel threads,
/// zombies and in an exec.
pub fn arguments(pid: Pid) -> Result<Vec<String>, ProcError> {
    let bytes = read(pid, "cmdline", ARGUMENTS_BYTES_MAX)?;
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(bytes.split(|&byte| byte == 0).map(|argument| shown::text(argument).into_owned()).collect())
}

/// The text of `/proc/PID/status`. Its first line is a name that the process chooses, which need not be UTF-8.
pub fn status(pid: Pid) -> io::Result<String> {
    Ok(shown::text(&read_file(entry_path(pid, "status"), STATUS_BYTES_MAX)?).into_owned())
}

/// The text of `/proc/PID/task/TID/status`.
pub fn thread_status(pid: Pid, tid: Tid) -> io::Result<String> {
    let path = format!("/proc/{pid}/task/{}/status", tid.0);
    Ok(shown::text(&read_file(path, STATUS_BYTES_MAX)?).into_owned())
}

/// The process of a thread; `None` if it has exited.
pub fn of_thread(tid: Tid) -> Option<Pid> {
    let status = status(Pid(tid.0)).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok().map(Pid)
}

/// PID and user of a process, as it and the system see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// PID of the process in its own PID namespace.
    pub own_pid: u32,
    /// Effective user of the process.
    pub uid: u32,
}

impl Owner {
    pub fn read(pid: Pid) -> Option<Self> {
        Self::parse(&status(pid).ok()?)
    }

    /// Parses the text of `/proc/PID/status`.
    pub fn parse(status: &str) -> Option<Self> {
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // The innermost namespace is the last; the second user is the effective one.
        let own_pid = line("NSpid:")?.split_ascii_whitespace().next_back()?.parse().ok()?;
        let uid = line("Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(Self { own_pid, uid })
    }
}

/// The kernel's name for the process, at most 15 bytes. Bytes that are not UTF-8 are escaped.
pub fn comm(pid: Pid) -> Result<String, ProcError> {
    Ok(name(&read(pid, "comm", NAME_BYTES_MAX)?))
}

fn name(bytes: &[u8]) -> String {
    shown::text(bytes.strip_suffix(b"\n").unwrap_or(bytes)).into_owned()
}

/// PIDs of all processes in rising order, including kernel threads and zombies.
pub fn all() -> Result<Vec<Pid>, ProcError> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").map_err(ProcError::List)? {
        let name = entry.map_err(ProcError::List)?.file_name();
        pids.extend(name.to_str().and_then(number));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// Parses the name of a process's directory; `None` for other entries of `/proc`.
pub fn number(name: &str) -> Option<Pid> {
    // `parse` would accept a sign.
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok().map(Pid)).flatten()
}

/// Path of the executable as the process sees it, without the kernel's suffix ` (deleted)`, which a name may have too. Not for
/// kernel threads.
pub fn executable(pid: Pid) -> Result<PathBuf, ProcError> {
    let path = fs::read_link(entry_path(pid, "exe")).map_err(|source| ProcError::from_io(pid, "exe", source))?;
    let bytes = path.as_os_str().as_bytes();
    Ok(PathBuf::from(OsStr::from_bytes(bytes.strip_suffix(b" (deleted)").unwrap_or(bytes))))
}

/// Whether the PIDs that this process sees are those that the kernel side reports.
pub fn in_initial_pid_namespace() -> Result<bool, ProcError> {
    is_in_namespace("ns/pid", INITIAL_PID_NAMESPACE_INODE)
}

/// Whether children of this process will be in another PID namespace than this process, as after `unshare --pid` without
/// `--fork`: then it can have no thread (`copy_process` in kernel/fork.c). Until the first child, the link is missing
/// (`pidns_for_children_get` in kernel/pid_namespace.c).
pub fn is_between_pid_namespaces() -> bool {
    let of = |name: &str| fs::read_link(Path::new("/proc/self/ns").join(name)).ok();
    let own = of("pid");
    own.is_some() && own != of("pid_for_children")
}

/// Whether this process is in the user namespace whose capabilities BPF and probes require.
pub fn in_initial_user_namespace() -> Result<bool, ProcError> {
    is_in_namespace("ns/user", INITIAL_USER_NAMESPACE_INODE)
}

fn is_in_namespace(entry: &'static str, inode: u64) -> Result<bool, ProcError> {
    let metadata = fs::metadata(Path::new("/proc/self").join(entry));
    let failed = |source| ProcError::Io { pid: Pid(std::process::id()), entry, source };
    Ok(metadata.map_err(failed)?.ino() == inode)
}

/// The root directory of a process, as a place for lookups: it is not opened itself (`O_PATH`), because that can block.
pub fn root(pid: Pid) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(File::from(openat(CWD, entry_path(pid, "root"), flags, Mode::empty())?))
}

/// Path of an entry of a process. If the first thread has exited before others, entries that all threads share are those of
/// another thread: the kernel has released the first thread's.
pub fn entry_path(pid: Pid, entry: &str) -> PathBuf {
    let directory = if is_shared_by_threads(entry) { shared_entries(pid) } else { pid };
    PathBuf::from(format!("/proc/{directory}/{entry}"))
}

/// Whether an entry is about the memory, the files or the namespaces of a process, which a zombie does not have.
fn is_shared_by_threads(entry: &str) -> bool {
    let name = entry.split('/').next().unwrap_or_default();
    let of_memory = ["auxv", "cmdline", "environ", "exe", "map_files", "maps", "mem", "pagemap", "smaps"];
    let of_files = ["cwd", "fd", "fdinfo", "mountinfo", "root"];
    of_memory.contains(&name) || of_files.contains(&name) || entry == "ns/mnt"
}

/// The thread whose directory has the entries that all threads share: the first thread of the process, or another one if that has
/// exited.
pub(super) fn shared_entries(pid: Pid) -> Pid {
    let lacks_program = |pid: Pid| {
        fs::read_link(format!("/proc/{pid}/exe")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    if !lacks_program(pid) {
        return pid;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut threads = threads.filter_map(|entry| entry.file_name().to_str().and_then(number));
    threads.find(|thread| *thread != pid && !lacks_program(*thread)).unwrap_or(pid)
}

/// The kernel's name for a thread (`/proc/PID/task/TID/comm`), at most 15 bytes. Bytes that are not UTF-8 are escaped.
pub fn thread_name(pid: Pid, tid: Tid) -> Result<String, ProcError> {
    let bytes = read_file(format!("/proc/{pid}/task/{}/comm", tid.0), NAME_BYTES_MAX);
    Ok(name(&bytes.map_err(|source| ProcError::from_io(pid, "task", source))?))
}

/// Address of a blocked thread's stack; `None` while it runs, and without permission to trace it.
pub fn stack_pointer(pid: Pid, tid: Tid) -> Option<TargetAddr> {
    let bytes = read_file(format!("/proc/{pid}/task/{}/syscall", tid.0), SYSCALL_BYTES_MAX).ok()?;
    // The last two fields are the stack pointer and the instruction's address.
    let text = std::str::from_utf8(&bytes).ok()?;
    let digits = text.split_ascii_whitespace().nth_back(1)?.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().map(TargetAddr)
}

pub(crate) fn read(pid: Pid, entry: &'static str, bytes_max: u64) -> Result<Vec<u8>, ProcError> {
    read_file(entry_path(pid, entry), bytes_max).map_err(|source| ProcError::from_io(pid, entry, source))
}

pub(super) fn read_file(path: impl AsRef<Path>, bytes_max: u64) -> io::Result<Vec<u8>> {
    // The buffer is large enough for most entries: the kernel generates a command line again for each `read`.
    let mut bytes = Vec::with_capacity(4096);
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Read limit of the groups: a line per hierarchy, of which there are about 15, and paths of at most 4 KiB.
const CGROUPS_BYTES_MAX: u64 = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// The controllers of a version 1 hierarchy (`memory`, `cpu,cpuacct`, `name=systemd`); empty for version 2.
    pub controllers: String,
    /// The group's path from the root of the hierarchy, or of this process's cgroup namespace; begins with `/`.
    pub path: String,
}

/// Groups of a process: one with version 2, one per hierarchy with version 1, both where both are mounted. Bytes that are not
/// UTF-8 are escaped. Paths are those below this process's own mounts: from the root of its cgroup namespace.
pub fn memberships(pid: Pid) -> Result<Vec<Membership>, ProcError> {
    let bytes = read(pid, "cgroup", CGROUPS_BYTES_MAX)?;
    Ok(parse_cgroups(&shown::text(&bytes)))
}

/// Parses lines of `number:controllers:path`. Skips invalid lines.
pub fn parse_cgroups(text: &str) -> Vec<Membership> {
    let membership = |line: &str| {
        let (_number, rest) = line.split_once(':')?;
        // Names of version 1 hierarchies contain no colons, paths may.
        let (controllers, path) = rest.split_once(':')?;
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        path.starts_with('/').then(|| Membership { controllers: controllers.to_owned(), path: path.to_owned() })
    };
    text.split('\n').filter_map(membership).collect()
}

/// Read limit of the auxiliary vector: the kernel writes about 50 words.
const AUXV_BYTES_MAX: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auxv(Vec<[u64; 2]>);

impl Auxv {
    /// Reads the vector of a process. `None` when there is no such process, it cannot be read, or it has no vector (kernel
    /// threads, zombies).
    pub fn read(pid: Pid) -> Option<Self> {
        Self::parse(&read(pid, "auxv", AUXV_BYTES_MAX).ok()?)
    }

    /// Parses a vector. `None` without the terminating `AT_NULL`.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect();
        let entries = words.as_chunks().0;
        let end = entries.iter().position(|&[kind, _]| kind == libc::AT_NULL)?;
        Some(Self(entries[..end].to_vec()))
    }

    /// Value of an entry. `wanted` is `libc::AT_*`.
    pub fn get(&self, wanted: u64) -> Option<u64> {
        self.0.iter().find_map(|&[kind, value]| (kind == wanted).then_some(value))
    }
}

/// Maximum number of words: as many files as a process can have open by the kernel's highest default.
const WORDS_MAX: usize = 1 << 20;
const WORDS_BYTES_MAX: u64 = 1 << 28;
const FILES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpollSet {
    descriptors: Vec<u32>,
}

impl EpollSet {
    /// Finds the epoll descriptors of a process. Empty if the process has exited. Reads the link of each open file, so call it
    /// before the process is stopped.
    pub fn of(pid: Pid) -> Self {
        let Ok(files) = fs::read_dir(entry_path(pid, "fd")) else { return Self::default() };
        let is_epoll = |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[eventpoll]");
        let files = files.take(FILES_MAX).filter_map(|entry| Some(entry.ok()?.path()));
        let epolls = files.filter(|path| is_epoll(path)).filter_map(|path| path.file_name()?.to_str()?.parse().ok());
        Self { descriptors: epolls.collect() }
    }

    /// User data of the epoll descriptors and of all timers. A kernel without `CONFIG_CHECKPOINT_RESTORE` lists no timers.
    pub fn user_data(&self, pid: Pid) -> Vec<u64> {
        let mut words = Vec::new();
        for descriptor in &self.descriptors {
            collect(&entry_path(pid, &format!("fdinfo/{descriptor}")), of_epoll, &mut words);
        }
        collect(&entry_path(pid, "timers"), of_timer, &mut words);
        words
    }
}

fn collect(path: &Path, word: fn(&str) -> Option<u64>, words: &mut Vec<u64>) {
    let Ok(file) = File::open(path) else { return };
    let lines = BufReader::new(file.take(WORDS_BYTES_MAX)).lines().map_while(Result::ok);
    let room = WORDS_MAX.saturating_sub(words.len());
    words.extend(lines.filter_map(|line| word(&line)).take(room));
}

/// User data in a line such as `tfd:        4 events:       19 data:     559d89d542a0  pos:0 ino:40e sdev:10`.
pub fn of_epoll(line: &str) -> Option<u64> {
    let (_, data) = line.strip_prefix("tfd:")?.split_once("data:")?;
    u64::from_str_radix(data.split_ascii_whitespace().next()?, 16).ok()
}

/// User data in a line such as `signal: 10/0000559d89d54320`.
pub fn of_timer(line: &str) -> Option<u64> {
    let (_, value) = line.strip_prefix("signal:")?.split_once('/')?;
    u64::from_str_radix(value.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proc::stat::Stat;

    fn start_time(pid: Pid) -> Result<heapbpf_base::ids::StartTime, ProcError> {
        Stat::read(pid).map(|stat| stat.start_ticks)
    }
    use heapbpf_base::testing::Running;

    /// A PID that the kernel never assigns: `PID_MAX_LIMIT` is 2^22.
    const UNUSED: Pid = Pid(1 << 22);

    #[test]
    fn a_child_is_described() {
        // Until it sleeps, between exec and its first instruction, a process has no arguments.
        let mut child = Running::sleep(Path::new("/bin/sleep"));
        let pid = child.pid();
        let described = (arguments(pid), comm(pid), executable(pid), start_time(pid), start_time(pid));
        child.end();
        assert_eq!(described.0.expect("readable"), ["/bin/sleep", "1000"]);
        assert_eq!(described.1.expect("readable"), "sleep");
        assert!(described.2.expect("readable").ends_with("sleep"));
        assert_eq!(described.3.expect("readable"), described.4.expect("readable"));
        assert!(matches!(arguments(pid), Err(ProcError::NoSuchProcess { .. })));
    }

    #[test]
    fn start_times_increase() {
        let first_process = start_time(Pid(1)).expect("init is readable");
        assert!(first_process < start_time(Pid(std::process::id())).expect("readable"));
    }

    #[test]
    fn all_processes_include_this_one_and_its_child() {
        let child = Running::sleep(Path::new("/bin/sleep"));
        let all = all().expect("/proc is mounted");
        assert!(all.is_sorted_by(|first, second| first < second), "{all:?}");
        for pid in [Pid(1), Pid(std::process::id()), child.pid()] {
            assert!(all.contains(&pid), "{pid} is not in {all:?}");
        }
    }

    #[test]
    fn process_directories_are_distinguished_from_other_entries() {
        for (name, pid) in [("1", Some(1)), ("4194303", Some(4_194_303)), ("self", None), ("", None), ("+5", None)] {
            assert_eq!(number(name), pid.map(Pid), "{name}");
        }
        assert_eq!(number("4294967296"), None);
    }

    proptest! {
        #[test]
        fn any_name_is_parsed_without_panic(name in any::<String>()) {
            let _ = number(&name);
        }

        #[test]
        fn any_number_is_a_pid(pid in any::<u32>()) {
            prop_assert_eq!(number(&pid.to_string()), Some(Pid(pid)));
        }
    }

    #[test]
    fn errors_name_the_missing_process() {
        let error = comm(UNUSED).expect_err("never assigned");
        assert!(error.to_string().starts_with("no process `4194304`"), "{error}");
        assert!(!exists(UNUSED));
        assert!(exists(Pid(std::process::id())));
    }

    #[test]
    fn the_namespace_is_compared_with_the_initial_one() {
        let link = fs::read_link("/proc/self/ns/pid").expect("readable");
        let initial = link.to_str() == Some("pid:[4026531836]");
        assert_eq!(in_initial_pid_namespace().expect("readable"), initial);
    }
}

#[cfg(test)]
mod cgroups_tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: &[(&str, &str)]) {
        let found = parse_cgroups(text);
        let found: Vec<_> = found.iter().map(|place| (place.controllers.as_str(), place.path.as_str())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn both_versions_are_parsed() {
        check("0::/system.slice/redis.service\n", &[("", "/system.slice/redis.service")]);
        check(
            "9:name=systemd:/\n4:memory:/docker/abc\n3:cpu,cpuacct:/\n0::/\n",
            &[("name=systemd", "/"), ("memory", "/docker/abc"), ("cpu,cpuacct", "/"), ("", "/")],
        );
        check("0::/a:b/kubepods.slice:cri-containerd:0123\n", &[("", "/a:b/kubepods.slice:cri-containerd:0123")]);
        check("0::/gone (deleted)\n", &[("", "/gone")]);
        check("0::/../sibling", &[("", "/../sibling")]);
    }

    #[test]
    fn invalid_lines_are_skipped() {
        check("", &[]);
        check("\n0:\n0::\n0::relative\nx\n0::/\n", &[("", "/")]);
    }

    #[test]
    fn this_process_is_in_a_group() {
        let places = memberships(Pid(std::process::id())).expect("readable");
        assert!(places.iter().all(|place| place.path.starts_with('/')), "{places:?}");
        assert!(!places.is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in any::<String>()) {
            let _ = parse_cgroups(&text);
        }

        #[test]
        fn any_path_is_preserved(path in "/[^\\n]{0,50}[^)\\n]") {
            check(&format!("0::{path}\n"), &[("", &path)]);
        }
    }
}

#[cfg(test)]
mod auxv_tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn entries_are_found_by_their_kind() {
        let auxv = Auxv::parse(&bytes(&[libc::AT_BASE, 0, libc::AT_ENTRY, 0x1000, 0, 0, libc::AT_PHDR, 1]));
        let auxv = auxv.expect("it has an end");
        for (kind, value) in [(libc::AT_BASE, Some(0)), (libc::AT_ENTRY, Some(0x1000)), (libc::AT_PHDR, None)] {
            assert_eq!(auxv.get(kind), value, "{kind}");
        }
        assert_eq!(auxv.get(libc::AT_NULL), None);
    }

    #[test]
    fn a_truncated_vector_is_rejected() {
        let whole = bytes(&[libc::AT_BASE, 5, 0, 0]);
        assert!(Auxv::parse(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(Auxv::parse(&whole[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn this_process_has_a_vector_and_a_missing_one_does_not() {
        let auxv = Auxv::read(Pid(std::process::id())).expect("readable");
        assert_eq!(auxv.get(libc::AT_PAGESZ), Some(rustix::param::page_size() as u64));
        // A PID that no kernel gives out.
        assert_eq!(Auxv::read(Pid(1 << 22)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), wanted in 0u64..4) {
            let _ = Auxv::parse(&bytes).map(|auxv| auxv.get(wanted));
        }
    }
}

#[cfg(test)]
mod kernel_words_tests {
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
