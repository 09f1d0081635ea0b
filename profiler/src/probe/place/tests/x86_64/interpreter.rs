//! Random functions, executed by an interpreter that does not use the decoder: the registers of a placement must hold the
//! arguments.

#![expect(
    clippy::cast_possible_truncation,
    reason = "registers are numbered up to 15, and halves of products are meant"
)]

use proptest::prelude::*;

use profiler_common::arch::x86_64::{RBP, RSP};

use super::*;

/// An instruction that the interpreter knows, with register numbers.
#[derive(Clone, Copy, Debug)]
enum Op {
    Move64(usize, usize),
    /// `mov` of 64 bits in the encoding with exchanged operands.
    Move64Loading(usize, usize),
    Move32(usize, usize),
    Move16(usize, usize),
    /// `mov` of the lowest bytes.
    Move8(usize, usize),
    /// `mov` of the lowest byte of a register to bits 8 to 16 of one of the first four registers.
    MoveHigh(usize, usize),
    Exchange64(usize, usize),
    Exchange64Rax(usize),
    Exchange32(usize, usize),
    /// `cmove`; the flag is its condition.
    MoveIf(usize, usize, bool),
    Clear(usize),
    Add(usize, i8),
    Load(usize, u64),
    Multiply(usize),
    Push(usize),
    Pop(usize),
    Test(usize),
    Endbr,
    Nop,
    /// `je` with its displacement.
    JumpIf(i8),
}

/// Values of the registers.
type Registers = [u64; 16];
const STACK: usize = 4;

impl Op {
    /// Returns a `REX.W`-style prefix for a ModRM byte of two registers, the opcode, and that byte.
    fn two(prefix: u8, opcode: &[u8], reg: usize, rm: usize) -> Vec<u8> {
        let rex = prefix | if reg > 7 { 4 } else { 0 } | u8::from(rm > 7);
        let modrm = 0xc0 | ((reg as u8 & 7) << 3) | (rm as u8 & 7);
        [&[rex], opcode, &[modrm]].concat()
    }

    fn encode(self) -> Vec<u8> {
        let short = |opcode: u8, register: usize| match register {
            8.. => vec![0x41, opcode + (register as u8 & 7)],
            _ => vec![opcode + register as u8],
        };
        match self {
            Self::Move64(to, from) => Self::two(0x48, &[0x89], from, to),
            Self::Move64Loading(to, from) => Self::two(0x48, &[0x8b], to, from),
            Self::Move32(to, from) => Self::two(0x40, &[0x89], from, to),
            Self::Move16(to, from) => [vec![0x66], Self::two(0x40, &[0x89], from, to)].concat(),
            Self::Move8(to, from) => Self::two(0x40, &[0x88], from, to),
            Self::MoveHigh(to, from) => vec![0x88, 0xc0 | ((from as u8 & 3) << 3) | (4 + (to as u8 & 3))],
            Self::Exchange64(one, other) => Self::two(0x48, &[0x87], one, other),
            Self::Exchange64Rax(other) => vec![0x48 | u8::from(other > 7), 0x90 + (other as u8 & 7)],
            Self::Exchange32(one, other) => Self::two(0x40, &[0x87], one, other),
            Self::MoveIf(to, from, _) => Self::two(0x48, &[0x0f, 0x44], to, from),
            Self::Clear(register) => Self::two(0x40, &[0x31], register, register),
            Self::Add(register, number) => [Self::two(0x48, &[0x83], 0, register), vec![number as u8]].concat(),
            Self::Load(register, _) => {
                // From (%rsp): the only base that needs a second byte.
                vec![0x48 | if register > 7 { 4 } else { 0 }, 0x8b, 0x04 | ((register as u8 & 7) << 3), 0x24]
            }
            Self::Multiply(register) => Self::two(0x48, &[0xf7], 4, register),
            Self::Push(register) => short(0x50, register),
            Self::Pop(register) => short(0x58, register),
            Self::Test(register) => Self::two(0x48, &[0x85], register, register),
            Self::Endbr => vec![0xf3, 0x0f, 0x1e, 0xfa],
            Self::Nop => vec![0x90],
            Self::JumpIf(distance) => vec![0x74, distance as u8],
        }
    }

    fn execute(self, registers: &mut Registers) {
        let low = |value: u64, bits: u32| value & ((1 << bits) - 1);
        match self {
            Self::Move64(to, from) | Self::Move64Loading(to, from) => registers[to] = registers[from],
            Self::Move32(to, from) => registers[to] = low(registers[from], 32),
            Self::Move16(to, from) => registers[to] = registers[to] & !0xffff | low(registers[from], 16),
            Self::Move8(to, from) => registers[to] = registers[to] & !0xff | low(registers[from], 8),
            Self::MoveHigh(to, from) => {
                registers[to & 3] = registers[to & 3] & !0xff00 | low(registers[from & 3], 8) << 8;
            }
            Self::Exchange64(one, other) => registers.swap(one, other),
            Self::Exchange64Rax(other) => registers.swap(0, other),
            Self::Exchange32(one, other) => {
                registers.swap(one, other);
                registers[one] = low(registers[one], 32);
                registers[other] = low(registers[other], 32);
            }
            Self::MoveIf(to, from, moves) => registers[to] = registers[if moves { from } else { to }],
            Self::Clear(register) => registers[register] = 0,
            Self::Add(register, number) => registers[register] = registers[register].wrapping_add_signed(number.into()),
            Self::Load(register, value) => registers[register] = value,
            Self::Multiply(register) => {
                let product = u128::from(registers[0]) * u128::from(registers[register]);
                registers[0] = product as u64;
                registers[2] = (product >> 64) as u64;
            }
            Self::Push(_) => registers[STACK] = registers[STACK].wrapping_sub(8),
            Self::Pop(register) => {
                registers[STACK] = registers[STACK].wrapping_add(8);
                // A different value.
                registers[register] = registers[register].wrapping_add(0x5555);
            }
            Self::Test(_) | Self::Endbr | Self::Nop | Self::JumpIf(_) => {}
        }
    }

    fn emulated(self) -> bool {
        matches!(self, Self::Push(_) | Self::Nop | Self::JumpIf(_))
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    let register = || 0_usize..16;
    let pair = || (0_usize..16, 0_usize..16);
    let copies = prop_oneof![
        pair().prop_map(|(a, b)| Op::Move64(a, b)),
        pair().prop_map(|(a, b)| Op::Move64Loading(a, b)),
        pair().prop_map(|(a, b)| Op::Exchange64(a, b)),
        // 48 90 is a nop with a prefix.
        (1_usize..16).prop_map(Op::Exchange64Rax),
    ];
    let spoilers = prop_oneof![
        pair().prop_map(|(a, b)| Op::Move32(a, b)),
        pair().prop_map(|(a, b)| Op::Move16(a, b)),
        pair().prop_map(|(a, b)| Op::Move8(a, b)),
        pair().prop_map(|(a, b)| Op::MoveHigh(a, b)),
        pair().prop_map(|(a, b)| Op::Exchange32(a, b)),
        (pair(), any::<bool>()).prop_map(|((a, b), moves)| Op::MoveIf(a, b, moves)),
        register().prop_map(Op::Clear),
        (register(), any::<i8>()).prop_map(|(a, number)| Op::Add(a, number)),
        (register(), any::<u64>()).prop_map(|(a, value)| Op::Load(a, value)),
        register().prop_map(Op::Multiply),
        register().prop_map(Op::Pop),
    ];
    let others = prop_oneof![register().prop_map(Op::Test), Just(Op::Endbr)];
    let emulated = prop_oneof![register().prop_map(Op::Push), Just(Op::Nop), (-60_i8..60).prop_map(Op::JumpIf),];
    prop_oneof![6 => copies, 3 => spoilers, 1 => others, 1 => emulated]
}

/// Returns the offsets of the operations, and all bytes with a final `ret`.
fn assemble(ops: &[Op]) -> (Vec<usize>, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut offsets = Vec::new();
    for op in ops {
        offsets.push(bytes.len());
        bytes.extend(op.encode());
    }
    bytes.push(0xc3);
    (offsets, bytes)
}

/// Returns register values that differ in every byte.
fn distinct() -> Registers {
    std::array::from_fn(|number| (number as u64 + 1).wrapping_mul(0x1111_1111_1111_1111) ^ 0x8040_2010_0804_0201)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn placements_name_the_registers_of_the_arguments(
        ops in prop::collection::vec(any_op(), 1..16),
        function in prop::sample::select(functions::C.iter().map(|spec| spec.function).collect::<Vec<_>>()),
    ) {
        let (offsets, bytes) = assemble(&ops);
        let spec = spec(function);
        let placement = placed(function, &bytes).expect("it begins with an instruction");
        let offset = usize::try_from(placement.offset_in_function).expect("small");
        let index = offsets.iter().position(|&at| at == offset).expect("between two operations");
        // The entry may be single-stepped; a later instruction may not.
        prop_assert_eq!(placement.class == Class::Emulated, ops[index].emulated());
        prop_assert!(index == 0 || ops[index].emulated());
        let is_branch = |op: &Op| matches!(op, Op::JumpIf(_));
        prop_assert!(!ops[..index].iter().any(is_branch), "a branch may skip it");
        for (op, at) in ops.iter().zip(&offsets) {
            if let Op::JumpIf(distance) = op {
                let target = *at as i64 + 2 + i64::from(*distance);
                prop_assert!(target <= 0 || target > offset as i64, "a branch leads back to it");
            }
        }

        let entry = distinct();
        let mut registers = entry;
        ops[..index].iter().for_each(|op| op.execute(&mut registers));
        let arguments = entry_arguments(function);
        let found = placement.arguments;
        let mut claims = vec![(found.count, arguments.count), (found.pointer, arguments.pointer)];
        if spec.shape != CallShape::Free {
            claims.extend([(Some(found.size), Some(arguments.size))]);
            claims.extend([RSP, RBP].map(|register| (Some(register), Some(register))));
        }
        for (holder, argument) in claims {
            prop_assert_eq!(holder.is_some(), argument.is_some());
            if let (Some(holder), Some(argument)) = (holder, argument) {
                prop_assert_eq!(registers[usize::from(holder.number())], entry[usize::from(argument.number())], "{:?} in {:?}", argument, holder);
            }
        }
    }

    #[test]
    fn the_decoder_finds_all_instructions(ops in prop::collection::vec(any_op(), 1..16)) {
        let (offsets, bytes) = assemble(&ops);
        let read: Vec<usize> = X86_64::decode(&bytes, ADDRESS.0).map(|found| found.offset() as usize).collect();
        prop_assert_eq!(&read[..offsets.len()], &offsets);
    }

    #[test]
    fn random_bytes_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        whole in any::<bool>(),
        address in any::<u64>(),
        function in prop::sample::select(functions::C.iter().map(|spec| spec.function).collect::<Vec<_>>()),
    ) {
        let code = Code { bytes: bytes.clone(), whole, address: LinkAddr(address) };
        match place_on::<X86_64>(&code, &spec(function), PlacementMode::Auto, Emulation { nops: true }) {
            Ok(placement) => {
                let mut boundaries = X86_64::decode(&bytes, address).map(|found| found.offset());
                prop_assert!(boundaries.any(|at| at == placement.offset_in_function));
                prop_assert!(placement.offset_in_function < DISTANCE_BYTES_MAX as u64);
                prop_assert!(whole || placement.offset_in_function == 0);
                prop_assert!(!placement.instruction.is_empty());
            }
            Err(error) => prop_assert!(matches!(error, PlaceError::Undecodable(_))),
        }
    }
}
