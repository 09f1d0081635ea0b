//! Follows the control flow of a function through its machine code.

use std::collections::hash_map::Entry;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use profiler_common::hook::Register;
use rustc_hash::FxHashMap;

use super::x86_64::Origins;

/// Access to a module's code by link address.
pub(crate) trait ReadCode {
    /// Bytes from this address on: at least one instruction, unless the address is not in code.
    fn code_at(&mut self, address: u64) -> Option<&[u8]>;
    /// Whether a function starts here. Execution does not fall through into it: a call before it does not return.
    fn is_start(&self, address: u64) -> bool;
    /// Whether a hooked function that allocates starts here. Its own code is not followed.
    fn is_hooked(&self, address: u64) -> bool;
}

/// What a function may do in its own frame, as far as its code shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Hooked functions that it jumps to.
    pub hooked: Vec<u64>,
    /// Targets and return addresses of its direct calls.
    pub calls: Vec<(u64, u64)>,
    /// Slots of memory through which it calls or jumps: those of imported functions.
    pub slots: Vec<u64>,
    /// It calls or jumps to addresses in registers or elsewhere in memory, or its code cannot be decoded.
    pub is_incomplete: bool,
    /// It may return, itself or by a jump to another function.
    pub returns: bool,
}

/// What is known before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    origins: Origins,
    /// The instruction before has compared the argument with null.
    is_tested: bool,
}

struct Walk<'a> {
    start: u64,
    /// This argument is not null.
    not_null: Option<Register>,
    seen: FxHashMap<u64, State>,
    pending: Vec<u64>,
    flow: Flow,
    budget: &'a mut usize,
}

/// Follows all paths from `start`, each instruction of `budget` at most a few times. With `not_null`, paths are left out that are
/// taken only if the argument in this register is null.
pub(crate) fn follow(code: &mut impl ReadCode, start: u64, not_null: Option<Register>, budget: &mut usize) -> Flow {
    let state = State { origins: Origins::at_entry(), is_tested: false };
    let seen = FxHashMap::from_iter([(start, state)]);
    let mut walk = Walk { start, not_null, seen, pending: vec![start], flow: Flow::default(), budget };
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

impl Walk<'_> {
    fn visit(&mut self, code: &mut impl ReadCode, address: u64) {
        let decoded =
            code.code_at(address).map(|bytes| Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode());
        let Some(instruction) = decoded.filter(|instruction| !instruction.is_invalid()) else {
            (self.flow.is_incomplete, self.flow.returns) = (true, true);
            return;
        };
        let Some(&state) = self.seen.get(&address) else { return };
        let mut after = state;
        after.is_tested = self.tests(&instruction, &state);
        after.origins.step_over(&instruction);
        let next = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::Interrupt => self.fall_through(code, next, after),
            FlowControl::Return => self.flow.returns = true,
            FlowControl::Exception => {}
            FlowControl::UnconditionalBranch => self.jump(code, instruction.near_branch_target(), after),
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                let is_equal = instruction.mnemonic() == Mnemonic::Je;
                let is_unequal = instruction.mnemonic() == Mnemonic::Jne;
                if !(state.is_tested && is_equal) && is_near(&instruction) {
                    self.jump(code, instruction.near_branch_target(), after);
                }
                if !(state.is_tested && is_unequal) {
                    self.fall_through(code, next, after);
                }
            }
            FlowControl::Call => {
                // `syscall` has no target.
                if is_near(&instruction) {
                    self.flow.calls.push((instruction.near_branch_target(), next));
                }
                self.fall_through(code, next, after);
            }
            FlowControl::IndirectCall => {
                self.leave(&instruction);
                self.fall_through(code, next, after);
            }
            FlowControl::IndirectBranch => {
                self.flow.returns = true;
                self.leave(&instruction);
            }
        }
    }

    /// Whether the instruction compares the argument with null.
    fn tests(&self, instruction: &Instruction, state: &State) -> bool {
        let is_test = instruction.code() == Code::Test_rm64_r64
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register();
        is_test && self.not_null.is_some_and(|argument| state.origins.is_copy(instruction.op0_register(), argument))
    }

    fn leave(&mut self, instruction: &Instruction) {
        if instruction.is_ip_rel_memory_operand() {
            self.flow.slots.push(instruction.ip_rel_memory_address());
        } else {
            self.flow.is_incomplete = true;
        }
    }

    fn jump(&mut self, code: &impl ReadCode, target: u64, state: State) {
        if code.is_hooked(target) && target != self.start {
            self.flow.hooked.push(target);
            self.flow.returns = true;
        } else {
            self.reach(target, state);
        }
    }

    fn fall_through(&mut self, code: &impl ReadCode, next: u64, state: State) {
        if !code.is_start(next) && !code.is_hooked(next) {
            self.reach(next, state);
        }
    }

    /// Visits an address again if less is known there than before.
    fn reach(&mut self, address: u64, state: State) {
        match self.seen.entry(address) {
            Entry::Vacant(vacant) => {
                vacant.insert(state);
                self.pending.push(address);
            }
            Entry::Occupied(mut occupied) => {
                let before = *occupied.get();
                let merged = State {
                    origins: before.origins.common(&state.origins),
                    is_tested: before.is_tested && state.is_tested,
                };
                if merged != before {
                    occupied.insert(merged);
                    self.pending.push(address);
                }
            }
        }
    }
}

fn is_near(instruction: &Instruction) -> bool {
    matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}
