//! User-defined hooks by heap: from the command line, from spec files, and from the built-in specs.

use std::path::Path;

use heapbpf_linux::files;
use indexmap::IndexSet;
use profiler_common::hook::CallShape;
use rustc_hash::FxBuildHasher;
use serde::Deserialize;
use thiserror::Error;

use super::custom::{self, CustomHook, HookError};
use super::selection::interval_bytes;
use super::spec::HookSpec;
use crate::process::pattern::ModulePattern;

const BUILT_IN: &[(&str, &str)] =
    &[("cpython", include_str!("../../specs/cpython.toml")), ("cuda", include_str!("../../specs/cuda.toml"))];

const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookSet {
    functions: Vec<CustomFunction>,
    /// Heaps in the order in which they were defined.
    heaps: Vec<Heap>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Heap {
    name: String,
    interval_bytes: Option<u32>,
    /// Advice to users if the functions are inlined, for which they are checked.
    if_inlined: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomFunction {
    pub heap: String,
    pub modules: Vec<ModulePattern>,
    pub spec: HookSpec,
    /// Whether the function was defined by the user, and not by a built-in spec, which includes functions of other versions.
    pub required: bool,
}

impl CustomFunction {
    pub fn may_be_in(&self, path: &str) -> bool {
        self.modules.iter().any(|modules| modules.matches(path))
    }
}

#[derive(Debug, Error)]
pub enum SpecError {
    #[error(
        "`{name}` is neither a built-in spec ({}) nor a readable file: {source}",
        built_in_names().collect::<Vec<_>>().join(", ")
    )]
    Missing { name: String, source: std::io::Error },
    #[error("`{0}` is not a valid hook spec: {1}")]
    Form(String, toml::de::Error),
    #[error("`{0}`: {1}")]
    Heap(String, String),
    #[error("`{0}`, heap `{1}`: {2}")]
    Function(String, String, HookError),
}

pub(crate) fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    heap: Vec<FileHeap>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileHeap {
    name: String,
    interval: Option<String>,
    if_inlined: Option<String>,
    modules: Vec<String>,
    functions: Vec<String>,
}

impl HookSet {
    pub fn add(&mut self, hook: CustomHook) {
        self.add_heap(&hook.heap, hook.interval_bytes, None);
        self.functions.push(CustomFunction {
            heap: hook.heap,
            modules: vec![hook.modules],
            spec: hook.spec,
            required: true,
        });
    }

    pub(crate) fn has_entries(&self) -> bool {
        self.functions.iter().any(|function| function.spec.shape == CallShape::Entry)
    }

    /// Adds the built-in spec with this name or, if there is none, the file at this path.
    pub fn load(&mut self, name_or_path: &str) -> Result<(), SpecError> {
        match BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            Some((name, text)) => {
                let named = self.functions.len();
                self.parse(name, text)?;
                self.functions.iter_mut().skip(named).for_each(|function| function.required = false);
                Ok(())
            }
            None => {
                let text = files::read_text(Path::new(name_or_path), FILE_BYTES_MAX);
                self.parse(
                    name_or_path,
                    &text.map_err(|source| SpecError::Missing { name: name_or_path.to_owned(), source })?,
                )
            }
        }
    }

    /// Adds the heaps of a spec file's text, or nothing on an error. `name` is for errors.
    pub fn parse(&mut self, name: &str, text: &str) -> Result<(), SpecError> {
        let file: File = toml::from_str(text).map_err(|error| SpecError::Form(name.to_owned(), error))?;
        let mut added = self.clone();
        for heap in &file.heap {
            added.add_file_heap(name, heap)?;
        }
        *self = added;
        Ok(())
    }

    fn add_file_heap(&mut self, name: &str, heap: &FileHeap) -> Result<(), SpecError> {
        let bad = |reason: String| SpecError::Heap(name.to_owned(), reason);
        custom::check_heap_name(&heap.name).map_err(bad)?;
        if heap.modules.is_empty() || heap.functions.is_empty() {
            return Err(bad(format!("heap `{}` needs `modules` and `functions`, at least one of each", heap.name)));
        }
        let interval = heap.interval.as_deref().map(interval_bytes).transpose();
        let interval = interval.map_err(|error| bad(error.to_string()))?;
        self.add_heap(&heap.name, interval, heap.if_inlined.as_deref());
        let modules: Vec<ModulePattern> = heap.modules.iter().map(|text| ModulePattern::new(text)).collect();
        for text in &heap.functions {
            let spec = custom::function(text)
                .map_err(|error| SpecError::Function(name.to_owned(), heap.name.clone(), error))?;
            self.functions.push(CustomFunction {
                heap: heap.name.clone(),
                modules: modules.clone(),
                spec,
                required: true,
            });
        }
        Ok(())
    }

    fn add_heap(&mut self, name: &str, interval_bytes: Option<u32>, if_inlined: Option<&str>) {
        let if_inlined = if_inlined.map(str::to_owned);
        match self.heaps.iter_mut().find(|heap| heap.name == name) {
            Some(heap) => {
                heap.interval_bytes = interval_bytes.or(heap.interval_bytes);
                heap.if_inlined = if_inlined.or(heap.if_inlined.take());
            }
            None => self.heaps.push(Heap { name: name.to_owned(), interval_bytes, if_inlined }),
        }
    }

    pub fn functions(&self) -> &[CustomFunction] {
        &self.functions
    }

    #[cfg(test)]
    fn heaps(&self) -> impl Iterator<Item = &str> {
        self.heaps.iter().map(|heap| heap.name.as_str())
    }

    pub fn interval_bytes(&self, heap: &str) -> Option<u32> {
        self.heap(heap)?.interval_bytes
    }

    /// Advice to users if functions of the heap are inlined; `None` if functions are not to be checked for that.
    pub fn advice_if_inlined(&self, heap: &str) -> Option<&str> {
        self.heap(heap)?.if_inlined.as_deref()
    }

    fn heap(&self, name: &str) -> Option<&Heap> {
        self.heaps.iter().find(|heap| heap.name == name)
    }

    /// Modules that are named explicitly, so that their local functions are searched too.
    pub fn named_modules(&self) -> Vec<ModulePattern> {
        let named = self.functions.iter().flat_map(|function| &function.modules).filter(|modules| !modules.is_any());
        named.cloned().collect::<IndexSet<_, FxBuildHasher>>().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARENA: &str = r#"
        [[heap]]
        name = "arena"
        interval = "64KiB"
        modules = ["libarena.so*", "/opt/app/bin/server"]
        functions = ["arena_alloc(size=arg2, ptr=ret)", "arena_free(old=arg2)"]
    "#;

    fn parsed(text: &str) -> Result<HookSet, String> {
        let mut set = HookSet::default();
        set.parse("arena.toml", text).map_err(|error| error.to_string())?;
        Ok(set)
    }

    #[test]
    fn a_spec_file_defines_heaps() {
        let set = parsed(ARENA).expect("well formed");
        assert_eq!(set.heaps().collect::<Vec<_>>(), ["arena"]);
        assert_eq!(set.interval_bytes("arena"), Some(65_536));
        let [alloc, free] = set.functions() else { panic!("{set:?}") };
        assert_eq!(alloc.spec, HookSpec::alloc("arena_alloc", 1));
        assert_eq!(free.spec, HookSpec::free("arena_free", 1));
        assert!(alloc.may_be_in("/usr/lib/libarena.so.3") && alloc.may_be_in("/opt/app/bin/server"));
        assert!(!alloc.may_be_in("/usr/bin/server"));
        assert_eq!(set.named_modules().len(), 2);
    }

    #[test]
    fn errors_in_specs_are_reported() {
        let check = |from: &str, to: &str, expected: &str| {
            let error = parsed(&ARENA.replace(from, to)).expect_err("rejected");
            assert!(error.contains(expected) && error.contains("arena.toml"), "{error}");
        };
        check("arena_free(old=arg2)", "arena_free(old=arg9)", "^^^^");
        check("arena_free(old=arg2)", "arena_free(old=arg2)@1", "write it as `interval`");
        check("\"arena\"", "\"mmap\"", "is reserved");
        check("64KiB", "lots", "`lots` is not an interval");
        check("interval", "intervall", "intervall");
        check("[\"libarena.so*\", \"/opt/app/bin/server\"]", "[]", "at least one of each");
        check("[[heap]]", "[heap]", "invalid type");
    }

    #[test]
    fn a_malformed_spec_adds_nothing() {
        let mut set = HookSet::default();
        let text = format!("{ARENA}\n[[heap]]\nname = \"b\"\nmodules = [\"*\"]\nfunctions = [\"f()\"]\n");
        set.parse("two.toml", &text).expect_err("the second heap is malformed");
        assert_eq!(set, HookSet::default());
    }

    #[test]
    fn a_missing_spec_lists_the_built_in_ones() {
        let error = HookSet::default().load("/nowhere/cuda").expect_err("no such file").to_string();
        assert!(error.contains("cpython, cuda") && error.contains("`/nowhere/cuda`"), "{error}");
    }

    #[test]
    fn built_in_specs_free_what_they_allocate() {
        for name in built_in_names() {
            let mut set = HookSet::default();
            set.load(name).expect("well formed");
            for heap in set.heaps() {
                let shapes: Vec<CallShape> = set
                    .functions()
                    .iter()
                    .filter(|function| function.heap == heap)
                    .map(|function| function.spec.shape)
                    .collect();
                assert!(shapes.contains(&CallShape::Free), "{name} {heap}");
                assert!(
                    shapes.iter().any(|shape| matches!(shape, CallShape::Alloc | CallShape::AllocOut)),
                    "{name} {heap}"
                );
            }
            let mut names: Vec<&str> = set.functions().iter().map(|function| function.spec.function).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{name} names a function twice");
        }
    }

    #[test]
    fn the_cpython_spec_matches_installed_python() {
        let mut set = HookSet::default();
        set.load("cpython").expect("well formed");
        let mut modules = crate::object::module::ModuleStore::default();
        let path = "/usr/bin/python3.11";
        let id = modules.intern_path(path.as_ref()).expect("python is installed");
        let names: Vec<&str> = set.functions().iter().map(|function| function.spec.function).collect();
        let search = crate::object::symbols::Search::Exported;
        let found = crate::object::symbols::defined_functions(modules.get(id), &names, search).expect("readable");
        assert_eq!(found.len(), names.len());
        assert!(set.functions().iter().all(|function| function.may_be_in(path)));
    }
}
