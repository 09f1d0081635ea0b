//! Results of a program's start-up, and how system calls of the dynamic linker are distinguished from the program's.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use heapbpf_base::ids::Pid;
use heapbpf_base::shown::{self, Shown};
use heapbpf_linux::arch::{LEGACY_OPEN, is_legacy_loader_syscall};
use heapbpf_linux::proc::maps::{MappingName, executable_mappings};
use heapbpf_linux::proc::process::Auxv;
use heapbpf_linux::process_memory::read_words;
use serde::{Deserialize, Serialize};
use thiserror::Error;

const MAP_ANONYMOUS: u64 = libc::MAP_ANONYMOUS.unsigned_abs() as u64;
const PROT_EXEC: u64 = libc::PROT_EXEC.unsigned_abs() as u64;

#[derive(Debug)]
pub(super) struct Loader {
    code: Range<u64>,
    /// Whether the linker is also the C library (musl), so that the address of a system call does not distinguish them.
    is_libc: bool,
    file: Option<u64>,
    opens: bool,
}

impl Loader {
    /// Finds the dynamic linker of a process at its exec; `None` for static programs, and if `/proc` is unreadable.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        let auxv = Auxv::read(pid)?;
        let base = auxv.get(libc::AT_BASE).unwrap_or(0);
        let mappings = executable_mappings(pid).ok()?;
        // A linker that is run as a program, as in `ld.so --preload X PROGRAM`, is at the entry point.
        let from = if base == 0 { auxv.get(libc::AT_ENTRY)? } else { base };
        let mapping = mappings.iter().find(|mapping| mapping.end.0 > from)?;
        let MappingName::File { path, .. } = &mapping.name else {
            return None;
        };
        let is_libc = !is_linker_only(&shown::os_text(path.file_name()?));
        let code = mapping.start.0..mapping.end.0;
        (base != 0 || !is_libc).then_some(Self { code, is_libc, file: None, opens: false })
    }

    /// Whether the linker makes the system call, and not the program. `instruction` is the address after it. `is_done` returns
    /// whether the linker states that it has loaded the program.
    pub(super) fn makes(
        &mut self,
        instruction: u64,
        number: u64,
        arguments: &[u64; 6],
        is_done: impl FnOnce() -> bool,
    ) -> bool {
        let number_of_open = number.cast_signed();
        self.opens = number_of_open == libc::SYS_openat || LEGACY_OPEN.is_some_and(|(open, _)| number_of_open == open);
        // The address after the last instruction may be outside of the code.
        let inside = self.code.contains(&instruction.wrapping_sub(1));
        inside && (!self.is_libc || self.loads(number, arguments) && !is_done())
    }

    pub(super) fn returned(&mut self, result: i64) {
        if std::mem::take(&mut self.opens) {
            self.file = u64::try_from(result).ok();
        }
    }

    /// Whether a system call is one that a linker makes to load modules. A program that makes such a call may be held longer, but
    /// must not wait for input: only reads of `file` count.
    fn loads(&self, number: u64, arguments: &[u64; 6]) -> bool {
        match number.cast_signed() {
            libc::SYS_read | libc::SYS_readv | libc::SYS_pread64 => self.file == Some(arguments[0]),
            libc::SYS_openat
            | libc::SYS_close
            | libc::SYS_fstat
            | libc::SYS_newfstatat
            | libc::SYS_statx
            | libc::SYS_fcntl
            | libc::SYS_mmap
            | libc::SYS_mprotect
            | libc::SYS_munmap
            | libc::SYS_brk
            | libc::SYS_set_tid_address => true,
            number => is_legacy_loader_syscall(number),
        }
    }
}

/// Address at which a program begins: in its dynamic linker, if it has one.
pub(super) fn entry_point(pid: Pid) -> Option<u64> {
    let auxv = Auxv::read(pid)?;
    match auxv.get(libc::AT_BASE).unwrap_or(0) {
        0 => auxv.get(libc::AT_ENTRY),
        base => {
            let entry = *read_words(pid, &[base.checked_add(E_ENTRY)?]).first()?;
            Some(base.wrapping_add(entry?))
        }
    }
}

/// Offset of `e_entry` in the header of a 64-bit ELF file.
const E_ENTRY: u64 = 24;

fn is_linker_only(name: &str) -> bool {
    // These are the names of glibc's linker: `ld-2.31.so` and similar until glibc 2.33.
    ["ld-linux", "ld-2."].iter().any(|prefix| name.starts_with(prefix))
}

pub(super) fn maps_code(number: u64, arguments: &[u64; 6]) -> bool {
    let executable = arguments[2] & PROT_EXEC != 0;
    match number.cast_signed() {
        libc::SYS_mmap => executable && arguments[3] & MAP_ANONYMOUS == 0,
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => executable,
        _ => false,
    }
}

#[derive(Debug, Error)]
pub(crate) enum LaunchError {
    #[error("no command to run; give one after `--`: `heapbpf -- COMMAND ARGUMENTS`")]
    Empty,
    #[error("cannot run `{}`: {}", Shown::of(.0), .1)]
    NotFound(String, &'static str),
    #[error("cannot run `{}`: {}; see `ls -l` and `file` of it", Shown::of(.0), .1)]
    NotExecutable(String, io::Error),
    #[error(
        "cannot hold `{}` until its probes are attached: {}; containers, kernel.yama.ptrace_scope = 3 and tracers such as strace \
         forbid ptrace: start the program yourself and give its PID with `--pid`",
        Shown::of(.0),
        .1
    )]
    Trace(String, io::Error),
    #[error("cannot start a process for `{}`: {}", Shown::of(.0), .1)]
    Fork(String, io::Error),
    #[error("{0}")]
    Keeper(String),
    #[error(
        "process `{0}` does not stop, so it cannot be detached yet; it will be detached when it stops, or when heapbpf exits"
    )]
    Unstoppable(Pid),
    #[error(
        "heapbpf was suspended (by SIGSTOP) while process `{0}` waited for it, which was resumed therefore: calls before its probes were attached may be missing"
    )]
    Suspended(Pid),
}

impl LaunchError {
    /// Explains an exec error. `execvp` returns the same for a missing program and a missing interpreter.
    pub(crate) fn not_run(program: &Path, name: String, error: io::Error) -> Self {
        if error.kind() != io::ErrorKind::NotFound {
            return Self::NotExecutable(name, error);
        }
        let exists = candidates(program.as_os_str()).any(|path| path.is_file());
        let reason = match (exists, name.contains('/')) {
            (true, _) => "its interpreter or dynamic linker does not exist; `file` shows its name",
            (false, true) => "no such file; check its directory with `ls`",
            (false, false) => "not found in PATH; check with `command -v`",
        };
        Self::NotFound(name, reason)
    }

    /// Exit code: 127 if the program is missing, 126 if it cannot be executed; `None` if the command is not the cause.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        match self {
            Self::NotFound(..) => Some(127),
            Self::NotExecutable(..) => Some(126),
            _ => None,
        }
    }
}

/// The paths at which `execvp` looks for a program: one for a name with a slash, and else one in each folder of PATH.
pub(crate) fn candidates(program: &OsStr) -> impl Iterator<Item = PathBuf> {
    let folders = match program.as_bytes() {
        [] => Vec::new(),
        name if name.contains(&b'/') => vec![PathBuf::new()],
        _ => std::env::var_os("PATH").map(|folders| std::env::split_paths(&folders).collect()).unwrap_or_default(),
    };
    folders.into_iter().map(move |folder| folder.join(program))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartUp {
    pub end: StartUpEnd,
    pub syscalls: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StartUpEnd {
    /// Code other than the dynamic linker's runs: the start-up code is mapped.
    Loaded,
    /// There is no dynamic linker, or an unsupported one (32-bit programs): none of the program's code has run.
    NoLoader,
    /// The program made too many system calls: code that is mapped later is not awaited.
    TooManySyscalls,
    /// The program made no system call for too long: code that is mapped later is not awaited.
    Quiet,
    Ended,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MMAP: u64 = libc::SYS_mmap.unsigned_abs();
    const READ: u64 = libc::SYS_read.unsigned_abs();
    const OPENAT: u64 = libc::SYS_openat.unsigned_abs();
    const WRITE: u64 = libc::SYS_write.unsigned_abs();

    fn loader(is_libc: bool) -> Loader {
        Loader { code: 0x1000..0x2000, is_libc, file: None, opens: false }
    }

    #[test]
    fn system_calls_in_the_linkers_code_are_its_own() {
        for (instruction, number, made) in
            [(0x1002, WRITE, true), (0x2000, MMAP, true), (0x1000, MMAP, false), (0x5000, MMAP, false)]
        {
            assert_eq!(loader(false).makes(instruction, number, &[0; 6], || true), made, "{instruction:#x} {number}");
        }
    }

    #[test]
    fn a_linker_that_is_the_libc_reads_only_what_it_opened() {
        let mut musl = loader(true);
        let mut makes = |number, arguments, is_done| musl.makes(0x1800, number, &arguments, || is_done);
        assert!(!makes(WRITE, [1, 0, 0, 0, 0, 0], false));
        assert!(!makes(READ, [3, 0, 0, 0, 0, 0], false));
        assert!(makes(OPENAT, [0; 6], false));
        musl.returned(3);
        let mut makes = |number, arguments, is_done| musl.makes(0x1800, number, &arguments, || is_done);
        assert!(makes(READ, [3, 0, 0, 0, 0, 0], false));
        assert!(!makes(READ, [0; 6], false), "standard input");
        assert!(!makes(OPENAT, [0; 6], true), "the program's");
    }

    #[test]
    fn code_is_mapped_from_files_or_by_mprotect() {
        let file = [0, 4096, PROT_EXEC | 1, 2, 3, 0];
        let memory = [0, 4096, PROT_EXEC | 1, 2 | MAP_ANONYMOUS, u64::MAX, 0];
        let data = [0, 4096, 1, 2, 3, 0];
        let mprotect = libc::SYS_mprotect.unsigned_abs();
        for (number, arguments, maps) in [
            (MMAP, file, true),
            (MMAP, memory, false),
            (MMAP, data, false),
            (mprotect, file, true),
            (mprotect, data, false),
            (READ, file, false),
        ] {
            assert_eq!(maps_code(number, &arguments), maps, "{number} {arguments:?}");
        }
    }

    #[test]
    fn only_glibcs_linkers_are_separate_from_libc() {
        for (name, expected) in [
            ("ld-linux-x86-64.so.2", true),
            ("ld-2.31.so", true),
            ("ld-musl-x86_64.so.1", false),
            ("libc.so", false),
            ("redis-server", false),
        ] {
            assert_eq!(is_linker_only(name), expected, "{name}");
        }
    }
}
