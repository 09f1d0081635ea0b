//! Where a C library has the control blocks of threads.

use super::arch;
use crate::object::module::Module;
use crate::object::symbols::definitions;

/// Returns the control block of the calling thread.
const SELF: &str = "pthread_self";
const SELF_BYTES_MAX: u64 = 64;

/// Whether a module can be the C library, by its name: glibc's `libc.so.6`, `libc-2.31.so`; musl's `ld-musl-aarch64.so.1`.
pub(crate) fn may_define_threads(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ["libc.so", "libc-", "ld-musl-", "libc.musl-"].iter().any(|start| name.starts_with(start))
}

/// Distance of a thread's pointer from its control block, in processes with this C library. `None` if it is unknown.
pub(crate) fn control_block(module: &Module) -> Option<u64> {
    arch::control_block(|| {
        let (image, elf) = (module.image().ok()?, module.elf().ok()?);
        let function = definitions(image, elf, &[SELF]).into_iter().next()?;
        let bytes = function.size_bytes.min(SELF_BYTES_MAX);
        image.read(module.file_offset(function.address)?, bytes, SELF_BYTES_MAX).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::module::ModuleStore;
    use std::path::Path;

    #[test]
    fn c_libraries_have_their_names() {
        for path in ["/usr/lib/libc.so.6", "/lib/libc-2.31.so", "/lib/ld-musl-aarch64.so.1", "libc.musl-x86_64.so.1"] {
            assert!(may_define_threads(path), "{path}");
        }
        for path in ["/usr/lib/libcrypt.so.1", "/usr/bin/python3.11", ""] {
            assert!(!may_define_threads(path), "{path}");
        }
    }

    #[test]
    fn the_block_is_at_the_thread_pointer_or_before_it() {
        let own = std::fs::read_to_string("/proc/self/maps").expect("it is readable");
        let paths = own.lines().filter_map(|line| line.split_whitespace().nth(5));
        let path = paths.into_iter().find(|path| may_define_threads(path)).expect("tests use a C library");
        let mut modules = ModuleStore::default();
        let id = modules.intern_path(Path::new(path)).expect("it opens");
        let distance = control_block(modules.get(id)).expect("it has `pthread_self`");
        assert_eq!(distance == 0, cfg!(target_arch = "x86_64"), "{distance}");
    }
}
