//! Translates a row of DWARF call frame information into a [`Rule`], with the registers of aarch64
//! (<https://github.com/ARM-software/abi-aa/blob/2025Q1/aadwarf64/aadwarf64.rst>), and reads instructions.

use gimli::{AArch64, CfaRule, Operation, Register, RegisterRule, UnwindSection};
use profiler_common::arch::aarch64::{SP, X29, X30};
use profiler_common::unwind::{CallerBp, Cfa, ReturnAddress, Rule};

use super::row::{Bytes, Context, Row, Unsupported, narrow, operations};
use crate::arch::aarch64::{Control, INSTRUCTION_BYTES, Word};

/// `mov x29, sp`
pub(super) const PROLOGUES: [[u8; 4]; 1] = [0x9100_03fd_u32.to_le_bytes()];

/// `mov x8, #139; svc #0`: in the vDSO since Linux 5.10, and in musl, without unwind information. The kernel places a `nop` before
/// it, for unwinders that search for the address before a return address (arch/arm64/kernel/vdso/sigreturn.S).
pub(super) const SIGNAL_TRAMPOLINE: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// `bl FUNCTION`: results and first arguments are in the same register.
pub(super) fn passes_result_to(code: &[u8], address: u64) -> Option<u64> {
    match Word::read(code).filter(|_| address.is_multiple_of(INSTRUCTION_BYTES))?.control(address) {
        Control::Call(function) => Some(function),
        _ => None,
    }
}

/// `blr`, also with authentication (`blraa` and others).
pub(super) fn is_indirect_call(code: &[u8]) -> bool {
    let last = code.last_chunk::<4>().and_then(|bytes| Word::read(bytes));
    last.is_some_and(|word| matches!(word.control(0), Control::CallThrough(_)))
}

/// Of code before a function's first call.
const PROLOGUE_INSTRUCTIONS_MAX: usize = 64;

/// From what is added to and subtracted from sp, and stores of x29 and x30.
pub(super) fn rule_at_first_call(code: &[u8]) -> Option<Rule> {
    let mut sp = 0_i64;
    let (mut bp, mut address) = (CallerBp::Same, None);
    for (_, word) in Word::all(code, 0).take(PROLOGUE_INSTRUCTIONS_MAX) {
        match word.control(0) {
            Control::Next => {}
            Control::Call(_) | Control::CallThrough(_) => {
                let offset = i32::try_from(-sp).ok()?;
                return Rule::with_return_address(Cfa::Sp { offset }, bp, ReturnAddress::AtCfa(address?));
            }
            _ => return None,
        }
        match word.as_addition() {
            Some((SP, SP, added)) => sp += added.cast_signed(),
            Some((SP, _, _)) => return None,
            _ => {}
        }
        let Some((store, adds)) = word.as_store().filter(|(store, _)| store.base == SP) else { continue };
        for (register, distance) in store.words() {
            let place = i16::try_from(sp + distance);
            match register {
                X29 => bp = CallerBp::AtCfa(place.ok()?),
                X30 => address = Some(place.ok()?),
                _ => {}
            }
        }
        sp += if adds { store.distance } else { 0 };
    }
    None
}

/// A frame record, and nothing else of the frame.
pub(super) fn switched_stack() -> Option<Rule> {
    Rule::with_return_address(Cfa::Bp { offset: 16 }, CallerBp::AtCfa(-16), ReturnAddress::AtCfa(-8))
}

pub(super) fn translate<'data, S: UnwindSection<Bytes<'data>>>(
    context: &Context<'_, S>,
    row: &Row,
) -> Result<Rule, Unsupported> {
    if context.is_signal {
        // The vDSO's before Linux 5.10. It describes the frame record that the kernel adds, and so no interrupted registers.
        return Ok(Rule::SIGNAL);
    }
    let address = match row.register(AArch64::X30) {
        // `_start` and thread entry code mark the first frame.
        Some(RegisterRule::Undefined) => return Ok(Rule::END),
        None | Some(RegisterRule::SameValue) => ReturnAddress::Link,
        Some(RegisterRule::Offset(offset)) => ReturnAddress::AtCfa(narrow(offset)?),
        Some(_) => return Err(Unsupported::ReturnAddress),
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => cfa_of_register(*register, *offset)?,
        CfaRule::Expression(_) => return Err(Unsupported::CfaExpression),
    };
    let bp = match row.register(AArch64::X29) {
        None | Some(RegisterRule::SameValue) => CallerBp::Same,
        Some(RegisterRule::Offset(offset)) => CallerBp::AtCfa(narrow(offset)?),
        Some(RegisterRule::Expression(expression)) => match operations(context, &expression)?[..] {
            [Operation::RegisterOffset { register: AArch64::X29, offset, .. }] => CallerBp::AtBp(narrow(offset)?),
            _ => CallerBp::Lost,
        },
        Some(_) => CallerBp::Lost,
    };
    Rule::with_return_address(cfa, bp, address).ok_or(Unsupported::Offset)
}

fn cfa_of_register(register: Register, offset: i64) -> Result<Cfa, Unsupported> {
    let offset = i32::try_from(offset).map_err(|_| Unsupported::Offset);
    match register {
        AArch64::SP => Ok(Cfa::Sp { offset: offset? }),
        AArch64::X29 => Ok(Cfa::Bp { offset: offset? }),
        Register(19..=28) => Err(Unsupported::PreservedCfa),
        _ => Err(Unsupported::VolatileCfa),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(instructions: &[u32]) -> Vec<u8> {
        instructions.iter().flat_map(|instruction| instruction.to_le_bytes()).collect()
    }

    #[test]
    fn calls() {
        // bl +0x10; bl -4; b +0x10
        assert_eq!(passes_result_to(&code(&[0x9400_0004]), 0x1000), Some(0x1010));
        assert_eq!(passes_result_to(&code(&[0x97ff_ffff]), 0x1000), Some(0xffc));
        assert_eq!(passes_result_to(&code(&[0x1400_0004]), 0x1000), None);
        assert_eq!(passes_result_to(&code(&[0x9400_0004]), 0x1002), None);
        // blr x3; blraaz x3; br x3; ret
        assert!(is_indirect_call(&code(&[0xd63f_0060])));
        assert!(is_indirect_call(&code(&[0xd63f_087f])));
        assert!(!is_indirect_call(&code(&[0xd61f_0060])));
        assert!(!is_indirect_call(&code(&[0xd65f_03c0])));
    }

    #[test]
    fn the_rule_at_a_call_follows_the_code_before_it() {
        // sub sp, sp, #192; stp x29, x30, [sp, #176]; add x29, sp, #176; blr x0 (Go's crosscall2)
        let crosscall = code(&[0xd103_03ff, 0xa90b_7bfd, 0x9102_c3fd, 0xd63f_0000]);
        let expected =
            Rule::with_return_address(Cfa::Sp { offset: 192 }, CallerBp::AtCfa(-16), ReturnAddress::AtCfa(-8));
        assert_eq!(rule_at_first_call(&crosscall), expected);
        // stp x29, x30, [sp, #-32]!; mov x29, sp; nop; bl
        let ordinary = code(&[0xa9be_7bfd, 0x9100_03fd, 0xd503_201f, 0x9400_0004]);
        let expected =
            Rule::with_return_address(Cfa::Sp { offset: 32 }, CallerBp::AtCfa(-32), ReturnAddress::AtCfa(-24));
        assert_eq!(rule_at_first_call(&ordinary), expected);
        // str x30, [sp, #-16]!; bl
        let expected = Rule::with_return_address(Cfa::Sp { offset: 16 }, CallerBp::Same, ReturnAddress::AtCfa(-16));
        assert_eq!(rule_at_first_call(&code(&[0xf81f_0ffe, 0x9400_0004])), expected);
        // cbz x0, +8; bl
        assert_eq!(rule_at_first_call(&code(&[0xf81f_0ffe, 0xb400_0040, 0x9400_0004])), None);
        // bl, with the return address in the link register
        assert_eq!(rule_at_first_call(&code(&[0x9400_0004])), None);
    }
}
