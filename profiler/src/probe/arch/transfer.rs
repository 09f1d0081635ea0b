//! Control transfers: where an instruction continues.

/// What an analysis knows before an instruction.
pub(in crate::probe) trait Known: Copy + PartialEq {
    fn at_entry() -> Self;
    /// Returns what is known on both ways to an instruction.
    fn common(&self, other: &Self) -> Self;
}

/// An executed instruction.
pub(in crate::probe) struct Step {
    /// Address of the instruction that follows in memory.
    pub next: u64,
    pub transfer: Transfer,
}

pub(in crate::probe) enum Transfer {
    /// Execution continues with the instruction that follows in memory.
    Next,
    Return,
    /// The program ends.
    Stop,
    Jump(u64),
    /// Execution continues at the target, unless unknown, or with the following instruction; if only the argument decides, the
    /// branch is taken for it.
    Branch {
        target: Option<u64>,
        taken_if: Option<Argument>,
    },
    Call(u64),
    /// Calls through the word at this address, or through an unknown one.
    CallThrough(Option<u64>),
    JumpThrough(Option<u64>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::probe) enum Argument {
    Null,
    NotNull,
}
