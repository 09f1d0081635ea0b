//! Follows the control flow of a function through its machine code.

use std::collections::hash_map::Entry;

use profiler_common::hook::Register;
use rustc_hash::FxHashMap;

use super::instruction_set::InstructionSet;
use super::transfer::{Argument, Known as _, Step, Transfer};

/// Access to a module's code by link address.
pub(crate) trait ReadCode {
    /// Bytes of code from this address on: at least one instruction, unless the address is not in code.
    fn code_at(&mut self, address: u64) -> Option<&[u8]>;
    /// Whether a function starts at this address. Execution does not fall through into it: a call before it does not return.
    fn is_start(&self, address: u64) -> bool;
    /// Whether a hooked function that allocates starts at this address. The code of such a function is not followed.
    fn is_hooked(&self, address: u64) -> bool;
}

/// Actions of a function in its own frame, as far as its code shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Hooked functions to which the function jumps.
    pub hooked: Vec<u64>,
    /// Targets and return addresses of the function's direct calls.
    pub calls: Vec<(u64, u64)>,
    /// Slots of memory through which the function calls or jumps: those of imported functions.
    pub slots: Vec<u64>,
    /// Whether the function calls or jumps to addresses in registers or elsewhere in memory, or its code cannot be decoded.
    pub is_incomplete: bool,
    /// Whether the function may return, itself or by a jump to another function.
    pub returns: bool,
}

struct Walk<'a, I: InstructionSet> {
    start: u64,
    /// Register of the argument that is not null.
    not_null: Option<Register>,
    seen: FxHashMap<u64, I::Known>,
    pending: Vec<u64>,
    flow: Flow,
    budget: &'a mut usize,
}

/// Follows all paths from `start`, each instruction of `budget` at most a few times. With `not_null`, leaves out paths that are
/// taken only if the argument in this register is null.
pub(in crate::probe) fn follow<I: InstructionSet>(
    code: &mut impl ReadCode,
    start: u64,
    not_null: Option<Register>,
    budget: &mut usize,
) -> Flow {
    let seen = FxHashMap::from_iter([(start, I::Known::at_entry())]);
    let mut walk = Walk::<I> { start, not_null, seen, pending: vec![start], flow: Flow::default(), budget };
    while let Some(address) = walk.pending.pop() {
        if *walk.budget == 0 {
            (walk.flow.is_incomplete, walk.flow.returns) = (true, true);
            break;
        }
        *walk.budget -= 1;
        walk.visit(code, address);
    }
    walk.flow.calls.sort_unstable();
    walk.flow.calls.dedup();
    walk.flow
}

impl<I: InstructionSet> Walk<'_, I> {
    fn visit(&mut self, code: &mut impl ReadCode, address: u64) {
        let Some(&before) = self.seen.get(&address) else { return };
        let mut known = before;
        let step = code.code_at(address).and_then(|bytes| I::step(bytes, address, &mut known, self.not_null));
        let Some(Step { next, transfer }) = step else {
            (self.flow.is_incomplete, self.flow.returns) = (true, true);
            return;
        };
        match transfer {
            Transfer::Next => self.fall_through(code, next, known),
            Transfer::Return => self.flow.returns = true,
            Transfer::Stop => {}
            Transfer::Jump(target) => self.jump(code, target, known),
            Transfer::Branch { target, taken_if } => {
                if let Some(target) = target.filter(|_| taken_if != Some(Argument::Null)) {
                    self.jump(code, target, known);
                }
                if taken_if != Some(Argument::NotNull) {
                    self.fall_through(code, next, known);
                }
            }
            Transfer::Call(target) => {
                self.flow.calls.push((target, next));
                self.fall_through(code, next, known);
            }
            Transfer::CallThrough(slot) => {
                self.leave(slot);
                self.fall_through(code, next, known);
            }
            Transfer::JumpThrough(slot) => {
                self.flow.returns = true;
                self.leave(slot);
            }
        }
    }

    fn leave(&mut self, slot: Option<u64>) {
        match slot {
            Some(slot) => self.flow.slots.push(slot),
            None => self.flow.is_incomplete = true,
        }
    }

    fn jump(&mut self, code: &impl ReadCode, target: u64, known: I::Known) {
        if code.is_hooked(target) && target != self.start {
            self.flow.hooked.push(target);
            self.flow.returns = true;
        } else {
            self.reach(target, known);
        }
    }

    fn fall_through(&mut self, code: &impl ReadCode, next: u64, known: I::Known) {
        if !code.is_start(next) && !code.is_hooked(next) {
            self.reach(next, known);
        }
    }

    /// Visits an address, again if less is known there than before.
    fn reach(&mut self, address: u64, known: I::Known) {
        match self.seen.entry(address) {
            Entry::Vacant(vacant) => {
                vacant.insert(known);
                self.pending.push(address);
            }
            Entry::Occupied(mut occupied) => {
                let before = *occupied.get();
                let merged = before.common(&known);
                if merged != before {
                    occupied.insert(merged);
                    self.pending.push(address);
                }
            }
        }
    }
}
