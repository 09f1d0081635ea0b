//! Where an instruction continues.

/// What is known before an instruction.
pub(in crate::probe) trait Known: Copy + PartialEq {
    fn at_entry() -> Self;
    /// What both know.
    fn common(&self, other: &Self) -> Self;
}

/// An executed instruction.
pub(in crate::probe) struct Step {
    /// Address of the instruction behind it.
    pub next: u64,
    pub transfer: Transfer,
}

pub(in crate::probe) enum Transfer {
    /// To the instruction behind it.
    Next,
    Return,
    /// The program ends.
    Stop,
    Jump(u64),
    /// To the target, unless unknown, or to the instruction behind it; if only the argument decides, the jump is taken for it.
    Branch {
        target: Option<u64>,
        taken_if: Option<Argument>,
    },
    Call(u64),
    /// Calls or jumps through the word at this address, or an unknown one.
    CallThrough(Option<u64>),
    JumpThrough(Option<u64>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::probe) enum Argument {
    Null,
    NotNull,
}
