//! Symbolized and cut synthetic stacks.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use heapbpf_base::ids::Pid;
use heapbpf_ledger::details::Details;
use heapbpf_ledger::totals::Totals;
use heapbpf_linux::proc::maps::{Device, Mapping, MappingName};

use super::*;
use crate::object::module::ModuleStore;
use crate::object::symbols::{Search, defined_functions};
use crate::process::address_space::MappedModule;
use crate::symbolize::resolver::Resolver;
use heapbpf_base::testing::{Running, Workshop};

/// Answers from a table, and remembers what it was asked.
#[derive(Default)]
struct Table {
    answers: Vec<(u64, Vec<ResolvedFrame>)>,
    asked: RefCell<Vec<Vec<u64>>>,
}

impl Resolve for Table {
    fn resolve(&self, _: ModuleId, _: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>> {
        self.asked.borrow_mut().push(offsets.iter().map(|offset| offset.0).collect());
        let answer = |offset: &FileOffset| {
            let known = self.answers.iter().find(|(known, _)| *known == offset.0);
            known.map(|(_, frames)| frames.clone().into()).unwrap_or_default()
        };
        offsets.iter().map(answer).collect()
    }
}

fn resolved(function: &str, line: u32, inlined: bool) -> ResolvedFrame {
    ResolvedFrame {
        function: Some(function.into()),
        file: Some("app.c".into()),
        line: Some(line),
        inlined,
        start: None,
    }
}

fn mapped(start: u64, end: u64, module: Option<ModuleId>) -> MappedModule {
    let name = match module {
        Some(_) => MappingName::File { path: PathBuf::from("/bin/app"), deleted: false },
        None => MappingName::Anonymous,
    };
    let device = Device { major: 1, minor: 2 };
    let (start, end, offset) = (TargetAddr(start), TargetAddr(end), FileOffset(0x100));
    MappedModule { mapping: Mapping { start, end, offset, device, inode: 3, name }, module }
}

fn snapshot(stacks: &[Option<&[u64]>]) -> TargetSnapshot {
    let stack = |frames: &[u64]| Stack {
        frames: frames.iter().map(|&address| TargetAddr(address)).collect(),
        end: StackEnd::Complete,
    };
    let callsites = (0..).zip(stacks).map(|(index, frames)| CallsiteSnapshot {
        index,
        stack: frames.map(stack),
        heap: HeapId(3),
        thread: None,
        inherited: false,
        totals: Totals::default(),
        details: Details::default(),
    });
    let heaps = vec![(HeapId(1), Totals::default()), (HeapId(3), Totals::default())];
    TargetSnapshot { pid: Pid(1), totals: Totals::default(), heaps, callsites: callsites.collect() }
}

/// `function:line`, `^` before inlined ones, or the label.
fn render(named: &Named, callsite: &CallsiteProfile) -> Vec<String> {
    let frame = |id: &FrameId| {
        let frame = &named.frames[id.0 as usize];
        let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{}{line}", if frame.inlined { "^" } else { "" }, frame.label())
    };
    callsite.stack.iter().map(frame).collect()
}

/// One module at 0x1000..0x3000 (file offset 0x100), generated code at 0x3000..0x4000.
struct Scene {
    _workshop: Workshop,
    modules: ModuleStore,
    space: AddressSpace,
    table: Table,
}

fn scene() -> Scene {
    let workshop = Workshop::new();
    fs::write(workshop.path("app"), "not even an ELF file").expect("writable");
    let mut modules = ModuleStore::default();
    let app = modules.intern_path(&workshop.path("app")).expect("a file");
    let space = AddressSpace::with(Pid(1), vec![mapped(0x1000, 0x3000, Some(app)), mapped(0x3000, 0x4000, None)]);
    // Offset of the return address 0x1010, less one, less the mapping's start, and where the mapping is in the file.
    let answers = vec![
        (0x10f, vec![resolved("allocate", 7, true), resolved("build", 9, false)]),
        (0x11f, vec![resolved("main", 20, false)]),
    ];
    Scene { _workshop: workshop, modules, space, table: Table { answers, asked: RefCell::default() } }
}

impl Scene {
    fn name(&self, stacks: &[Option<&[u64]>]) -> Named {
        let snapshot = snapshot(stacks);
        name_profile(
            &[Unnamed { snapshot: &snapshot, space: &self.space, program: None }],
            &self.modules.share(),
            &self.table,
        )
    }
}

#[test]
fn frames_are_expanded_leaf_first_and_shared() {
    let scene = scene();
    let named = scene.name(&[Some(&[0x1010, 0x1020]), Some(&[0x1010, 0x1010, 0x1020])]);
    let [callsites] = &named.callsites[..] else { panic!("one target") };
    assert_eq!(render(&named, &callsites[0]), ["^allocate:7", "build:9", "main:20"]);
    assert_eq!(render(&named, &callsites[1]), ["^allocate:7", "build:9", "^allocate:7", "build:9", "main:20"]);
    assert_eq!(named.frames.len(), 3);
    let build = &named.frames[1];
    assert_eq!((build.address, build.module_offset), (0x1010, Some(0x110)), "the return address is shown");
    assert!(build.module.as_deref().is_some_and(|module| module.ends_with("/app")));
    assert_eq!((callsites[0].end, callsites[0].heap), (Some(StackEnd::Complete), 1));
    assert_eq!(*scene.table.asked.borrow(), [[0x10f, 0x11f]], "each address once, the module once");
}

#[test]
fn a_call_at_the_end_of_its_module_belongs_to_it() {
    // A function that never returns may be the last: its caller's return address is behind the mapping.
    let scene = scene();
    let named = scene.name(&[Some(&[0x3000, 0x1020])]);
    assert_eq!(render(&named, &named.callsites[0][0]), ["app+0x2100", "main:20"]);
}

#[test]
fn the_kernels_reason_for_the_end_of_a_stack_is_kept() {
    let scene = scene();
    let mut snapshot = snapshot(&[Some(&[0x1010, 0x7fff_0000])]);
    for end in [StackEnd::MissingModule, StackEnd::NoRow] {
        snapshot.callsites[0].stack.as_mut().expect("it has one").end = end;
        let unnamed = Unnamed { snapshot: &snapshot, space: &scene.space, program: None };
        let named = name_profile(&[unnamed], &scene.modules.share(), &scene.table);
        assert_eq!(named.callsites[0][0].end, Some(end));
    }
}

#[test]
fn a_stack_is_cut_where_it_leaves_code() {
    let scene = scene();
    let named = scene.name(&[Some(&[0x1010, 0x7fff_0000, 0x1020]), Some(&[8, 0x1010]), None]);
    let [cut, empty, lost] = &named.callsites[0][..] else { panic!("three callsites") };
    assert_eq!(render(&named, cut), ["^allocate:7", "build:9"]);
    assert_eq!(cut.end, Some(StackEnd::BrokenChain));
    assert_eq!((empty.stack.len(), empty.end), (0, Some(StackEnd::BrokenChain)));
    assert_eq!((lost.stack.len(), lost.end), (0, None));
}

#[test]
fn generated_code_does_not_cut_stacks() {
    let scene = scene();
    let named = scene.name(&[Some(&[0x3010, 0x1020])]);
    assert_eq!(render(&named, &named.callsites[0][0]), ["[jit]", "main:20"]);
    assert_eq!((named.frames[0].module.as_deref(), named.frames[0].kind), (Some("[jit]"), FrameKind::Jitted));
    assert_eq!(named.callsites[0][0].end, Some(StackEnd::Complete));
}

#[test]
fn the_map_of_generated_code_names_functions_of_modules_that_have_no_name() {
    let mut scene = scene();
    scene.space.set_generated(scene.modules.add_generated());
    // By address: the first has a name of its own.
    scene.table.answers.push((0x1010 - 1, vec![resolved("other", 1, false)]));
    scene.table.answers.push((0x2010 - 1, vec![resolved("Builtin:JSEntry", 1, false)]));
    let named = scene.name(&[Some(&[0x1010, 0x2010, 0x1020])]);
    assert_eq!(render(&named, &named.callsites[0][0]), ["^allocate:7", "build:9", "Builtin:JSEntry:1", "main:20"]);
    let built_in = &named.frames[2];
    assert_eq!((built_in.module_offset, built_in.kind), (Some(0x1110), FrameKind::Native));
}

#[test]
fn stacks_of_targets_with_unknown_mappings_are_not_cut() {
    let mut scene = scene();
    scene.space = AddressSpace::new(Pid(1));
    let named = scene.name(&[Some(&[0x1010, 0x1020])]);
    assert_eq!(render(&named, &named.callsites[0][0]), ["0x1010", "0x1020"]);
    assert_eq!(named.callsites[0][0].end, Some(StackEnd::Complete));
}

#[test]
fn targets_with_the_same_module_share_one_request() {
    let scene = scene();
    let moved = mapped(0x9000, 0xb000, scene.space.mappings()[0].module);
    let (first, second) = (snapshot(&[Some(&[0x1020])]), snapshot(&[Some(&[0x9020])]));
    let other = AddressSpace::with(Pid(2), vec![moved]);
    let targets = [
        Unnamed { snapshot: &first, space: &scene.space, program: None },
        Unnamed { snapshot: &second, space: &other, program: None },
    ];
    let named = name_profile(&targets, &scene.modules.share(), &scene.table);
    assert_eq!(named.frames.iter().map(|frame| frame.address).collect::<Vec<_>>(), [0x1020, 0x9020]);
    assert_eq!(render(&named, &named.callsites[1][0]), ["main:20"]);
    assert_eq!(*scene.table.asked.borrow(), [[0x11f]]);
}

#[test]
fn the_program_has_the_name_that_it_was_started_by() {
    let scene = scene();
    let snapshot = snapshot(&[Some(&[0x1020])]);
    let module = scene.space.mappings()[0].module.expect("a module");
    let path = Arc::clone(scene.modules.share().get(module).path());
    for (path, expected) in [(path, "/bin/link"), ("/another".into(), "app")] {
        let program = Program { path, started_as: "/bin/link".into() };
        let unnamed = Unnamed { snapshot: &snapshot, space: &scene.space, program: Some(&program) };
        let named = name_profile(&[unnamed], &scene.modules.share(), &scene.table);
        let module = named.frames[0].module.as_deref();
        assert!(module.is_some_and(|module| module.ends_with(expected)), "{module:?}");
    }
}

const SLEEPER: &str = "#include <time.h>
__attribute__((noinline)) int doze(int n) {
    struct timespec t = { 1000 + n, 0 };
    return nanosleep(&t, 0);
}
int main(int n, char **v) { return doze(n) + 1; }
";

/// The label of an address in `doze`, of a program that was deleted while it ran and has ended since.
fn label_after_the_end(arguments: &[&str], prepare: impl Fn(&Workshop)) -> (String, Option<u32>, u64) {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "sleeper.c", SLEEPER, arguments);
    let mut modules = ModuleStore::default();
    let whole = modules.intern_path(&program).expect("it opens");
    let doze = defined_functions(modules.get(whole), &["doze"], Search::Everything).expect("readable").remove(0);
    prepare(&workshop);
    let mut child = Running::sleep(&program);
    fs::remove_file(&program).expect("deleted");
    let mut modules = ModuleStore::default();
    let mut space = AddressSpace::new(child.pid());
    space.refresh(&mut modules).expect("readable");
    child.end();

    let mapping = &space.mappings()[0].mapping;
    let address = mapping.start.0 + (doze.offset.0 - mapping.offset.0) + 5;
    let vdso = space.mappings().iter().find(|at| at.mapping.name == MappingName::Special("[vdso]".to_owned()));
    let vdso = vdso.expect("every process has one");
    let clock = defined_functions(modules.get(vdso.module.expect("a module")), &["__vdso_getcpu"], Search::Exported);
    let clock = vdso.mapping.start.0 + clock.expect("readable").remove(0).offset.0 + 1;
    let snapshot = snapshot(&[Some(&[address, clock])]);
    let named = name_profile(
        &[Unnamed { snapshot: &snapshot, space: &space, program: None }],
        &modules.share(),
        &Resolver::in_process(),
    );
    let frame = |at: usize| &named.frames[named.callsites[0][0].stack[at].0 as usize];
    assert_eq!(frame(1).function.as_deref(), Some("__vdso_getcpu"));
    assert_eq!(frame(1).module.as_deref(), Some("[vdso]"));
    (frame(0).label(), frame(0).line, doze.offset.0)
}

#[test]
fn a_deleted_program_that_has_ended_still_has_names() {
    let (label, line, _) = label_after_the_end(&["-g", "-O2"], |_| {});
    assert_eq!(label, "doze");
    assert!(matches!(line, Some(2..=4)), "{line:?}");
}

#[test]
fn a_function_of_a_stripped_program_has_its_start() {
    let (label, line, offset) = label_after_the_end(&["-O2"], |workshop| workshop.run("strip", &["sleeper"]));
    assert_eq!((label, line), (format!("sleeper+{offset:#x}"), None));
}
