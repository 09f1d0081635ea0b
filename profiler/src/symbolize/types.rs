//! Types of blocks, inferred from their first word or their allocation stack.

use std::path::Path;
use std::sync::Arc;

use heapbpf_base::address::{LinkAddr, TargetAddr};
use heapbpf_base::ids::ModuleId;
use heapbpf_ledger::model::{Frame, FrameId, TypeEvidence, TypeName};
use heapbpf_linux::proc::maps::{MappingName, Region, RegionKind, region_of};
use rustc_hash::FxHashMap;

use super::demangle::demangle;
use super::element::{Element, element_of};
use crate::object::module::Modules;
use crate::object::symbols::Vtables;
use crate::process::address_space::{AddressSpace, MappedModule};

const WORDS_MAX: usize = 1 << 16;
const DELETED: &str = " (deleted)";

/// The class of a C++ object follows from its first word, which points into the class's virtual table, which has a
/// symbol. Results are cached: callsites can have 100,000 blocks.
pub(crate) struct TypeNames<'a> {
    regions: &'a [Region],
    space: &'a AddressSpace,
    modules: &'a Modules,
    tables: FxHashMap<ModuleId, Vtables>,
    classes: FxHashMap<u64, Option<Arc<str>>>,
    frames: FxHashMap<FrameId, Element>,
}

impl<'a> TypeNames<'a> {
    /// `regions` are all mappings by ascending address.
    pub(crate) fn new(regions: &'a [Region], space: &'a AddressSpace, modules: &'a Modules) -> Self {
        let (tables, classes, frames) = Default::default();
        Self { regions, space, modules, tables, classes, frames }
    }

    /// `stack`: leaf first, preferably with allocator frames, empty if unknown. `frames`: always of the same profile.
    pub(crate) fn of(&mut self, first_word: Option<u64>, stack: &[FrameId], frames: &[Frame]) -> Option<TypeName> {
        if let Some(name) = first_word.and_then(|word| self.class(word)) {
            return Some(TypeName { name, evidence: TypeEvidence::Vtable });
        }
        let name = self.element(stack, frames)?;
        Some(TypeName { name, evidence: TypeEvidence::Stack })
    }

    fn element(&mut self, stack: &[FrameId], frames: &[Frame]) -> Option<Arc<str>> {
        for id in stack {
            let function = || frames.get(id.0 as usize)?.function.as_deref();
            let element = self.frames.entry(*id).or_insert_with(|| function().map_or(Element::Stop, element_of));
            match element {
                Element::Holds(name) => return Some(Arc::clone(name)),
                Element::Nothing => {}
                Element::Stop => return None,
            }
        }
        None
    }

    fn class(&mut self, word: u64) -> Option<Arc<str>> {
        let path = self.file_at(TargetAddr(word))?;
        if let Some(known) = self.classes.get(&word) {
            return known.clone();
        }
        let class = self.find(word, path);
        if self.classes.len() < WORDS_MAX {
            self.classes.insert(word, class.clone());
        }
        class
    }

    /// The file mapped at an address, or whose `.bss` this may be: linkers put copies of other modules' tables there.
    fn file_at(&self, address: TargetAddr) -> Option<&'a Path> {
        let region = region_of(self.regions, address).filter(|region| region.readable)?;
        match &region.kind {
            RegionKind::File { path } => Some(path),
            RegionKind::Anonymous { name: None } => {
                let before = region_of(self.regions, TargetAddr(region.start.0.checked_sub(1)?))?;
                if let RegionKind::File { path } = &before.kind { Some(path) } else { None }
            }
            _ => None,
        }
    }

    fn find(&mut self, word: u64, path: &Path) -> Option<Arc<str>> {
        let code = self.code(TargetAddr(word), path)?;
        let id = code.module?;
        let module = self.modules.get(id);
        let bias = module.bias(code.mapping.start, code.mapping.offset)?;
        let tables = self.tables.entry(id).or_insert_with(|| Vtables::of(module).unwrap_or_default());
        class_of(tables.symbol(LinkAddr(word.wrapping_sub(bias)))?)
    }

    /// The mapping of the file's code, the base of addresses: the one below its data (as linkers do), or the first.
    fn code(&self, address: TargetAddr, path: &Path) -> Option<&'a MappedModule> {
        let stripped = path.to_str().and_then(|path| path.strip_suffix(DELETED)).map(Path::new);
        let is_of = |mapped: &&MappedModule| match &mapped.mapping.name {
            MappingName::File { path: of, .. } => of == path || Some(of.as_path()) == stripped,
            _ => false,
        };
        let mappings = self.space.mappings();
        let behind = mappings.partition_point(|mapped| mapped.mapping.start <= address);
        mappings[..behind].iter().rev().find(is_of).or_else(|| mappings[behind..].iter().find(is_of))
    }
}

/// `Foo` for `_ZTV3Foo`; `None` if it cannot be demangled.
fn class_of(symbol: &str) -> Option<Arc<str>> {
    let name = demangle(symbol);
    let class = name.strip_prefix("{vtable(")?;
    // A cut name has no end.
    Some(class.strip_suffix(")}").unwrap_or(class).into())
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::Pid;

    use super::*;

    #[test]
    fn the_stack_gives_the_type_if_the_first_word_does_not() {
        let names =
            ["operator new(unsigned long)", "std::vector<Foo, std::allocator<Foo> >::reserve(unsigned long)", "run()"];
        let frames: Vec<Frame> =
            names.iter().map(|name| Frame { function: Some((*name).into()), ..Frame::default() }).collect();
        let (space, modules) = (AddressSpace::new(Pid(1)), Modules::default());
        let mut types = TypeNames::new(&[], &space, &modules);
        let mut check = |stack: &[u32], expected: Option<&str>| {
            let stack: Vec<FrameId> = stack.iter().copied().map(FrameId).collect();
            let found = types.of(Some(0x1000), &stack, &frames);
            assert_eq!(found.as_ref().map(|found| &*found.name), expected, "{stack:?}");
            assert!(found.is_none_or(|found| found.evidence == TypeEvidence::Stack));
        };
        check(&[0, 1, 2], Some("Foo"));
        check(&[1], Some("Foo"));
        check(&[0, 2, 1], None);
        check(&[], None);
        check(&[99, 1], None);
    }

    use heapbpf_linux::proc::maps::regions;

    use crate::object::module::ModuleStore;
    use crate::object::symbols::{Search, defined_functions};
    use heapbpf_base::testing::{Running, Workshop};

    const PROGRAM: &str = "
        #include <unistd.h>
        #include <stdlib.h>
        struct Base { virtual ~Base() {} int x; };
        struct Other { virtual ~Other() {} virtual void turn() {} int y; };
        namespace app { template <class T> struct Both : Base, Other { T value; void turn() override {} }; }
        namespace { struct Hidden : Base {}; }
        Base *kept[3];
        int main(int, char **arguments) {
            kept[0] = new Base; kept[1] = new app::Both<long>; kept[2] = new Hidden;
            sleep(atoi(arguments[1]));
        }";

    #[test]
    fn vtable_symbols_contain_the_class() {
        let check =
            |symbol: &str, expected: Option<&str>| assert_eq!(class_of(symbol).as_deref(), expected, "{symbol}");
        check("_ZTV3Foo", Some("Foo"));
        check("_ZTVN3app4BothIlEE", Some("app::Both<long>"));
        check("_ZTVN12_GLOBAL__N_16HiddenE", Some("(anonymous namespace)::Hidden"));
        check("_ZTV", None);
        check("_ZTI3Foo", None);
    }

    /// Addresses and names of tables, as printed by `nm`.
    fn tables(workshop: &Workshop, program: &str) -> Vec<(u64, String)> {
        let output =
            std::process::Command::new("nm").arg(workshop.path(program)).output().expect("`nm` is needed here");
        let text = String::from_utf8(output.stdout).expect("text");
        let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        fields
            .filter(|fields| fields.len() == 3 && fields[2].starts_with("_ZTV") && !fields[1].starts_with('U'))
            .map(|fields| (u64::from_str_radix(fields[0], 16).expect("an address"), fields[2].to_owned()))
            .collect()
    }

    fn check_running(arguments: &[&str]) {
        let workshop = Workshop::new();
        let program = workshop.compile("g++", "objects.cpp", PROGRAM, arguments);
        let running = Running::sleep(&program);
        let regions = regions(running.pid()).expect("it runs");
        let mut store = ModuleStore::default();
        let mut space = AddressSpace::new(running.pid());
        space.refresh(&mut store).expect("it runs");
        let modules = store.share();
        let mapped = space
            .mappings()
            .iter()
            .find(|mapped| matches!(&mapped.mapping.name, MappingName::File { path, .. } if *path == program));
        let mapped = mapped.expect("its code is mapped");
        let module = modules.get(mapped.module.expect("it is a file"));
        assert_eq!(defined_functions(module, &["main"], Search::Everything).map(|found| found.len()), Ok(1));
        let bias = module.bias(mapped.mapping.start, mapped.mapping.offset).expect("it is code");
        let mut classes = TypeNames::new(&regions, &space, &modules);
        let found = tables(&workshop, "objects");
        let mut named = Vec::new();
        for (start, symbol) in &found {
            let start = start.wrapping_add(bias);
            let class = classes.class(start + 16);
            assert_eq!((classes.class(start), classes.class(start + 17)), (None, None), "{symbol}");
            if symbol.contains("Both") {
                // The second base's part starts after two destructors, a function, and a header of its own.
                assert_eq!(classes.class(start + 16 + 3 * 8 + 16), class, "{symbol}");
            }
            named.extend(class.as_deref().map(str::to_owned));
        }
        named.sort();
        assert_eq!(named, ["(anonymous namespace)::Hidden", "Base", "Other", "app::Both<long>"], "{found:?}");
        // Code, stacks and null pointers have no class.
        let stack = regions.iter().find(|region| region.kind == RegionKind::Stack).expect("it has a stack");
        for word in [mapped.mapping.start.0, stack.start.0, 0, u64::MAX, 16] {
            assert_eq!(classes.class(word), None, "{word:#x}");
        }
    }

    #[test]
    fn objects_of_a_running_program_have_their_classes() {
        check_running(&["-O0"]);
        check_running(&["-O0", "-no-pie"]);
    }
}
