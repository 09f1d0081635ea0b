//! Virtual machines, which generate code with frames of their own.

use profiler_common::interpreter::{AddressRange, Runtime, runtime_index};

use crate::asm;
use crate::layout::MachineWalk;
use crate::maps::{JAVA_MACHINES, JAVASCRIPT_ENGINES};

/// Initialises the state for a process whose virtual machine has this number.
#[inline(always)]
pub(crate) fn start(state: &mut MachineWalk, number: u32) {
    state.number = 0;
    if number == 0 {
        return;
    }
    let index = runtime_index(number);
    if Runtime::Hotspot.has(number)
        && let Some(machine) = JAVA_MACHINES.get(index)
    {
        let none = AddressRange { start: 0, bytes: 0 };
        asm::copy_ranges(&mut state.code, &[machine.code, none, none]);
        asm::store(&mut state.frozen.chunk, 0);
        asm::store(&mut state.frozen.is_inside, 0);
        asm::store(&mut state.frozen.generated_depth, u64::MAX);
    } else if Runtime::V8.has(number)
        && let Some(engine) = JAVASCRIPT_ENGINES.get(index)
    {
        asm::copy_ranges(&mut state.code, &[engine.generated, engine.builtins[0], engine.builtins[1]]);
        asm::zero(&mut state.maps);
    } else {
        return;
    }
    state.number = number;
}

/// The machine whose code contains the address.
#[inline(always)]
pub(crate) fn with_code(state: &MachineWalk, address: u64) -> Option<Runtime> {
    if state.number == 0 || !state.code.iter().any(|range| range.contains(address)) {
        return None;
    }
    Some(if Runtime::V8.has(state.number) { Runtime::V8 } else { Runtime::Hotspot })
}
