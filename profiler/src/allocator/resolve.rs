//! Finds the functions that a target's calls really reach. Pure: what modules define is passed in.
//!
//! Which definition of a name a call reaches depends on who calls. By default it is the first in the dynamic linker's
//! order, and the module whose `malloc` that is serves the process. But a plug-in that is linked with `-Bsymbolic` or
//! opened with `RTLD_DEEPBIND`, and what `dlmopen` loads, reaches another; and a program may have an allocator under a
//! prefix beside the one that has the plain names. A hook that nothing reaches costs the target nothing, so all of them
//! are hooked, and told apart by [`ResolvedHook::reached_by_default`].

use rustc_hash::FxHashMap;
use thiserror::Error;

use super::detect::{self, Family, Identity};
use super::hook_set::HookSet;
use super::libc::DEFINING_FUNCTION;
use super::selection::{HeapSelection, MMAP};
use super::spec::HookSpec;
use super::{cxx, jemalloc, libc, mimalloc, mmap, rust, tcmalloc};
use crate::address::FileOffset;
use crate::ids::ModuleId;
use crate::object::ObjectError;
use crate::object::symbols::{DefinedFunction, SymbolSource};
use crate::process::definitions::Candidate;

/// A function to hook, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedHook {
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
    /// Calls of its name reach it unless something special is done; or a user named it. A heap of which no hook is so is
    /// in use only if it has events.
    pub reached_by_default: bool,
    /// Without it the profile is not whole.
    pub required: bool,
}

/// Why there is nothing to hook.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NoAllocator {
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
        "no module of `{0}` defines `malloc`; supported are glibc, musl, jemalloc, tcmalloc, mimalloc and any library that exports malloc (name others with `--hook`)"
    )]
    None(String),
    /// The program's file, and so its allocator, cannot be inspected.
    #[error("`{0}` cannot be inspected: {1}")]
    Unreadable(String, ObjectError),
    /// There are heaps, but they are not wanted. One that is may still be loaded.
    #[error(
        "`{program}` has none of the heaps that are selected ({selected}), only `{}`; name one of these with `--heap`",
        .heaps.join("`, `")
    )]
    NotSelected {
        /// The program.
        program: String,
        /// The heaps that were to be watched, in words.
        selected: String,
        /// The heaps that it has.
        heaps: Vec<String>,
    },
}

/// Symbols to look up in modules: those of all tables, of what tells allocators apart, and of the hooks that users name.
pub(crate) fn symbols(hooks: &HookSet) -> Vec<&'static str> {
    let tables =
        [libc::FUNCTIONS, libc::SECOND_NAMES, cxx::FUNCTIONS, jemalloc::FUNCTIONS, rust::FUNCTIONS, mmap::FUNCTIONS];
    let prefixed = PREFIXED.iter().flat_map(|family| family.tables.iter().copied());
    let functions = tables.into_iter().chain(prefixed).flatten().map(|spec| spec.function);
    let custom = hooks.functions().iter().map(|function| function.spec.function);
    let mut names: Vec<&'static str> = functions.chain(detect::symbols()).chain(custom).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The hooks for a target with these modules: module by module in the linker's order, in each those first that free.
pub(crate) fn resolve(
    candidates: &[Candidate],
    hooks: &HookSet,
    selection: &HeapSelection,
) -> Result<Vec<ResolvedHook>, NoAllocator> {
    let mut ordered: Vec<&Candidate> =
        candidates.iter().filter(|candidate| !detect::is_dynamic_linker(candidate)).collect();
    ordered.sort_by_cached_key(|candidate| search_order(candidate));
    let winner = ordered.iter().find(|candidate| defines_malloc(candidate)).map(|candidate| candidate.module);
    // A program links an allocator's operators in only because it calls them.
    let uses_operator_new = candidates.iter().any(|candidate| {
        candidate.imports_operator_new || (candidate.is_executable && candidate.exported("_Znwm").is_some())
    });
    let mut resolution =
        Resolution { uses_operator_new, hooks: Vec::new(), selection, unselected: Vec::new(), found_allocator: false };
    for candidate in &ordered {
        let mut found = Found::new(candidate);
        resolution.custom(&mut found, hooks);
        let is_winner = winner == Some(candidate.module);
        resolution.plain(&mut found, is_winner);
        resolution.prefixed(&mut found, is_winner);
        resolution.mappings(&mut found);
        resolution.take(found);
    }
    if !resolution.found_allocator {
        // Whatever stands behind a Rust program's allocator has no name that is known.
        for candidate in ordered.iter().filter(|candidate| candidate.is_executable) {
            let mut found = Found::new(candidate);
            resolution.rust(&mut found);
            resolution.take(found);
        }
    }
    if resolution.hooks.is_empty() {
        return Err(none(candidates, resolution.unselected, selection));
    }
    if selection.wants(MMAP) {
        mmap::follow_all(&mut resolution.hooks);
    }
    Ok(resolution.hooks)
}

/// The earlier, the smaller. Where the linker's list is not known: the program, libraries, C libraries behind those that
/// replace their functions. What the linker does not know of comes last.
fn search_order(candidate: &Candidate) -> impl Ord + use<> {
    let guess = match (candidate.is_executable, defines_malloc(candidate)) {
        (true, _) => 0,
        (false, true) if Identity::of(candidate).is_c_library() => 2,
        (false, _) => 1,
    };
    (candidate.link.is_none() && !candidate.is_executable, candidate.link, guess)
}

fn defines_malloc(candidate: &Candidate) -> bool {
    candidate.exported(DEFINING_FUNCTION).is_some()
}

/// Allocators under names of their own, which may stand in any module beside another malloc.
struct Prefixed {
    family: Family,
    tables: &'static [&'static [HookSpec]],
    required: fn(&str) -> bool,
}

const PREFIXED: &[Prefixed] = &[
    Prefixed {
        family: Family::Jemalloc,
        tables: jemalloc::PREFIXED,
        required: |function| {
            let plain = jemalloc::PREFIXES.iter().find_map(|prefix| function.strip_prefix(prefix));
            plain.is_some_and(|plain| jemalloc::REQUIRED_FUNCTIONS.contains(&plain))
        },
    },
    Prefixed {
        family: Family::Tcmalloc,
        tables: &[tcmalloc::FUNCTIONS, tcmalloc::GOOGLE_FUNCTIONS],
        required: |function| tcmalloc::REQUIRED_FUNCTIONS.contains(&function),
    },
    Prefixed {
        family: Family::Mimalloc,
        tables: &[mimalloc::FUNCTIONS],
        required: |function| mimalloc::REQUIRED_FUNCTIONS.contains(&function),
    },
];

/// What is to be said of a hook beside its function.
struct Role<'a> {
    heap: &'a str,
    reached_by_default: bool,
    required: bool,
    /// A second name of what is hooked already is not worth telling.
    silent: bool,
}

/// The hooks of one module.
struct Found<'a> {
    candidate: &'a Candidate,
    identity: Identity,
    hooks: Vec<ResolvedHook>,
    by_offset: FxHashMap<FileOffset, usize>,
}

impl<'a> Found<'a> {
    fn new(candidate: &'a Candidate) -> Self {
        let identity = Identity::of(candidate);
        Self { candidate, identity, hooks: Vec::new(), by_offset: FxHashMap::default() }
    }

    /// Two names of one function (`memalign` and `aligned_alloc` in some libcs) get one probe, or calls count twice.
    fn add(&mut self, spec: &HookSpec, function: &DefinedFunction, role: &Role<'_>) {
        if let Some(&at) = self.by_offset.get(&function.offset) {
            let same = &mut self.hooks[at];
            // What a user put into a heap stays there.
            if same.heap == role.heap {
                same.spec.may_throw |= spec.may_throw;
                same.required |= role.required;
                same.reached_by_default |= role.reached_by_default;
                if !role.silent && same.spec.function != spec.function && !same.aliases.contains(&spec.function) {
                    same.aliases.push(spec.function);
                }
            }
            return;
        }
        self.by_offset.insert(function.offset, self.hooks.len());
        self.hooks.push(ResolvedHook {
            spec: *spec,
            module: self.candidate.module,
            path: self.candidate.path.to_string(),
            offset: function.offset,
            size_bytes: function.size_bytes,
            heap: role.heap.to_owned(),
            aliases: Vec::new(),
            reached_by_default: role.reached_by_default,
            required: role.required,
        });
    }
}

struct Resolution<'a> {
    /// Something in the process calls C++'s operator new.
    uses_operator_new: bool,
    hooks: Vec<ResolvedHook>,
    selection: &'a HeapSelection,
    /// Heaps that are there and not wanted.
    unselected: Vec<String>,
    /// One of the tables had something to say.
    found_allocator: bool,
}

impl Resolution<'_> {
    fn take(&mut self, mut found: Found<'_>) {
        found.hooks.sort_by_key(|hook| hook.spec.shape.allocates());
        self.hooks.append(&mut found.hooks);
    }

    fn wants(&mut self, heap: &str) -> bool {
        let wanted = self.selection.wants(heap);
        if !wanted && !self.unselected.iter().any(|known| known == heap) {
            self.unselected.push(heap.to_owned());
        }
        wanted
    }

    /// Functions that users name come first: what they say of a function goes before what is known of it.
    fn custom(&mut self, found: &mut Found<'_>, hooks: &HookSet) {
        let candidate = found.candidate;
        for custom in hooks.functions().iter().filter(|custom| custom.may_be_in(&candidate.path)) {
            // Local functions elsewhere than in the modules that are named have the name by chance.
            let named = !custom.modules.iter().all(|modules| modules.is_any());
            let functions = candidate.functions(custom.spec.function);
            for function in functions.iter().filter(|function| function.global || named || candidate.is_executable) {
                if self.wants(&custom.heap) {
                    let role = Role { heap: &custom.heap, reached_by_default: true, required: true, silent: false };
                    found.add(&custom.spec, function, &role);
                }
            }
        }
    }

    /// A module's malloc family, if it has one, with what belongs to it under names without a prefix.
    fn plain(&mut self, found: &mut Found<'_>, is_winner: bool) {
        let (candidate, identity) = (found.candidate, found.identity.clone());
        if !defines_malloc(candidate) {
            return;
        }
        self.found_allocator = true;
        if !self.wants(&identity.heap) {
            return;
        }
        let operators = if identity.has_own_operators() { cxx::FUNCTIONS } else { &[] };
        let tables = [libc::FUNCTIONS, operators, jemalloc::FUNCTIONS, libc::SECOND_NAMES];
        for (table, spec) in tables.iter().flat_map(|table| table.iter().map(move |spec| (*table, spec))) {
            let Some(function) = candidate.exported(spec.function) else { continue };
            let second_name = std::ptr::eq(table, libc::SECOND_NAMES);
            // Inside a static program musl has these for itself.
            if second_name && function.source == SymbolSource::Static {
                continue;
            }
            // Behind another allocator, these give that one's blocks. What else libc defines it implements by itself.
            if !is_winner && identity.calls_back(spec.function) {
                continue;
            }
            let role = Role {
                heap: &identity.heap,
                reached_by_default: is_winner,
                required: is_winner
                    && (libc::REQUIRED_FUNCTIONS.contains(&spec.function)
                        || (self.uses_operator_new && cxx::REQUIRED_FUNCTIONS.contains(&spec.function))),
                silent: second_name,
            };
            found.add(&told(&identity, spec), function, &role);
        }
    }

    /// Allocators under names of their own. These names are nobody's by chance, so local functions count.
    fn prefixed(&mut self, found: &mut Found<'_>, is_winner: bool) {
        let candidate = found.candidate;
        for family in PREFIXED {
            let identity = Identity::of_family(candidate, family.family);
            // Its malloc is another name of the same allocator.
            let reached_by_default = is_winner && found.identity.family == family.family;
            for spec in family.tables.iter().copied().flatten() {
                for function in candidate.functions(spec.function) {
                    self.found_allocator = true;
                    if !self.wants(&identity.heap) {
                        continue;
                    }
                    let required = candidate.is_executable && (family.required)(spec.function);
                    let role = Role { heap: &identity.heap, reached_by_default, required, silent: false };
                    found.add(&told(&identity, spec), function, &role);
                }
            }
        }
    }

    /// What maps memory stands in C libraries; elsewhere these names are an interposer's, which calls them.
    fn mappings(&mut self, found: &mut Found<'_>) {
        let candidate = found.candidate;
        if !found.identity.is_c_library() || !self.selection.wants(MMAP) {
            return;
        }
        for spec in mmap::FUNCTIONS {
            if let Some(function) = candidate.exported(spec.function) {
                let required = spec.function == mmap::DEFINING_FUNCTION;
                found.add(spec, function, &Role { heap: MMAP, reached_by_default: true, required, silent: false });
            }
        }
    }

    fn rust(&mut self, found: &mut Found<'_>) {
        let candidate = found.candidate;
        if candidate.functions(rust::DEFINING_FUNCTION).is_empty() || !self.wants(RUST_HEAP) {
            return;
        }
        for spec in rust::FUNCTIONS {
            for function in candidate.functions(spec.function) {
                let role = Role { heap: RUST_HEAP, reached_by_default: true, required: true, silent: false };
                found.add(spec, function, &role);
            }
        }
    }
}

const RUST_HEAP: &str = "rust";

/// The function as it is in this allocator.
fn told(identity: &Identity, spec: &HookSpec) -> HookSpec {
    if identity.is_leaf(spec.function) { spec.leaf() } else { *spec }
}

fn none(candidates: &[Candidate], unselected: Vec<String>, selection: &HeapSelection) -> NoAllocator {
    let executable = candidates.iter().find(|candidate| candidate.is_executable);
    let name = executable.map_or_else(|| "the target".to_owned(), |candidate| candidate.path.to_string());
    match executable {
        _ if !unselected.is_empty() => {
            NoAllocator::NotSelected { program: name, selected: selection.to_string(), heaps: unselected }
        }
        Some(candidate) if candidate.is_go => NoAllocator::Go(name),
        Some(candidate) if candidate.is_static => NoAllocator::Static(name),
        _ => NoAllocator::None(name),
    }
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
