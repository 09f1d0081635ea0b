//! Translates a row of DWARF call frame information into a [`Rule`], with the registers of x86-64.

use gimli::{CfaRule, Operation, Register, RegisterRule, UnwindExpression, UnwindSection, X86_64};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register as Name};
use profiler_common::arch::x86_64::{SIGNAL_BP, SIGNAL_IP, SIGNAL_SP};
use profiler_common::unwind::{CallerBp, Cfa, Rule};

use super::row::{Bytes, Context, Row, Unsupported, narrow, operations};

/// `push %rbp; mov %rsp,%rbp`, in both encodings.
pub(super) const PROLOGUES: [[u8; 4]; 2] = [[0x55, 0x48, 0x89, 0xe5], [0x55, 0x48, 0x8b, 0xec]];

/// `mov %eax,%edi; call FUNCTION`
pub(super) fn passes_result_to(code: &[u8], address: u64) -> Option<u64> {
    // mov %eax,%edi; mov %rax,%rdi; movslq %eax,%rdi
    const MOVES: [&[u8]; 3] = [&[0x89, 0xc7], &[0x48, 0x89, 0xc7], &[0x48, 0x63, 0xf8]];
    let (length, call) = MOVES.iter().find_map(|&bytes| Some((bytes.len(), code.strip_prefix(bytes)?)))?;
    let offset = i32::from_le_bytes(*call.strip_prefix(&[0xe8])?.first_chunk()?);
    let next = address.wrapping_add(length as u64 + 5);
    Some(next.wrapping_add_signed(i64::from(offset)))
}

pub(super) fn is_indirect_call(code: &[u8]) -> bool {
    // `ff` with 2 as the middle bits of the next byte; rsp and rbp as bases have other encodings.
    let near = |byte: u8| matches!(byte, 0x10..=0x13 | 0x16 | 0x17 | 0xd0..=0xd7);
    let displaced = |byte: u8| matches!(byte, 0x50..=0x53 | 0x55..=0x57);
    match code {
        [.., 0xff, byte] if near(*byte) => true,
        [.., 0xff, byte, _] => displaced(*byte),
        _ => false,
    }
}

/// Of code before a function's first call.
const PROLOGUE_INSTRUCTIONS_MAX: usize = 64;

/// From pushes, additions to rsp, and a store of rbp.
pub(super) fn rule_at_first_call(code: &[u8], address: u64) -> Option<Rule> {
    let mut sp: i64 = -8;
    let mut bp = CallerBp::Same;
    for instruction in Decoder::with_ip(64, code, address, DecoderOptions::NONE).iter().take(PROLOGUE_INSTRUCTIONS_MAX)
    {
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call | FlowControl::IndirectCall => {
                return Rule::new(Cfa::Sp { offset: i32::try_from(-sp).ok()? }, bp);
            }
            _ => return None,
        }
        if stores_bp(&instruction) {
            let at = sp.checked_add(instruction.memory_displacement64().cast_signed())?;
            bp = CallerBp::AtCfa(i16::try_from(at).ok()?);
        }
        sp = sp.checked_add(i64::from(added_to_sp(&instruction)?))?;
        if instruction.code() == Code::Push_r64 && instruction.op0_register() == Name::RBP {
            bp = CallerBp::AtCfa(i16::try_from(sp).ok()?);
        }
    }
    None
}

/// `mov %rbp,offset(%rsp)`
fn stores_bp(instruction: &Instruction) -> bool {
    instruction.code() == Code::Mov_rm64_r64
        && instruction.op0_kind() == OpKind::Memory
        && instruction.op1_register() == Name::RBP
        && instruction.memory_base() == Name::RSP
        && instruction.memory_index() == Name::None
}

/// `None` if it cannot be seen.
fn added_to_sp(instruction: &Instruction) -> Option<i32> {
    let is_sp = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().full_register() == Name::RSP;
    match instruction.code() {
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if is_sp => {
            i32::try_from(instruction.immediate(1).cast_signed()).ok()?.checked_neg()
        }
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if is_sp => {
            i32::try_from(instruction.immediate(1).cast_signed()).ok()
        }
        Code::Lea_r64_m if is_sp => {
            let is_sum = instruction.memory_base() == Name::RSP && instruction.memory_index() == Name::None;
            is_sum.then(|| i32::try_from(instruction.memory_displacement64().cast_signed()).ok())?
        }
        _ if is_sp && !instruction.is_stack_instruction() => None,
        _ => Some(instruction.stack_pointer_increment()),
    }
}

pub(super) fn translate<'data, S: UnwindSection<Bytes<'data>>>(
    context: &Context<'_, S>,
    row: &Row,
) -> Result<Rule, Unsupported> {
    if context.is_signal {
        return signal(context, row);
    }
    match row.register(X86_64::RA) {
        // `_start` and thread entry code use "undefined" to mark the first frame.
        None | Some(RegisterRule::Undefined) => return Ok(Rule::END),
        Some(RegisterRule::Offset(-8)) => {}
        Some(_) => return Err(Unsupported::ReturnAddress),
    }
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => cfa_of_register(*register, *offset)?,
        CfaRule::Expression(expression) => cfa_of_expression(&operations(context, expression)?)?,
    };
    let bp = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::SameValue) => CallerBp::Same,
        Some(RegisterRule::Offset(offset)) => CallerBp::AtCfa(narrow(offset)?),
        Some(RegisterRule::Expression(expression)) => match operations(context, &expression)?[..] {
            [Operation::RegisterOffset { register: X86_64::RBP, offset, .. }] => CallerBp::AtBp(narrow(offset)?),
            _ => CallerBp::Lost,
        },
        Some(_) => CallerBp::Lost,
    };
    Rule::new(cfa, bp).ok_or(Unsupported::Offset)
}

fn cfa_of_register(register: Register, offset: i64) -> Result<Cfa, Unsupported> {
    let offset = i32::try_from(offset).map_err(|_| Unsupported::Offset);
    match register {
        X86_64::RSP => Ok(Cfa::Sp { offset: offset? }),
        X86_64::RBP => Ok(Cfa::Bp { offset: offset? }),
        X86_64::RBX | X86_64::R12 | X86_64::R13 | X86_64::R14 | X86_64::R15 => Err(Unsupported::PreservedCfa),
        _ => Err(Unsupported::VolatileCfa),
    }
}

fn cfa_of_expression(operations: &[Operation<Bytes<'_>>]) -> Result<Cfa, Unsupported> {
    use Operation::{And, Deref, Ge, Plus, PlusConstant, RegisterOffset, Shl, UnsignedConstant};
    match *operations {
        [RegisterOffset { register, offset, .. }, Deref { size: 8, space: false, .. }, ref rest @ ..] => {
            let add = match *rest {
                [] => 0,
                [PlusConstant { value }] => i16::try_from(value).map_err(|_| Unsupported::Offset)?,
                _ => return Err(Unsupported::CfaExpression),
            };
            let slot = narrow(offset)?;
            match register {
                X86_64::RSP => Ok(Cfa::AtSp { slot, add }),
                X86_64::RBP => Ok(Cfa::AtBp { slot, add }),
                X86_64::RBX | X86_64::R12 | X86_64::R13 | X86_64::R14 | X86_64::R15 => Err(Unsupported::PreservedCfa),
                _ => Err(Unsupported::VolatileCfa),
            }
        }
        // Written by linkers: rsp + 8 + ((rip & 15) >= 11) << 3, with 10 or another threshold if entries differ.
        [
            RegisterOffset { register: X86_64::RSP, offset, .. },
            RegisterOffset { register: X86_64::RA, offset: 0, .. },
            UnsignedConstant { value: 15 },
            And,
            UnsignedConstant { value: threshold @ 0..=15 },
            Ge,
            UnsignedConstant { value: 3 },
            Shl,
            Plus,
        ] => {
            #[expect(clippy::cast_possible_truncation, reason = "at most 15")]
            let threshold = threshold as u8;
            Ok(Cfa::Plt { offset: narrow(offset)?, threshold })
        }
        _ => Err(Unsupported::CfaExpression),
    }
}

/// The C library's signal trampoline describes the kernel's frame with one expression per register.
fn signal<'data, S: UnwindSection<Bytes<'data>>>(context: &Context<'_, S>, row: &Row) -> Result<Rule, Unsupported> {
    let from_sp = |expression: &UnwindExpression<usize>, want: u64, deref: bool| {
        let operations = operations(context, expression)?;
        let [Operation::RegisterOffset { register: X86_64::RSP, offset, .. }, ref rest @ ..] = operations[..] else {
            return Err(Unsupported::SignalFrame);
        };
        let derefs = matches!(rest, [Operation::Deref { size: 8, space: false, .. }]);
        let fits = u64::try_from(offset) == Ok(want) && if deref { derefs } else { rest.is_empty() };
        if fits { Ok(()) } else { Err(Unsupported::SignalFrame) }
    };
    let CfaRule::Expression(cfa) = row.cfa() else { return Err(Unsupported::SignalFrame) };
    from_sp(cfa, SIGNAL_SP, true)?;
    for (register, want) in [(X86_64::RBP, SIGNAL_BP), (X86_64::RA, SIGNAL_IP)] {
        let Some(RegisterRule::Expression(place)) = row.register(register) else {
            return Err(Unsupported::SignalFrame);
        };
        from_sp(&place, want, false)?;
    }
    Ok(Rule::SIGNAL)
}

/// What was pushed at rbp is the frame pointer of the frame that called.
pub(super) fn switched_stack() -> Option<Rule> {
    Rule::new(Cfa::Bp { offset: 16 }, CallerBp::AtCfa(-16))
}
