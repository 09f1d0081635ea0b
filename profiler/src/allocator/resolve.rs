//! Finds the functions that a target's calls really reach. Pure: what modules define is passed in.

use thiserror::Error;

use super::libc::{DEFINING_FUNCTION, FUNCTIONS};
use super::{detect, spec::HookSpec};
use crate::address::FileOffset;
use crate::ids::ModuleId;
use crate::object::symbols::DefinedFunction;

/// A module and those of [`detect::symbols`] that it defines.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The module.
    pub module: ModuleId,
    /// Its path, as the target names it.
    pub path: String,
    /// It is the program itself, not a library.
    pub is_executable: bool,
    /// It has no dynamic linking: nothing outside it is reached.
    pub is_static: bool,
    /// It is a Go program.
    pub is_go: bool,
    /// Functions of those names.
    pub functions: Vec<DefinedFunction>,
}

impl Candidate {
    fn function(&self, name: &str) -> Option<&DefinedFunction> {
        self.functions.iter().find(|function| function.name == name)
    }

    fn heap(&self) -> String {
        detect::heap_name(&self.path, self.is_executable, |symbol| self.function(symbol).is_some())
    }
}

/// A function to hook, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedHook {
    /// What it is.
    pub spec: HookSpec,
    /// The module that defines it.
    pub module: ModuleId,
    /// That module's path, as the target names it.
    pub path: String,
    /// Its code in the module's file.
    pub offset: FileOffset,
    /// Bytes of code; 0 when its symbol does not say.
    pub size_bytes: u64,
    /// Name of the heap it serves.
    pub heap: String,
    /// Other names of the same code.
    pub aliases: Vec<&'static str>,
}

/// Why there is nothing to hook.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoAllocator {
    /// The Go runtime allocates by itself.
    #[error(
        "`{0}` is a Go program, which allocates from the Go runtime's own heap; supported are programs that call the malloc of glibc, musl, jemalloc, tcmalloc or mimalloc (Go's own profiles: `go tool pprof`)"
    )]
    Go(String),
    /// Nothing to find functions by.
    #[error(
        "`{0}` is statically linked and names no `malloc`: it is stripped or has its own allocator; heapbpf needs the symbol (keep .symtab: link without `-s`)"
    )]
    Static(String),
    /// Dynamic, but nothing defines malloc.
    #[error(
        "no module of `{0}` defines `malloc`; supported are glibc, musl, jemalloc, tcmalloc, mimalloc and any library that exports malloc"
    )]
    None(String),
}

/// The hooks for a target with these modules, in mapping order, the executable among them.
///
/// The dynamic linker binds to the first definition in its search order: the executable, then preloaded and needed
/// libraries, libc behind those that replace its functions. So the one module whose `malloc` comes first serves the
/// process, and functions that it lacks are libc's wrappers around those it has.
///
/// # Errors
///
/// See [`NoAllocator`].
pub fn resolve(candidates: &[Candidate]) -> Result<Vec<ResolvedHook>, NoAllocator> {
    let defining = candidates.iter().filter(|candidate| candidate.function(DEFINING_FUNCTION).is_some());
    let Some(chosen) = defining.min_by_key(|candidate| rank(candidate)) else {
        return Err(none(candidates));
    };
    let heap = chosen.heap();
    let mut hooks: Vec<ResolvedHook> = Vec::new();
    for spec in FUNCTIONS {
        let Some(&DefinedFunction { offset, size_bytes, .. }) = chosen.function(spec.function) else {
            continue;
        };
        // Two names of one function (`memalign` and `aligned_alloc` in some libcs) get one probe, or calls count twice.
        if let Some(same) = hooks.iter_mut().find(|hook| hook.offset == offset) {
            same.aliases.push(spec.function);
            continue;
        }
        let spec = if detect::is_leaf(&heap, spec.function) { spec.leaf() } else { *spec };
        hooks.push(ResolvedHook {
            spec,
            module: chosen.module,
            path: chosen.path.clone(),
            offset,
            size_bytes,
            heap: heap.clone(),
            aliases: Vec::new(),
        });
    }
    Ok(hooks)
}

/// The lower, the earlier in the linker's search.
fn rank(candidate: &Candidate) -> u8 {
    match (candidate.is_executable, candidate.heap().as_str()) {
        (true, _) => 0,
        (false, "libc" | "musl") => 2,
        (false, _) => 1,
    }
}

fn none(candidates: &[Candidate]) -> NoAllocator {
    let executable = candidates.iter().find(|candidate| candidate.is_executable);
    let name = executable.map_or_else(|| "the target".to_owned(), |candidate| candidate.path.clone());
    match executable {
        Some(candidate) if candidate.is_go => NoAllocator::Go(name),
        Some(candidate) if candidate.is_static => NoAllocator::Static(name),
        _ => NoAllocator::None(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::symbols::SymbolSource;

    fn candidate(path: &str, is_executable: bool, functions: &[(&str, u64)]) -> Candidate {
        Candidate {
            module: ModuleId(0),
            path: path.to_owned(),
            is_executable,
            is_static: false,
            is_go: false,
            functions: functions.iter().map(|&(name, offset)| function(name, offset)).collect(),
        }
    }

    fn function(name: &str, offset: u64) -> DefinedFunction {
        DefinedFunction {
            name: name.to_owned(),
            offset: FileOffset(offset),
            size_bytes: 1,
            source: SymbolSource::Dynamic,
            indirect: false,
            global: true,
        }
    }

    /// Function, offset and heap of each hook.
    fn check(candidates: &[Candidate], expected: &[(&str, u64, &str)]) {
        let hooks = resolve(candidates).expect("an allocator is there");
        let got: Vec<_> = hooks.iter().map(|hook| (hook.spec.function, hook.offset.0, hook.heap.as_str())).collect();
        assert_eq!(got, expected);
    }

    const LIBC: &[(&str, u64)] = &[("malloc", 0x10), ("free", 0x20), ("reallocarray", 0x30), ("__libc_malloc", 0x10)];

    #[test]
    fn libc_serves_where_nothing_replaces_it() {
        let program = candidate("/usr/bin/app", true, &[]);
        check(
            &[program, candidate("/lib/libc.so.6", false, LIBC)],
            &[("free", 0x20, "libc"), ("malloc", 0x10, "libc"), ("reallocarray", 0x30, "libc")],
        );
    }

    #[test]
    fn an_allocator_library_goes_before_libc_and_alone() {
        let jemalloc = candidate("/lib/libjemalloc.so.2", false, &[("malloc", 1), ("free", 2), ("mallocx", 3)]);
        check(
            &[candidate("/lib/libc.so.6", false, LIBC), jemalloc],
            &[("free", 2, "jemalloc"), ("malloc", 1, "jemalloc")],
        );
    }

    #[test]
    fn the_executable_goes_before_all() {
        let program = candidate("/usr/bin/rustc", true, &[("malloc", 7), ("mallocx", 8)]);
        let tcmalloc = candidate("/lib/libtcmalloc.so.4", false, &[("malloc", 1)]);
        check(&[tcmalloc, program, candidate("/lib/libc.so.6", false, LIBC)], &[("malloc", 7, "jemalloc")]);
    }

    #[test]
    fn one_function_under_two_names_is_hooked_once() {
        let libc = candidate("/lib/libc.so.6", false, &[("malloc", 1), ("aligned_alloc", 2), ("memalign", 2)]);
        check(std::slice::from_ref(&libc), &[("malloc", 1, "libc"), ("aligned_alloc", 2, "libc")]);
        assert_eq!(resolve(&[libc]).expect("an allocator is there")[1].aliases, ["memalign"]);
    }

    #[test]
    fn programs_without_a_known_allocator_are_told_why() {
        let plain = candidate("/bin/x", true, &[]);
        let go = Candidate { is_go: true, is_static: true, ..plain.clone() };
        let linked_static = Candidate { is_static: true, ..plain.clone() };
        assert_eq!(resolve(&[go]), Err(NoAllocator::Go("/bin/x".into())));
        assert_eq!(resolve(&[linked_static]), Err(NoAllocator::Static("/bin/x".into())));
        assert_eq!(resolve(&[plain]), Err(NoAllocator::None("/bin/x".into())));
    }
}
