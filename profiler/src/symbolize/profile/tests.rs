//! Mappings of synthetic targets.

mod history;

use heapbpf_base::address::{FileOffset, LinkAddr};
use heapbpf_base::ids::{HeapId, ModuleId, Pid};
use heapbpf_ledger::details::Details;
use heapbpf_ledger::snapshot::{CallsiteSnapshot, Stack, TargetSnapshot};
use heapbpf_ledger::totals::Totals;
use heapbpf_linux::proc::maps::{Device, Mapping, MappingName};
use profiler_common::stack::StackEnd;

use super::*;
use crate::object::ObjectError;
use crate::object::elf::{BuildId, Segment};
use crate::object::module::{Module, Recorded};

/// Linked to 0x40_0000 and up, its code from 0x1000 on in the file.
fn module(path: &str, build_id: &[u8]) -> Arc<Module> {
    let code =
        Segment { offset: FileOffset(0x1000), size_bytes: 0x5000, address: LinkAddr(0x40_1000), executable: true };
    let recorded = Recorded { build_id: BuildId::recorded(build_id), code: vec![code] };
    Arc::new(Module::recorded(path, Err(ObjectError::NoFile), recorded))
}

fn mapped(start: u64, module: Option<u32>) -> MappedModule {
    let mapping = Mapping {
        start: TargetAddr(start),
        end: TargetAddr(start + 0x5000),
        offset: FileOffset(0x1000),
        device: Device { major: 0, minor: 0 },
        inode: 0,
        name: MappingName::Anonymous,
    };
    MappedModule { mapping, module: module.map(ModuleId) }
}

fn ledger(frames: &[u64]) -> TargetSnapshot {
    let frames = frames.iter().map(|&address| TargetAddr(address)).collect();
    let callsite = CallsiteSnapshot {
        index: 0,
        stack: Some(Stack { frames, end: StackEnd::Complete }),
        heap: HeapId(0),
        thread: None,
        inherited: false,
        totals: Totals::default(),
        details: Details::default(),
    };
    TargetSnapshot { pid: Pid(1), totals: Totals::default(), heaps: Vec::new(), callsites: vec![callsite] }
}

#[test]
fn modules_occur_once_and_removed_mappings_if_stacks_refer_to_them() {
    let modules: Modules =
        [module("/lib/unused", &[1]), module("/lib/b", &[]), module("/lib/a", &[0xab, 0xcd])].into_iter().collect();
    let plugins = vec![
        // Both had the address that is called; the last one is listed.
        mapped(0x10_0000, Some(0)),
        mapped(0x10_0000, Some(2)),
        mapped(0x20_0000, Some(0)),
        // Something else is there now.
        mapped(0x50_0000, Some(0)),
    ];
    let first = AddressSpace::of(Pid(1), vec![mapped(0x50_0000, Some(1)), mapped(0x60_0000, None)], plugins);
    let second = AddressSpace::of(Pid(2), vec![mapped(0x70_0000, Some(2)), mapped(0x80_0000, Some(1))], Vec::new());
    // A return address may be the first behind the mapping.
    let (of_first, of_second) = (ledger(&[0x50_0010, 0x10_5000, 0x60_0001]), ledger(&[]));
    let targets = [
        Unnamed { snapshot: &of_first, space: &first, program: None },
        Unnamed { snapshot: &of_second, space: &second, program: None },
    ];
    let code = Code::of(&targets, &modules);
    let told: Vec<_> = code.modules.iter().map(|module| (&*module.path, module.build_id.as_deref())).collect();
    assert_eq!(told, [("/lib/a", Some(&[0xab, 0xcd][..])), ("/lib/b", None)]);
    let place = |start: u64, module: usize| MappingProfile {
        start,
        end: start + 0x5000,
        offset: 0x1000,
        bias: Some(start.wrapping_sub(0x40_1000)),
        module,
    };
    assert_eq!(
        code.mappings,
        [vec![place(0x10_0000, 0), place(0x50_0000, 1)], vec![place(0x70_0000, 0), place(0x80_0000, 1)]]
    );
}
