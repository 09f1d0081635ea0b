//! The dynamic linker of a program that starts, and what tells its system calls from the program's.

use std::ops::Range;

use crate::ids::Pid;
use crate::linux::proc::auxv::Auxv;
use crate::linux::proc::maps::{MappingName, executable_mappings};

/// `AUDIT_ARCH_X86_64`: the only system calls that are understood.
pub(super) const ARCH: u32 = 0xc000_003e;

/// `MAP_ANONYMOUS` and `PROT_EXEC`, as the kernel takes them.
const MAP_ANONYMOUS: u64 = libc::MAP_ANONYMOUS.unsigned_abs() as u64;
const PROT_EXEC: u64 = libc::PROT_EXEC.unsigned_abs() as u64;

/// A dynamic linker.
#[derive(Debug)]
pub(super) struct Loader {
    /// Where its code lies.
    code: Range<u64>,
    /// It may be the C library, too (musl), so that the place of a system call tells nothing.
    is_libc: bool,
    /// The file it has opened last.
    file: Option<u64>,
    /// The system call it is in opens a file.
    opens: bool,
}

impl Loader {
    /// That of a process that stops at its exec; `None` for static programs, and where `/proc` does not tell.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        let auxv = Auxv::read(pid)?;
        // Where the dynamic linker lies: 0 if there is none.
        let base = auxv.get(libc::AT_BASE).unwrap_or(0);
        let mappings = executable_mappings(pid).ok()?;
        // A linker that is run as a program itself, as in `ld.so --preload X PROGRAM`, is at the entry.
        let from = if base == 0 { auxv.get(libc::AT_ENTRY)? } else { base };
        let mapping = mappings.iter().find(|mapping| mapping.end.0 > from)?;
        let MappingName::File { path, .. } = &mapping.name else {
            return None;
        };
        let is_libc = !is_linker_only(&path.file_name()?.to_string_lossy());
        let code = mapping.start.0..mapping.end.0;
        (base != 0 || !is_libc).then_some(Self { code, is_libc, file: None, opens: false })
    }

    /// Whether it makes this system call; otherwise the program does. `instruction` is the address behind the one that
    /// makes it.
    pub(super) fn makes(&mut self, instruction: u64, number: u64, arguments: &[u64; 6]) -> bool {
        self.opens = matches!(number.cast_signed(), libc::SYS_open | libc::SYS_openat);
        // The address behind the last instruction may lie behind the code.
        let inside = self.code.contains(&instruction.wrapping_sub(1));
        inside && (!self.is_libc || self.loads(number, arguments))
    }

    /// Notes what its system call returned.
    pub(super) fn returned(&mut self, result: i64) {
        if std::mem::take(&mut self.opens) {
            self.file = u64::try_from(result).ok();
        }
    }

    /// Whether loading takes this system call. Where it also may be a call of the program's, no harm is done: it is held a
    /// little longer. But it must not wait for input while it is held, so it may read only what it has opened.
    fn loads(&self, number: u64, arguments: &[u64; 6]) -> bool {
        match number.cast_signed() {
            libc::SYS_read | libc::SYS_readv | libc::SYS_pread64 => self.file == Some(arguments[0]),
            libc::SYS_open
            | libc::SYS_openat
            | libc::SYS_close
            | libc::SYS_access
            | libc::SYS_stat
            | libc::SYS_fstat
            | libc::SYS_lstat
            | libc::SYS_newfstatat
            | libc::SYS_statx
            | libc::SYS_fcntl
            | libc::SYS_readlink
            | libc::SYS_mmap
            | libc::SYS_mprotect
            | libc::SYS_munmap
            | libc::SYS_brk
            | libc::SYS_arch_prctl
            | libc::SYS_set_tid_address => true,
            _ => false,
        }
    }
}

/// Whether a file of this name is a dynamic linker that is not the C library, too: glibc's.
fn is_linker_only(name: &str) -> bool {
    // `ld-2.31.so` and the like until glibc 2.33.
    ["ld-linux", "ld-2."].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a system call may make code of a file executable.
pub(super) fn maps_code(number: u64, arguments: &[u64; 6]) -> bool {
    let executable = arguments[2] & PROT_EXEC != 0;
    match number.cast_signed() {
        libc::SYS_mmap => executable && arguments[3] & MAP_ANONYMOUS == 0,
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => executable,
        _ => false,
    }
}

/// Whether a system call is made by the kernel's own code for probes (`uretprobe` and `uprobe`), which may already be
/// attached and tell nothing of who runs.
pub(super) fn is_of_probes(number: u64) -> bool {
    matches!(number, 335 | 336)
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
    fn a_linker_makes_what_its_code_makes() {
        for (instruction, number, made) in
            [(0x1002, WRITE, true), (0x2000, MMAP, true), (0x1000, MMAP, false), (0x5000, MMAP, false)]
        {
            assert_eq!(loader(false).makes(instruction, number, &[0; 6]), made, "{instruction:#x} {number}");
        }
    }

    #[test]
    fn a_linker_that_is_the_libc_reads_only_what_it_opened() {
        let mut musl = loader(true);
        assert!(!musl.makes(0x1800, WRITE, &[1, 0, 0, 0, 0, 0]));
        assert!(!musl.makes(0x1800, READ, &[3, 0, 0, 0, 0, 0]));
        assert!(musl.makes(0x1800, OPENAT, &[0; 6]));
        musl.returned(3);
        assert!(musl.makes(0x1800, READ, &[3, 0, 0, 0, 0, 0]));
        assert!(!musl.makes(0x1800, READ, &[0; 6]), "standard input");
    }

    #[test]
    fn code_is_mapped_from_files_and_unprotected() {
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
    fn only_glibcs_linkers_are_nothing_else() {
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
