//! Dead frames of a program that exits. `exit` runs deep in the frames of `main`, which has returned: they are above the
//! stack pointer, but no code will use them.

use heapbpf_base::address::{LinkAddr, TargetAddr};
use heapbpf_base::ids::ModuleId;
use heapbpf_base::memory::{Memory, Span};
use profiler_common::step::{ReadMemory, Registers, Step, step};
use profiler_common::unwind::Rule;
use rustc_hash::FxHashMap;

use super::heap_snapshot::HeapSnapshot;
use crate::collect::ThreadState;
use crate::object::symbols::{DefinedFunction, Search, Symbols};
use crate::process::address_space::Location;
use crate::snapshot::TargetState;
use crate::unwind::{self, Table};

/// Maximum number of frames that are unwound. The C library has two or three between the system call and the caller of `exit`.
const FRAMES_MAX: usize = 16;

/// Names of the functions that make the system call, and of the one that runs handlers before.
const LAST: [&str; 2] = ["_exit", "_Exit"];
const EXIT: &str = "exit";

/// Stack below the frame that called `exit` (that of the program's start, if `main` has returned), as far as it can be
/// unwound. By thread, without overlaps.
pub(super) fn dead_frames(snapshot: &HeapSnapshot) -> Vec<Span> {
    let Some(target) = snapshot.state.targets.first().filter(|_| snapshot.at_exit) else { return Vec::new() };
    let mut code = Code { snapshot, target, modules: FxHashMap::default() };
    let calls = snapshot.collected.threads.iter().filter(|thread| thread.in_syscall);
    calls.filter_map(|thread| code.dead_frames(thread)).collect()
}

struct Code<'a> {
    snapshot: &'a HeapSnapshot,
    target: &'a TargetState,
    modules: FxHashMap<ModuleId, Option<ModuleCode>>,
}

struct ModuleCode {
    /// Functions named in [`LAST`] and [`EXIT`].
    functions: Vec<DefinedFunction>,
    /// Unwind table, built if one of the module's functions is on the stack.
    table: Option<Table>,
}

struct Words<'a>(&'a dyn Memory);

impl ReadMemory for Words<'_> {
    fn read_u64(&self, address: u64) -> Option<u64> {
        self.0.word(TargetAddr(address))
    }
}

impl Code<'_> {
    fn dead_frames(&mut self, thread: &ThreadState) -> Option<Span> {
        let mut registers = Registers {
            ip: thread.instruction.0,
            sp: thread.stack_pointer.0,
            bp: thread.frame_pointer()?,
            link: 0,
            is_return_address: false,
        };
        // Other threads were killed wherever they were.
        if !LAST.contains(&self.function(registers.ip)?) {
            return None;
        }
        for _ in 0..FRAMES_MAX {
            let is_exit = self.function(registers.lookup_address()) == Some(EXIT);
            let rule = self.rule(registers.lookup_address())?;
            let memory = Words(&*self.snapshot.collected.memory);
            let Step::Caller(caller) = step(&registers, rule, &memory) else { return None };
            if is_exit {
                let dead = thread.stack_start()..TargetAddr(caller.sp);
                return (dead.start < dead.end).then_some(dead);
            }
            registers = caller;
        }
        None
    }

    fn function(&mut self, address: u64) -> Option<&'static str> {
        let Location { module, offset } = self.location(address)?;
        let functions = &self.module(module)?.functions;
        let contains = |function: &&DefinedFunction| {
            offset.0.checked_sub(function.offset.0).is_some_and(|inside| inside < function.size_bytes)
        };
        let name = &functions.iter().find(contains)?.name;
        LAST.into_iter().chain([EXIT]).find(|known| known == name)
    }

    fn rule(&mut self, address: u64) -> Option<Rule> {
        let mapped = self.target.space.mappings().iter().find(|mapped| {
            let mapping = &mapped.mapping;
            (mapping.start..mapping.end).contains(&TargetAddr(address))
        })?;
        let module = self.snapshot.state.modules.get(mapped.module?);
        let bias = module.bias(mapped.mapping.start, mapped.mapping.offset)?;
        let code = self.modules.get_mut(&mapped.module?)?.as_mut()?;
        if code.table.is_none() {
            code.table = Some(unwind::build(module.image().ok()?).ok()?);
        }
        code.table.as_ref().map(|table| table.lookup(LinkAddr(address.wrapping_sub(bias))))
    }

    fn location(&self, address: u64) -> Option<Location> {
        self.target.space.lookup(TargetAddr(address))
    }

    fn module(&mut self, id: ModuleId) -> Option<&ModuleCode> {
        let module = self.snapshot.state.modules.get(id);
        let code = self.modules.entry(id).or_insert_with(|| {
            let symbols = Symbols::of(module, &[LAST[0], LAST[1], EXIT], &[], Search::Everything).ok()?;
            Some(ModuleCode { functions: symbols.functions, table: None })
        });
        code.as_ref()
    }
}
