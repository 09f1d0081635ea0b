//! Tests with address spaces of real processes.

use std::path::PathBuf;

use heapbpf_linux::proc::maps::{Device, MappingName};
use profiler_common::stack::StackEnd;

use super::*;
use heapbpf_base::testing::Running;

fn mapped(start: u64, end: u64, offset: u64, module: Option<u32>) -> MappedModule {
    let name = match module {
        Some(id) => MappingName::File { path: PathBuf::from(format!("/lib/{id}")), deleted: false },
        None => MappingName::Anonymous,
    };
    let mapping = Mapping {
        start: TargetAddr(start),
        end: TargetAddr(end),
        offset: FileOffset(offset),
        device: Device { major: 1, minor: 2 },
        inode: 3,
        name,
    };
    MappedModule { mapping, module: module.map(ModuleId) }
}

impl AddressSpace {
    pub(crate) fn with(pid: Pid, current: Vec<MappedModule>) -> Self {
        Self::of(pid, current, Vec::new())
    }

    /// Replaces all mappings.
    fn replace(&mut self, current: Vec<MappedModule>) {
        let known = std::mem::replace(&mut self.current, current);
        self.retire(known);
    }
}

fn location(module: u32, offset: u64) -> Option<Location> {
    Some(Location { module: ModuleId(module), offset: FileOffset(offset) })
}

#[test]
fn addresses_are_attributed_to_their_mapping() {
    let maps = vec![mapped(0x1000, 0x2000, 0x400, Some(7)), mapped(0x2000, 0x3000, 0, None)];
    let space = AddressSpace::with(Pid(1), maps);
    assert_eq!(space.lookup(TargetAddr(0x1000)), location(7, 0x400));
    assert_eq!(space.lookup(TargetAddr(0x1fff)), location(7, 0x13ff));
    assert_eq!(space.origin(TargetAddr(0x2000)), Some(CodeOrigin::Generated));
    assert_eq!(space.lookup(TargetAddr(0x2000)), None);
    for address in [0, 0xfff, 0x3000, u64::MAX] {
        assert_eq!(space.origin(TargetAddr(address)), None, "{address:#x}");
        assert!(!space.covers(TargetAddr(address)), "{address:#x}");
    }
}

#[test]
fn unmapped_ranges_are_remembered_until_they_are_reused() {
    let mut space = AddressSpace::with(Pid(1), vec![mapped(0x1000, 0x3000, 0, Some(1))]);
    space.replace(vec![mapped(0x2000, 0x3000, 0, Some(2))]);
    assert_eq!(space.lookup(TargetAddr(0x1800)), location(1, 0x800));
    assert!(!space.covers(TargetAddr(0x1800)));
    assert_eq!(space.lookup(TargetAddr(0x2800)), location(2, 0x800));
    assert!(space.covers(TargetAddr(0x2800)));
    space.replace(vec![mapped(0x8000, 0x9000, 0, Some(3))]);
    assert_eq!(space.lookup(TargetAddr(0x2800)), location(2, 0x800), "the later of the two");
    assert_eq!(space.modules(), [ModuleId(3)]);
}

/// A mapping of a file with this number that the kernel side reports: as that of [`mapped`], which has number 3.
fn reported(number: u32, inode: u64, start: u64, end: u64) -> Mapped {
    Mapped {
        pid: Pid(1),
        start: TargetAddr(start),
        end: TargetAddr(end),
        offset: FileOffset(0),
        file: FileKey::new(1, 2, inode),
        number,
        is_corrected: false,
        has_replaced: false,
    }
}

#[test]
fn what_nobody_has_read_has_no_name_of_what_is_mapped_there_later() {
    let mut space = AddressSpace::new(Pid(1));
    space.map(&reported(1, 77, 0x1000, 0x3000));
    let unread = placed(&space, 0x1800);
    assert_eq!((unread, space.origin(unread)), (TargetAddr(0x1800), None));
    space.replace(vec![mapped(0x1000, 0x3000, 0, Some(2))]);
    assert_eq!(space.lookup(unread), location(2, 0x800), "it is what has been read since");
    space.map(&reported(2, 3, 0x1000, 0x3000));
    assert_eq!(space.origin(unread), None, "it was another file");
    assert_eq!(space.lookup(placed(&space, 0x1800)), location(2, 0x800));
}

fn placed(space: &AddressSpace, address: u64) -> TargetAddr {
    // A return address is behind the call.
    let mut stack = Stack { frames: vec![TargetAddr(address + 1)].into(), end: StackEnd::Complete };
    space.place(&mut stack);
    stack.frames[0].inside_call()
}

#[test]
fn unmapped_ranges_are_limited() {
    let mut space = AddressSpace::new(Pid(1));
    for round in 0..3 * RETIRED_MAX as u64 {
        space.replace(vec![mapped(0x1000 * round, 0x1000 * (round + 1), 0, None)]);
    }
    assert_eq!(space.retired.len(), RETIRED_MAX);
    let mut space = AddressSpace::new(Pid(1));
    for round in 0..100 {
        space.replace(vec![mapped(0x1000, 0x2000, 0, Some(round % 2))]);
    }
    assert_eq!(space.retired.len(), 2);
}

#[test]
fn mappings_survive_the_exit_of_the_process() {
    let mut child = Running::sleep("/bin/sleep".as_ref());
    let mut modules = ModuleStore::default();
    let mut space = AddressSpace::new(child.pid());
    assert!(!space.is_known());
    let new = space.refresh(&mut modules).expect("readable");
    assert_eq!(new, space.modules());
    let paths: Vec<&str> = new.iter().map(|&id| &**modules.get(id).path()).collect();
    assert!(paths[0].ends_with("/sleep"), "{paths:?}");
    assert!(paths.iter().any(|path| path.ends_with("/libc.so.6")), "{paths:?}");
    let version = space.version();
    assert_eq!(space.refresh(&mut modules).expect("readable"), [], "nothing is new");
    assert_eq!(space.version(), version);
    space.replace(Vec::new());
    assert_ne!(space.refresh(&mut modules).expect("readable"), [], "all is new");
    assert_ne!(space.version(), version);
    let first = space.mappings()[0].mapping.clone();

    child.end();
    assert!(matches!(space.refresh(&mut modules), Err(ProcError::NoSuchProcess { pid }) if pid == child.pid()));
    assert_eq!(space.lookup(first.start), Some(Location { module: new[0], offset: first.offset }));
}

#[test]
fn link_address_and_bias_give_the_runtime_address() {
    use crate::object::symbols::{Search, defined_functions};
    // The address of a function pointer equals the result from the file and the mappings.
    let here = TargetAddr(libc::getpid as *const () as u64);
    let mut modules = ModuleStore::default();
    let mut space = AddressSpace::new(Pid(std::process::id()));
    space.refresh(&mut modules).expect("readable");
    let at = space.lookup(here).expect("getpid is code");
    let module = modules.get(at.module);
    let found = defined_functions(module, &["getpid"], Search::Exported).expect("readable");
    assert_eq!(found.iter().map(|function| function.offset).collect::<Vec<_>>(), [at.offset]);
    let mapping = &space.mappings().iter().find(|mapped| mapped.contains(here)).expect("mapped").mapping;
    let bias = module.bias(mapping.start, mapping.offset).expect("it is one of its segments");
    assert_eq!(module.elf().expect("is ELF").link_addr(at.offset).expect("code").0.wrapping_add(bias), here.0);
}
