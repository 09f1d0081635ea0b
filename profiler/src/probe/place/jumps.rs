//! Whether a function jumps back into its own beginning.

use iced_x86::{FlowControl, Instruction, OpKind};

use super::{Function, decode, offset};

/// Whether some jump or call of the function may lead behind its entry and not behind `end`, an offset from the entry.
///
/// True also where that cannot be seen: where bytes are no instructions, and at a jump through a register or a table, which
/// may lead anywhere. One through a fixed place in memory (`jmp *slot(%rip)`) calls another function: compilers index
/// tables of labels by a register.
pub(super) fn lead_into(function: &Function<'_>, end: u64) -> bool {
    let mut seen = 0;
    for instruction in decode(function) {
        if may_lead_into(function, &instruction, end) {
            return true;
        }
        seen = offset(function, &instruction).wrapping_add(instruction.len() as u64);
    }
    seen != function.bytes.len() as u64
}

fn may_lead_into(function: &Function<'_>, instruction: &Instruction, end: u64) -> bool {
    match instruction.flow_control() {
        FlowControl::IndirectBranch => !instruction.is_ip_rel_memory_operand(),
        // Branches and calls, and `xbegin`, which names where a broken-off transaction continues.
        _ => {
            let direct =
                matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64);
            direct && (1..=end).contains(&instruction.near_branch_target().wrapping_sub(function.address.0))
        }
    }
}
