//! Definitions of functions in the modules of a process. Symbol tables are read once per session.

use std::path::PathBuf;
use std::sync::Arc;

use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_linux::proc::maps::{self, FileIdentity};
use heapbpf_linux::proc::process;
use rustc_hash::FxHashMap;
use tracing::debug;

use super::address_space::AddressSpace;
use super::link_map::{LinkMap, LinkPosition};
use super::pattern::ModulePattern;
use crate::object::ObjectError;
use crate::object::image::Image;
use crate::object::module::{Module, ModuleStore};
use crate::object::symbols::{DefinedFunction, Search, Symbols};

#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub module: ModuleId,
    /// Path in the target's mount namespace.
    pub path: Arc<str>,
    pub is_executable: bool,
    /// Whether the program is not linked dynamically: calls do not leave it.
    pub is_static: bool,
    pub is_go: bool,
    pub imports_operator_new: bool,
    /// Position in the dynamic linker's search order; `None` if unknown.
    pub link: Option<LinkPosition>,
    /// Functions by name and offset, without indirect functions (`STT_GNU_IFUNC`), whose code is elsewhere.
    pub functions: Arc<[DefinedFunction]>,
}

impl Candidate {
    /// The functions with this name: several if local functions share it.
    pub(crate) fn functions(&self, name: &str) -> &[DefinedFunction] {
        let first = self.functions.partition_point(|function| &*function.name < name);
        let named = self.functions[first..].partition_point(|function| function.name == name);
        &self.functions[first..first + named]
    }

    /// The only function with this name, if it is local.
    pub(crate) fn hidden(&self, name: &str) -> Option<&DefinedFunction> {
        match self.functions(name) {
            [function] if !function.global && !self.is_static => Some(function),
            _ => None,
        }
    }

    /// The exported function with this name. In static programs, any function counts, because linkers make functions local
    /// arbitrarily (`malloc` in a static-pie program with glibc).
    pub(crate) fn exported(&self, name: &str) -> Option<&DefinedFunction> {
        self.functions(name).iter().find(|function| function.global || self.is_static)
    }
}

#[derive(Debug)]
pub(crate) struct Definitions {
    names: Vec<&'static str>,
    search_internal: Vec<ModulePattern>,
    /// Definitions by module, and whether `.symtab` was searched.
    cache: FxHashMap<(ModuleId, bool), ModuleDefinitions>,
}

#[derive(Clone, Debug)]
struct ModuleDefinitions {
    functions: Arc<[DefinedFunction]>,
    imports_operator_new: bool,
}

/// Names of `operator new(size_t)` and `operator new[](size_t)`.
const OPERATORS_NEW: [&str; 2] = ["_Znwm", "_Znam"];

impl Definitions {
    /// Searches modules for these names. `.symtab` is searched only in programs and in modules that match `search_internal`:
    /// large tables take time.
    pub(crate) fn new(names: Vec<&'static str>, search_internal: Vec<ModulePattern>) -> Self {
        Self { names, search_internal, cache: FxHashMap::default() }
    }

    pub(crate) fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Readable modules of a process, in mapping order.
    pub(crate) fn candidates(
        &mut self,
        space: &AddressSpace,
        modules: &ModuleStore,
        links: Option<&LinkMap>,
    ) -> Vec<Candidate> {
        let program = Program::of(space.pid());
        let candidate = |id: ModuleId| {
            let module = modules.get(id);
            let elf = module.elf().ok()?;
            let link = links.and_then(|links| links.position(bias(space, id, module)?));
            let is_program = program.is(module);
            let is_first = link == Some(LinkPosition { namespace: 0, index: 0 });
            let definitions = self.definitions(id, module, is_program || is_first);
            Some(Candidate {
                module: id,
                path: Arc::clone(module.path()),
                is_executable: is_program || is_first,
                is_static: elf.is_static,
                is_go: elf.is_go,
                link,
                imports_operator_new: definitions.imports_operator_new,
                functions: definitions.functions,
            })
        };
        space.modules().into_iter().filter_map(candidate).collect()
    }

    pub(crate) fn unreadable_program(space: &AddressSpace, modules: &ModuleStore) -> Option<(Arc<str>, ObjectError)> {
        let program = Program::of(space.pid());
        let unreadable = |id: ModuleId| {
            let module = modules.get(id);
            let error = module.elf().err().filter(|_| program.is(module))?;
            Some((Arc::clone(module.path()), error.clone()))
        };
        space.modules().into_iter().find_map(unreadable)
    }

    fn definitions(&mut self, id: ModuleId, module: &Module, is_executable: bool) -> ModuleDefinitions {
        let whole = is_executable || self.search_internal.iter().any(|pattern| pattern.matches(module.path()));
        let names = &self.names;
        let definitions = self.cache.entry((id, whole)).or_insert_with(|| {
            let search = if whole { Search::Everything } else { Search::Exported };
            let symbols = Symbols::of(module, names, &OPERATORS_NEW, search).unwrap_or_else(|error| {
                debug!("module {}: {error}", module.path());
                Symbols::default()
            });
            ModuleDefinitions {
                functions: symbols.functions.into_iter().filter(|function| !function.indirect).collect(),
                imports_operator_new: symbols.imports,
            }
        });
        definitions.clone()
    }
}

struct Program {
    path: Option<PathBuf>,
    file: Option<FileIdentity>,
}

impl Program {
    fn of(pid: Pid) -> Self {
        Self { path: process::executable(pid).ok(), file: maps::executable_identity(pid).ok() }
    }

    /// Whether a module is the program. Compares the file, because a module has the path in the first target's mount namespace,
    /// and a deleted file has another one. On some file systems `stat` reports another device than the mapping has: then compares
    /// the path.
    fn is(&self, module: &Module) -> bool {
        let file = module.image().ok().map(Image::file_identity);
        let same_path = self.path.as_deref().is_some_and(|path| path.as_os_str() == &**module.path());
        same_path || (file.is_some() && file == self.file)
    }
}

fn bias(space: &AddressSpace, id: ModuleId, module: &Module) -> Option<u64> {
    let first = space.mappings().iter().find(|mapped| mapped.module == Some(id))?;
    module.bias(first.mapping.start, first.mapping.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heapbpf_base::testing::{Running, Workshop};

    /// A program with functions of its own, one of them local.
    const PROGRAM: &str = r#"
        #include <stdlib.h>
        #include <unistd.h>
        void *_rjem_malloc(size_t size) { return malloc(size); }
        static __attribute__((noinline)) void *mi_malloc(size_t size) { return _rjem_malloc(size); }
        int main(int count, char **arguments) { free(mi_malloc(count)); sleep(atoi(arguments[1])); }
    "#;

    #[test]
    fn programs_are_searched_completely_and_libraries_for_exports() {
        let workshop = Workshop::new();
        let running = Running::sleep(&workshop.compile("gcc", "program.c", PROGRAM, &["-O1"]));
        let mut modules = ModuleStore::default();
        let mut space = AddressSpace::new(running.pid());
        space.refresh(&mut modules).expect("readable");
        let links = LinkMap::read(running.pid());
        let names = vec!["malloc", "_rjem_malloc", "mi_malloc", "memcpy", "__rust_alloc"];
        let mut definitions = Definitions::new(names, Vec::new());
        let found = definitions.candidates(&space, &modules, links.as_ref());
        let names = |candidate: &Candidate| -> Vec<(String, bool)> {
            candidate.functions.iter().map(|function| (function.name.clone(), function.global)).collect()
        };
        let program = found.iter().find(|candidate| candidate.is_executable).expect("it is mapped");
        assert_eq!(names(program), [("_rjem_malloc".to_owned(), true), ("mi_malloc".to_owned(), false)]);
        assert!(program.exported("mi_malloc").is_none() && program.exported("_rjem_malloc").is_some());
        let libc = found.iter().find(|candidate| candidate.path.contains("libc.so")).expect("it is mapped");
        // memcpy is an indirect function.
        assert_eq!(names(libc), [("malloc".to_owned(), true)]);
        assert!(program.link < libc.link);
        let again = definitions.candidates(&space, &modules, None);
        let same = again.iter().find(|candidate| candidate.module == libc.module).expect("it is still mapped");
        assert!(Arc::ptr_eq(&same.functions, &libc.functions) && same.link.is_none());
    }
}
