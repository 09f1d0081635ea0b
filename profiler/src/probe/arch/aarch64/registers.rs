//! What instructions do to registers.

use profiler_common::arch::aarch64::{
    REGISTERS, STACK_POINTER, X19, X20, X21, X22, X23, X24, X25, X26, X27, X28, X29, X30,
};
use profiler_common::hook::Register;

use crate::arch::aarch64::{Control, Move, Word};
use crate::probe::arch::origins::Origins;

/// Register with the return address of a call.
pub(super) const LINK: Register = X30;
/// Registers that a called function preserves (AAPCS64, 6.1.1).
pub(super) const PRESERVED: [Register; 12] = [X19, X20, X21, X22, X23, X24, X25, X26, X27, X28, X29, STACK_POINTER];

/// Applies what the instruction does to registers; a call returns with the registers that the calling convention preserves.
///
/// The link register is known only as long as nothing else may have its value: a function that has saved it returns to the saved
/// address, whatever a return probe writes into the register.
pub(super) fn step_over(word: Word, control: Control, origins: &mut Origins) {
    if word.reads_link() {
        origins.forget(LINK);
    }
    match word.as_move() {
        Some(Move { to, from }) => origins.copy(to, from),
        None => word.writes().iter().for_each(|register| origins.forget(register)),
    }
    if matches!(control, Control::Call(_) | Control::CallThrough(_) | Control::SystemCall) {
        let all = (0..REGISTERS).map(Register::from_number);
        all.filter(|register| !PRESERVED.contains(register)).for_each(|register| origins.forget(register));
    }
}
