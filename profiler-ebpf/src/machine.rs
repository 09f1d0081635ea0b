//! Virtual machines, which generate code with frames of their own.

use profiler_common::interpreter::{AddressRange, Runtime, runtime_index};

use crate::layout::MachineWalk;
use crate::maps::JAVA_MACHINES;

/// Initialises the state for a process whose virtual machine has this number.
#[inline(always)]
pub(crate) fn start(state: &mut MachineWalk, number: u32) {
    state.number = number;
    state.code = [AddressRange { start: 0, bytes: 0 }; 2];
    if number == 0 {
        return;
    }
    if Runtime::Hotspot.has(number)
        && let Some(machine) = JAVA_MACHINES.get(runtime_index(number))
    {
        state.code[0] = machine.code;
    }
}

/// Whether the address is in the machine's code.
#[inline(always)]
pub(crate) fn has_code(state: &MachineWalk, address: u64) -> bool {
    state.code[0].contains(address) || state.code[1].contains(address)
}
