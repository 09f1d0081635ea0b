//! Finds the functions that a target's calls reach. Pure: the definitions of modules are an argument.
//!
//! Which definition of a name a call reaches depends on the caller. By default it is the first in the dynamic linker's order, and
//! the module with that `malloc` serves the process. But a plug-in that is linked with `-Bsymbolic` or opened with
//! `RTLD_DEEPBIND`, and modules loaded by `dlmopen`, reach another definition; and a program may have an allocator under a prefix
//! beside the one with the plain names. An unused hook costs the target nothing, so all definitions are hooked, and
//! [`ResolvedHook::reached_by_default`] distinguishes them.

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;
use heapbpf_base::shown::Shown;
use profiler_common::hook::CallShape;
use rustc_hash::FxHashMap;
use thiserror::Error;

use super::hook_set::HookSet;
use super::selection::{HeapSelection, MMAP};
use super::spec::{AllocatorSpec, DEFINING_FUNCTION, HookSpec, Table};
use super::{c_libraries, functions, jemalloc, mimalloc, tcmalloc};
use crate::object::ObjectError;
use crate::object::symbols::{DefinedFunction, SymbolSource};
use crate::process::definitions::Candidate;

/// All known allocators. The first that matches a module decides, so C libraries come last: allocators replace their functions.
pub(crate) const ALLOCATORS: &[&AllocatorSpec] =
    &[&jemalloc::ALLOCATOR, &tcmalloc::ALLOCATOR, &mimalloc::ALLOCATOR, &c_libraries::MUSL, &c_libraries::GLIBC];

fn supported() -> String {
    ALLOCATORS.iter().rev().map(|allocator| allocator.title).collect::<Vec<_>>().join(", ")
}

#[derive(Clone)]
struct Identity {
    /// Known allocator of the module; `None` for a program's own, or a library that wraps another allocator.
    allocator: Option<&'static AllocatorSpec>,
    /// Name of the allocator's heap, or the module's file name.
    heap: String,
    calls_known: bool,
}

impl Identity {
    fn of(candidate: &Candidate) -> Self {
        let file = file_name(&candidate.path);
        let by_name = ALLOCATORS
            .iter()
            .find(|allocator| !candidate.is_executable && (allocator.is_library)(&candidate.path, file));
        let by_symbol = || {
            ALLOCATORS.iter().find(|allocator| {
                let defines = |symbol: &&str| !candidate.functions(symbol).is_empty();
                allocator.fingerprints.iter().any(defines) && (allocator.may_be)(candidate)
            })
        };
        match by_name.or_else(by_symbol) {
            Some(allocator) => Self::known(candidate, allocator),
            None => Self { allocator: None, heap: file.to_owned(), calls_known: false },
        }
    }

    fn known(candidate: &Candidate, allocator: &'static AllocatorSpec) -> Self {
        let calls_known = (allocator.calls_known)(candidate, file_name(&candidate.path));
        Self { allocator: Some(allocator), heap: allocator.heap.to_owned(), calls_known }
    }

    fn is_leaf(&self, function: &str) -> bool {
        self.calls_known && self.allocator.is_some_and(|allocator| (allocator.is_leaf)(function))
    }

    fn calls_back(&self, function: &str) -> bool {
        self.allocator.is_some_and(|allocator| allocator.calls_back.contains(&function))
    }

    /// Whether the module is a C library. If not, operators new and delete in the module are taken to be the allocator's own.
    fn is_c_library(&self) -> bool {
        self.allocator.is_some_and(|allocator| allocator.is_c_library)
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedHook {
    pub spec: HookSpec,
    pub module: ModuleId,
    /// Path of the module in the target.
    pub path: String,
    /// Whether the module is a Go program.
    pub is_go: bool,
    /// Whether the user has defined the hook.
    pub is_custom: bool,
    pub offset: FileOffset,
    /// Size of the function; 0 if unknown.
    pub size_bytes: u64,
    pub heap: String,
    pub aliases: Vec<&'static str>,
    /// Whether code that the function reaches through pointers calls no hooked function.
    pub calls_known: bool,
    /// Return addresses of nested calls, by hooked functions that are not followed unless sampled; relative to the entry.
    pub nested_returns: Vec<i64>,
    /// Whether ordinary calls of the function's name reach it, or it is user-defined. A heap without such a hook is in use only
    /// if it has events.
    pub reached_by_default: bool,
    pub required: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NoAllocator {
    #[error(
        "`{program}` is a Go program, which allocates from the Go runtime's own heap; record that with `--heap go` or `--heap pages`, or programs that call the malloc of {supported}",
        program = Shown::of(.0), supported = supported()
    )]
    Go(String),
    #[error(
        "`{program}` is statically linked and has no symbol `malloc`: it is stripped or has its own allocator; heapbpf needs the symbol (keep .symtab: link without `-s`; or install its debug file, which must have its build id)",
        program = Shown::of(.0)
    )]
    Static(String),
    #[error(
        "no module of {program} defines `malloc`; supported are {supported} and any library that exports malloc (add others with `--hook`)",
        program = shown(.0.as_deref()),
        supported = supported()
    )]
    None(Option<String>),
    #[error("cannot inspect `{program}`: {1}", program = Shown::of(.0))]
    Unreadable(String, ObjectError),
    /// Only heaps that are not selected were found. A selected heap may still be loaded.
    #[error(
        "{} has none of the selected heaps ({selected}); available: `{}`; select one with `--heap`",
        shown(.program.as_deref()), .heaps.join("`, `")
    )]
    NotSelected { program: Option<String>, selected: String, heaps: Vec<String> },
}

/// Name of a function of LeakSanitizer, also as a part of AddressSanitizer: LeakSanitizer traces the threads of its process.
pub(crate) const LEAK_SANITIZER: &str = "__lsan_do_leak_check";

pub(crate) fn symbols(hooks: &HookSet) -> Vec<&'static str> {
    let shared = [functions::C, functions::C_ALIASES, functions::OPERATORS, functions::RUST, functions::MAPPINGS];
    let own =
        ALLOCATORS.iter().flat_map(|allocator| allocator.own_functions.iter().chain([&allocator.plain_functions]));
    let known = shared.iter().chain(own).flat_map(|table| table.iter()).map(|spec| spec.function);
    let detecting =
        ALLOCATORS.iter().flat_map(|allocator| allocator.fingerprints.iter().chain(allocator.other_symbols)).copied();
    let custom = hooks.functions().iter().map(|function| function.spec.function);
    let mut names: Vec<&'static str> = known.chain(detecting).chain(custom).chain([LEAK_SANITIZER]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Hooks for a target with these modules: by module in the linker's order, freeing functions first.
pub(crate) fn resolve(
    candidates: &[Candidate],
    hooks: &HookSet,
    selection: &HeapSelection,
) -> Result<Vec<ResolvedHook>, NoAllocator> {
    let mut ordered: Vec<&Candidate> =
        candidates.iter().filter(|candidate| !c_libraries::is_dynamic_linker(candidate)).collect();
    ordered.sort_by_cached_key(|candidate| search_order(candidate));
    let winner = ordered.iter().find(|candidate| defines_malloc(candidate)).map(|candidate| candidate.module);
    // A program contains an allocator's operators only if it calls them.
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
        resolution.hidden(&mut found);
        resolution.prefixed(&mut found, is_winner);
        resolution.mappings(&mut found);
        resolution.take(found);
    }
    if !resolution.found_allocator {
        // The allocator behind a Rust program's functions is unknown.
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
        follow_all(&mut resolution.hooks);
    }
    Ok(resolution.hooks)
}

/// Follows every allocating call of these hooks to its return, sampled or not. Required for all hooks of a process in which
/// `mmap` is recorded too: memory that an allocator maps for itself is counted as the blocks that it allocates there, and only a
/// followed call identifies nested calls. Memory that an allocator maps in a free, or on a thread of its own, is not nested in
/// such a call.
fn follow_all(hooks: &mut [ResolvedHook]) {
    for hook in hooks.iter_mut().filter(|hook| hook.spec.shape != CallShape::Free) {
        hook.spec.delegates = true;
    }
}

/// Position of a module in the linker's search order. If the linker's list is unknown: the program, libraries, then C libraries,
/// whose functions the others replace. Modules that are not in the list come last.
fn search_order(candidate: &Candidate) -> impl Ord + use<> {
    let guess = match (candidate.is_executable, defines_malloc(candidate)) {
        (true, _) => 0,
        (false, true) if Identity::of(candidate).is_c_library() => 2,
        (false, _) => 1,
    };
    (candidate.link.is_none() && !candidate.is_executable, candidate.link, guess)
}

/// Names of a hidden malloc family. A program that has only one of these functions has its name by chance.
const HIDDEN_FAMILY: [&str; 2] = [DEFINING_FUNCTION, "free"];

fn defines_malloc(candidate: &Candidate) -> bool {
    candidate.exported(DEFINING_FUNCTION).is_some()
}

struct Role<'a> {
    heap: &'a str,
    reached_by_default: bool,
    required: bool,
    /// Whether aliases of hooked functions are not reported.
    silent: bool,
}

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

    /// Adds a function. Two names of one function (`memalign` and `aligned_alloc` in some libcs) get one probe: otherwise, calls
    /// would count twice.
    fn add(&mut self, spec: HookSpec, function: &DefinedFunction, role: &Role<'_>) {
        if let Some(&at) = self.by_offset.get(&function.offset) {
            let same = &mut self.hooks[at];
            // A user-defined hook keeps its heap.
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
            spec,
            module: self.candidate.module,
            path: self.candidate.path.to_string(),
            is_go: self.candidate.is_go,
            is_custom: false,
            offset: function.offset,
            size_bytes: function.size_bytes,
            heap: role.heap.to_owned(),
            aliases: Vec::new(),
            calls_known: self.identity.calls_known && self.identity.is_c_library(),
            nested_returns: Vec::new(),
            reached_by_default: role.reached_by_default,
            required: role.required,
        });
    }
}

struct Resolution<'a> {
    uses_operator_new: bool,
    hooks: Vec<ResolvedHook>,
    selection: &'a HeapSelection,
    unselected: Vec<String>,
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

    /// Adds user-defined functions, which come first: they override known ones.
    fn custom(&mut self, found: &mut Found<'_>, hooks: &HookSet) {
        let candidate = found.candidate;
        for custom in hooks.functions().iter().filter(|custom| custom.may_be_in(&candidate.path)) {
            // In modules that are not named explicitly, a local function may have the name by chance.
            let named = !custom.modules.iter().all(|modules| modules.is_any());
            let functions = candidate.functions(custom.spec.function);
            for function in functions.iter().filter(|function| function.global || named || candidate.is_executable) {
                if self.wants(&custom.heap) {
                    let role = Role { heap: &custom.heap, reached_by_default: true, required: true, silent: false };
                    found.add(custom.spec, function, &role);
                }
            }
        }
        found.hooks.iter_mut().for_each(|hook| hook.is_custom = true);
    }

    /// Adds a module's malloc family, if it has one, and other functions without a prefix that belong to it.
    fn plain(&mut self, found: &mut Found<'_>, is_winner: bool) {
        let (candidate, identity) = (found.candidate, found.identity.clone());
        if !defines_malloc(candidate) {
            return;
        }
        self.found_allocator = true;
        if !self.wants(&identity.heap) {
            return;
        }
        let operators = if identity.is_c_library() { Table(&[]) } else { functions::OPERATORS };
        let plain = ALLOCATORS.iter().map(|allocator| allocator.plain_functions);
        let tables = [functions::C, operators].into_iter().chain(plain);
        let specs = tables.flat_map(|table| table.iter().map(|spec| (spec, false)));
        for (spec, is_alias) in specs.chain(functions::C_ALIASES.iter().map(|spec| (spec, true))) {
            let Some(function) = candidate.exported(spec.function) else { continue };
            // In a static program, aliases are internal functions of musl.
            if is_alias && function.source == SymbolSource::Static {
                continue;
            }
            // If another allocator precedes libc, these functions return its blocks. libc's other functions do not call it.
            if !is_winner && identity.calls_back(spec.function) {
                continue;
            }
            let role = Role {
                heap: &identity.heap,
                reached_by_default: is_winner,
                required: is_winner
                    && (functions::C_REQUIRED.contains(&spec.function)
                        || (self.uses_operator_new && functions::OPERATORS_REQUIRED.contains(&spec.function))),
                silent: is_alias,
            };
            found.add(refined(&identity, spec), function, &role);
        }
    }

    /// Adds the malloc family of a program that the linker has made local: of hidden visibility, or of a library that was linked
    /// with `--exclude-libs`. The program's own calls reach it, those of libraries do not.
    fn hidden(&mut self, found: &mut Found<'_>) {
        let (candidate, identity) = (found.candidate, found.identity.clone());
        let is_family = HIDDEN_FAMILY.iter().all(|name| candidate.hidden(name).is_some());
        if !is_family || !candidate.is_executable || defines_malloc(candidate) {
            return;
        }
        self.found_allocator = true;
        if !self.wants(&identity.heap) {
            return;
        }
        for spec in functions::C.iter() {
            if let Some(function) = candidate.hidden(spec.function) {
                let role = Role { heap: &identity.heap, reached_by_default: false, required: false, silent: false };
                found.add(refined(&identity, spec), function, &role);
            }
        }
    }

    /// Adds allocators under names of their own. These names are unique, so local functions count too.
    fn prefixed(&mut self, found: &mut Found<'_>, is_winner: bool) {
        let candidate = found.candidate;
        for allocator in ALLOCATORS {
            let identity = Identity::known(candidate, allocator);
            // The module's malloc is another name of the same allocator.
            let reached_by_default = is_winner && found.identity.heap == identity.heap;
            for spec in allocator.own_functions.iter().flat_map(|table| table.iter()) {
                for function in candidate.functions(spec.function) {
                    self.found_allocator = true;
                    if !self.wants(&identity.heap) {
                        continue;
                    }
                    let required = candidate.is_executable && (allocator.is_required)(spec.function);
                    let role = Role { heap: &identity.heap, reached_by_default, required, silent: false };
                    found.add(refined(&identity, spec), function, &role);
                }
            }
        }
    }

    /// Adds mapping functions of C libraries; in other modules they are an interposer's, which calls those of the C library.
    fn mappings(&mut self, found: &mut Found<'_>) {
        let candidate = found.candidate;
        if !found.identity.is_c_library() || !self.selection.wants(MMAP) {
            return;
        }
        for spec in functions::MAPPINGS.iter() {
            if let Some(function) = candidate.exported(spec.function) {
                let required = spec.function == functions::MAPPINGS_DEFINING;
                found.add(spec, function, &Role { heap: MMAP, reached_by_default: true, required, silent: false });
            }
        }
    }

    fn rust(&mut self, found: &mut Found<'_>) {
        let candidate = found.candidate;
        if candidate.functions(functions::RUST_DEFINING).is_empty() || !self.wants(functions::RUST_HEAP) {
            return;
        }
        for spec in functions::RUST.iter() {
            for function in candidate.functions(spec.function) {
                let role = Role { heap: functions::RUST_HEAP, reached_by_default: true, required: true, silent: false };
                found.add(spec, function, &role);
            }
        }
    }
}

fn refined(identity: &Identity, spec: HookSpec) -> HookSpec {
    if identity.is_leaf(spec.function) { spec.leaf() } else { spec }
}

/// Text for the program of a process, which may be unknown.
fn shown(program: Option<&str>) -> String {
    program.map_or_else(|| "the program".to_owned(), |path| format!("`{}`", Shown::of(path)))
}

fn none(candidates: &[Candidate], unselected: Vec<String>, selection: &HeapSelection) -> NoAllocator {
    let executable = candidates.iter().find(|candidate| candidate.is_executable);
    let program = executable.map(|candidate| candidate.path.to_string());
    match (executable, program) {
        (_, program) if !unselected.is_empty() => {
            NoAllocator::NotSelected { program, selected: selection.to_string(), heaps: unselected }
        }
        (Some(candidate), Some(program)) if candidate.is_go => NoAllocator::Go(program),
        (Some(candidate), Some(program)) if candidate.is_static => NoAllocator::Static(program),
        (_, program) => NoAllocator::None(program),
    }
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
