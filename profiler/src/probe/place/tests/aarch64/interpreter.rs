//! Random functions, executed by an interpreter that does not use the decoder: the registers of a placement must hold the
//! arguments, and only the link register the return address.

use proptest::prelude::*;

use super::*;

/// An instruction that the interpreter knows, with register numbers, of which 31 is zero unless the stack pointer is named.
#[derive(Clone, Copy, Debug)]
enum Op {
    Move(u32, u32),
    /// `add` of 0, which can have the stack pointer as an operand.
    MoveOrStack(u32, u32),
    MoveNarrow(u32, u32),
    Constant(u32, u16),
    /// Replaces the second of the four parts of a register.
    Insert(u32, u16),
    /// `add` of a constant, which can have the stack pointer as an operand.
    Add(u32, u32, u16),
    AddRegister(u32, u32, u32),
    Multiply(u32, u32, u32),
    Select(u32, u32, u32, bool),
    Shift(u32, u32),
    Compare(u32),
    Load(u32, u32, u64),
    LoadPair(u32, u32, u64),
    LoadBehind(u32, u32, u64),
    Store(u32, u32),
    /// A store of two registers that is pre-indexed, as at the beginning of a function.
    StorePair(u32, u32),
    Thread(u32),
    Landing,
    Sign,
    /// `adrp`, which is emulated; so is `cbz` below, with its distance in instructions.
    Page(u32),
    BranchIfZero(u32, i8),
}

/// Values of the registers, the last of which is the stack pointer. [`LINK`] has the return address.
type Registers = [u64; 32];
const LINK: usize = 30;
const STACK: usize = 31;
const SAVED: u64 = 0x1111;

struct Machine {
    registers: Registers,
    /// Whether another register or memory has the return address of the entry.
    has_saved_link: bool,
}

impl Op {
    fn encode(self) -> u32 {
        match self {
            Self::Move(to, from) => 0xaa00_03e0 | from << 16 | to,
            Self::MoveOrStack(to, from) => 0x9100_0000 | from << 5 | to,
            Self::MoveNarrow(to, from) => 0x2a00_03e0 | from << 16 | to,
            Self::Constant(to, value) => 0xd280_0000 | u32::from(value) << 5 | to,
            Self::Insert(to, value) => 0xf2a0_0000 | u32::from(value) << 5 | to,
            Self::Add(to, from, value) => 0x9100_0000 | u32::from(value & 0xfff) << 10 | from << 5 | to,
            Self::AddRegister(to, one, other) => 0x8b00_0000 | other << 16 | one << 5 | to,
            Self::Multiply(to, one, other) => 0x9b00_7c00 | other << 16 | one << 5 | to,
            Self::Select(to, one, other, _) => 0x9a80_0000 | other << 16 | one << 5 | to,
            Self::Shift(to, from) => 0xd343_fc00 | from << 5 | to,
            Self::Compare(register) => 0xf100_041f | register << 5,
            Self::Load(to, base, _) => 0xf940_0400 | base << 5 | to,
            Self::LoadPair(one, other, _) => 0xa940_0000 | other << 10 | STACK_NUMBER << 5 | one,
            Self::LoadBehind(to, base, _) => 0xf840_8400 | base << 5 | to,
            Self::Store(from, base) => 0xf900_0400 | base << 5 | from,
            Self::StorePair(one, other) => 0xa9bf_0000 | other << 10 | STACK_NUMBER << 5 | one,
            Self::Thread(to) => 0xd53b_d040 | to,
            Self::Landing => 0xd503_245f,
            Self::Sign => 0xd503_233f,
            Self::Page(to) => 0x9000_0000 | to,
            Self::BranchIfZero(register, distance) => {
                0xb400_0000 | (i32::from(distance).cast_unsigned() & 0x7_ffff) << 5 | register
            }
        }
    }

    fn execute(self, machine: &mut Machine) {
        let before = machine.registers;
        let read = |register: u32| if register == 31 { 0 } else { before[register as usize] };
        let mut write = |register: u32, value: u64| {
            if register != 31 {
                machine.registers[register as usize] = value;
            }
        };
        match self {
            Self::Move(to, from) => write(to, read(from)),
            Self::MoveOrStack(to, from) => machine.registers[to as usize] = before[from as usize],
            Self::MoveNarrow(to, from) => write(to, read(from) & 0xffff_ffff),
            Self::Constant(to, value) => write(to, value.into()),
            Self::Insert(to, value) => write(to, read(to) & !0xffff_0000 | u64::from(value) << 16),
            Self::Add(to, from, value) => {
                machine.registers[to as usize] = before[from as usize].wrapping_add(u64::from(value & 0xfff));
            }
            Self::AddRegister(to, one, other) => write(to, read(one).wrapping_add(read(other))),
            Self::Multiply(to, one, other) => write(to, read(one).wrapping_mul(read(other))),
            Self::Select(to, one, other, first) => write(to, read(if first { one } else { other })),
            Self::Shift(to, from) => write(to, read(from) >> 3),
            Self::Load(to, _, value) => write(to, value),
            Self::LoadPair(one, other, value) => {
                write(one, value);
                write(other, value ^ 1);
            }
            Self::LoadBehind(to, base, value) => {
                machine.registers[base as usize] = before[base as usize].wrapping_add(8);
                if to != 31 {
                    machine.registers[to as usize] = value;
                }
            }
            Self::Store(from, _) => machine.has_saved_link |= read(from) == SAVED,
            Self::StorePair(one, other) => {
                machine.registers[STACK] = before[STACK].wrapping_sub(16);
                machine.has_saved_link |= [one, other].iter().any(|&stored| read(stored) == SAVED);
            }
            Self::Thread(to) => write(to, 0x7777),
            Self::Sign => machine.registers[LINK] ^= 0x5500_0000_0000_0000,
            Self::Page(to) => write(to, ADDRESS.0),
            Self::Compare(_) | Self::Landing | Self::BranchIfZero(..) => {}
        }
    }

    fn is_emulated(self) -> bool {
        matches!(self, Self::Page(_) | Self::BranchIfZero(..))
    }
}

const STACK_NUMBER: u32 = 31;

fn any_op() -> impl Strategy<Value = Op> {
    let register = || prop_oneof![4 => 0_u32..5, 1 => 5_u32..32, 1 => Just(30_u32)];
    let base = || prop_oneof![0_u32..5, Just(31_u32)];
    let pair = move || (register(), register());
    let copies =
        prop_oneof![pair().prop_map(|(a, b)| Op::Move(a, b)), pair().prop_map(|(a, b)| Op::MoveOrStack(a, b)),];
    let spoilers = prop_oneof![
        pair().prop_map(|(a, b)| Op::MoveNarrow(a, b)),
        (register(), any::<u16>()).prop_map(|(a, value)| Op::Constant(a, value)),
        (register(), any::<u16>()).prop_map(|(a, value)| Op::Insert(a, value)),
        (register(), register(), 1_u16..0x1000).prop_map(|(a, b, value)| Op::Add(a, b, value)),
        (register(), register(), register()).prop_map(|(a, b, c)| Op::AddRegister(a, b, c)),
        (register(), register(), register()).prop_map(|(a, b, c)| Op::Multiply(a, b, c)),
        (register(), register(), register(), any::<bool>()).prop_map(|(a, b, c, first)| Op::Select(a, b, c, first)),
        pair().prop_map(|(a, b)| Op::Shift(a, b)),
        (register(), base(), any::<u64>()).prop_map(|(a, b, value)| Op::Load(a, b, value)),
        (register(), register(), any::<u64>()).prop_map(|(a, b, value)| Op::LoadPair(a, b, value)),
        (register(), base(), any::<u64>()).prop_map(|(a, b, value)| Op::LoadBehind(a, b, value)),
        (register(), register()).prop_map(|(a, b)| Op::StorePair(a, b)),
        register().prop_map(Op::Thread),
        Just(Op::Sign),
    ];
    let others = prop_oneof![
        register().prop_map(Op::Compare),
        (register(), base()).prop_map(|(a, b)| Op::Store(a, b)),
        Just(Op::Landing)
    ];
    let emulated = prop_oneof![
        register().prop_map(Op::Page),
        (register(), -20_i8..20).prop_map(|(a, distance)| Op::BranchIfZero(a, distance)),
    ];
    prop_oneof![6 => copies, 3 => spoilers, 2 => others, 1 => emulated]
}

/// Returns register values that differ in every byte.
fn distinct() -> Registers {
    let mut registers: Registers =
        std::array::from_fn(|number| (number as u64 + 1).wrapping_mul(0x1111_1111_1111_1111) ^ 0x8040_2010_0804_0201);
    registers[LINK] = SAVED;
    registers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn placements_name_the_registers_of_the_arguments(
        ops in prop::collection::vec(any_op(), 1..16),
        function in prop::sample::select(functions::C.iter().map(|spec| spec.function).collect::<Vec<_>>()),
    ) {
        let words: Vec<u32> = ops.iter().map(|op| op.encode()).chain([0xd65f_03c0]).collect();
        let spec = spec(function);
        let placement = placed(function, &words).expect("the kernel accepts all of these instructions");
        let index = usize::try_from(placement.offset_in_function).expect("small") / 4;
        // The entry may be single-stepped; a later instruction may not. The last one is `ret`.
        let is_emulated = ops.get(index).is_none_or(|op| op.is_emulated());
        prop_assert_eq!(placement.class == Class::Emulated, is_emulated);
        prop_assert!(index == 0 || is_emulated);
        let is_branch = |op: &Op| matches!(op, Op::BranchIfZero(..));
        prop_assert!(!ops[..index].iter().any(is_branch), "a branch may skip it");
        for (at, op) in (0_i64..).zip(&ops) {
            if let Op::BranchIfZero(_, distance) = op {
                let target = at + i64::from(*distance);
                prop_assert!(index == 0 || target <= 0 || target > index as i64, "a branch leads back to it");
            }
        }

        let entry = distinct();
        let mut machine = Machine { registers: entry, has_saved_link: false };
        ops[..index].iter().for_each(|op| op.execute(&mut machine));
        let arguments = Wanted::of::<Aarch64>(&spec).expect("at most six arguments").arguments;
        let found = placement.arguments;
        let mut claims = vec![(found.count, arguments.count), (found.pointer, arguments.pointer)];
        if spec.shape != CallShape::Free {
            claims.extend([(Some(found.size), Some(arguments.size))]);
            claims.extend(Aarch64::FRAME_REGISTERS.iter().map(|&register| (Some(register), Some(register))));
            let copies = machine.registers.iter().filter(|&&value| value == SAVED).count();
            prop_assert!(!machine.has_saved_link && copies == 1, "the function may return to a saved address");
        }
        for (holder, argument) in claims {
            prop_assert_eq!(holder.is_some(), argument.is_some());
            if let (Some(holder), Some(argument)) = (holder, argument) {
                let [held, expected] = [(holder, machine.registers), (argument, entry)]
                    .map(|(register, registers)| registers[usize::from(register.number())]);
                prop_assert_eq!(held, expected, "{:?} in {:?}", argument, holder);
            }
        }
    }

    #[test]
    fn random_bytes_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        whole in any::<bool>(),
        address in any::<u64>(),
        function in prop::sample::select(functions::C.iter().map(|spec| spec.function).collect::<Vec<_>>()),
    ) {
        let code = Code { bytes: bytes.clone(), whole, address: LinkAddr(address) };
        match place_on::<Aarch64>(&code, &spec(function), PlacementMode::Auto, Emulation { nops: true }) {
            Ok(placement) => {
                let mut boundaries = Aarch64::decode(&bytes, address).map(|found| found.offset());
                prop_assert!(boundaries.any(|at| at == placement.offset_in_function));
                prop_assert!(placement.offset_in_function < DISTANCE_BYTES_MAX as u64);
                prop_assert!(whole || placement.offset_in_function == 0);
                prop_assert!(!placement.instruction.is_empty());
            }
            Err(error) => prop_assert!(matches!(error, PlaceError::Undecodable(_) | PlaceError::Refused(_))),
        }
    }
}
