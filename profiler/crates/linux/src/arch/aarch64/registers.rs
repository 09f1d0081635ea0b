//! Registers, and the frame from which the kernel restores them. This file makes no system calls, so that its tests run on every
//! CPU.

/// Machine code of `mov x8, #139` (`rt_sigreturn`), `svc #0`: the end of each signal handler, in the vDSO and in musl.
pub const RETURN_FROM_SIGNAL: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

pub const SYSCALL_INSTRUCTION: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];

/// Registers of a stopped thread, in the order of their sets ([`REGISTER_SETS`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// General registers; the fields up to `pstate` are `struct user_pt_regs` (arch/arm64/include/uapi/asm/ptrace.h).
    x: [u64; 31],
    sp: u64,
    pc: u64,
    pstate: u64,
    /// Value of `TPIDR_EL0`.
    thread_pointer: u64,
    /// Number of the current system call. Negative outside of system calls, and as soon as a stop has interrupted one.
    syscall: i32,
    interrupted: Option<Interrupted>,
}

/// Values that the registers at the exit of an interrupted system call lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interrupted {
    /// First argument, which is missing because the result is in the same register.
    first_argument: u64,
    /// Number of the call itself, if it was restarted by `restart_syscall`.
    number: u64,
}

/// Kinds of the register sets, and their sizes in bytes: general registers, `NT_ARM_TLS`, `NT_ARM_SYSTEM_CALL`.
pub const REGISTER_SETS: [(i32, usize); 3] = [(1, 34 * 8), (0x401, 8), (NT_ARM_SYSTEM_CALL, 4)];
const NT_ARM_SYSTEM_CALL: i32 = 0x404;

const _: () = assert!(std::mem::offset_of!(Registers, thread_pointer) == REGISTER_SETS[0].1);
const _: () = assert!(std::mem::offset_of!(Registers, syscall) == REGISTER_SETS[0].1 + REGISTER_SETS[1].1);

/// Index of x29 in [`Registers::general`].
pub const FRAME_POINTER_INDEX: usize = 29;

/// Indexes of the registers with the result, the number of a system call, and the return address.
const RESULT: usize = 0;
const NUMBER: usize = 8;
const RETURN: usize = 30;

/// Index of the argument that is hidden: a stop at a system call shows another value in x7, and ignores changes of it
/// (`report_syscall` in arch/arm64/kernel/ptrace.c).
const HIDDEN: usize = 7;

/// Bits of `pstate` that are not kept: single step, illegal execution state, and the kind of the last branch (`PSR_BTYPE_MASK`).
const NOT_KEPT: u64 = 1 << 21 | 1 << 20 | 3 << 10;

/// Errors of system calls that the kernel restarts: `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`, and
/// `ERESTART_RESTARTBLOCK` (include/linux/errno.h).
const RESTARTED: [i64; 4] = [-512, -513, -514, -516];
const INTERRUPTED: i64 = -4;

/// A system call, as `/proc/PID/syscall` shows it while a thread waits in it (`proc_pid_syscall` in fs/proc/base.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    number: i64,
    arguments: [u64; 6],
    sp: u64,
    pc: u64,
}

impl Call {
    /// Parses the text of `/proc/PID/syscall`. `None` for a thread that runs, or does not wait in a system call.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok().filter(|&number| number >= 0)?;
        let mut word = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let arguments = [word()?, word()?, word()?, word()?, word()?, word()?];
        Some(Self { number, arguments, sp: word()?, pc: word()? })
    }

    pub(super) fn number(&self) -> i64 {
        self.number
    }
}

impl Registers {
    /// The first argument of a system call, if `call` is the last one that was made at this instruction.
    pub(super) fn first_argument_of(&self, call: &Call) -> Option<u64> {
        let [first, others @ ..] = call.arguments;
        let is_same = (self.number(), self.sp, self.pc) == (call.number, call.sp, call.pc) && self.x[1..6] == others;
        is_same.then_some(first)
    }

    /// All registers that may contain pointers.
    pub fn general(&self) -> [u64; 32] {
        let mut all = [self.sp; 32];
        all[..31].copy_from_slice(&self.x);
        all
    }

    pub fn instruction(&self) -> u64 {
        self.pc
    }

    pub fn stack_pointer(&self) -> u64 {
        self.sp
    }

    pub fn thread_pointer(&self) -> u64 {
        self.thread_pointer
    }

    /// Number of the system call that the thread is in; `None` also if the stop has interrupted it.
    pub fn syscall(&self) -> Option<i64> {
        Some(i64::from(self.syscall)).filter(|&number| number >= 0)
    }

    /// Number of the system call that was interrupted, if the instruction before is a system call.
    pub(super) fn number(&self) -> i64 {
        self.x[NUMBER].cast_signed()
    }

    /// Whether the last system call failed with `EINTR`, if the thread was in one.
    pub(super) fn has_failed(&self) -> bool {
        self.x[RESULT].cast_signed() == INTERRUPTED
    }

    /// Adds the first argument of the interrupted system call, which restoring the registers has to preserve in the kernel.
    pub fn with_first_argument(mut self, first_argument: u64) -> Self {
        self.interrupted = Some(Interrupted { first_argument, number: self.x[NUMBER] });
        self
    }

    pub fn first_argument(&self) -> Option<u64> {
        self.interrupted.map(|call| call.first_argument)
    }

    /// Registers of a stop at the exit of a system call that was interrupted `before`, with the register that the stop hides.
    pub fn at_exit(mut self, before: &Self, first_argument: u64) -> Self {
        self.x[HIDDEN] = before.x[HIDDEN];
        self.interrupted = Some(Interrupted { first_argument, number: before.x[NUMBER] });
        self
    }

    /// Returns the registers with which the thread makes the interrupted system call again.
    fn rewound(mut self, call: Interrupted) -> Self {
        self.pc = self.pc.wrapping_sub(SYSCALL_INSTRUCTION.len() as u64);
        (self.x[RESULT], self.x[NUMBER]) = (call.first_argument, call.number);
        self.interrupted = None;
        self
    }

    /// Registers for making this system call by the instruction at `instruction`. Keeps stack and thread pointer.
    pub fn for_syscall(&self, instruction: u64, number: i64, arguments: [u64; 6]) -> Self {
        let mut new = Self { sp: self.sp, pc: instruction, pstate: self.pstate & !NOT_KEPT, ..Self::default() };
        (new.thread_pointer, new.syscall) = (self.thread_pointer, self.syscall);
        new.x[..6].copy_from_slice(&arguments);
        // The hidden register is kept: it could not be changed back at a stop at a system call.
        new.x[HIDDEN] = self.x[HIDDEN];
        new.x[NUMBER] = number.cast_unsigned();
        new
    }

    /// Registers for returning to `restorer`, with a [signal frame](Self::signal_frame) at `address`.
    pub fn with_way_back(mut self, address: u64, restorer: u64) -> Self {
        self.sp = address;
        self.x[RETURN] = restorer;
        self
    }

    /// Registers with which the kernel would continue the thread: an interrupted system call is about to be made again. A system
    /// call with a timeout starts anew, because `rt_sigreturn` makes the kernel forget how much of it is left.
    fn continued(&self) -> Self {
        let result = self.x[RESULT].cast_signed();
        match self.interrupted {
            Some(call) if result == INTERRUPTED || RESTARTED.contains(&result) => self.rewound(call),
            _ => *self,
        }
    }

    /// Registers to restore at a stop that has not interrupted the same system call.
    pub fn at_other_stop(&self) -> Self {
        self.continued()
    }

    /// A frame as the kernel writes it for a signal handler (`struct rt_sigframe` in arch/arm64/kernel/signal.c): `rt_sigreturn`
    /// with the stack pointer there restores these registers, the signal mask, and `extended`. `None` if the registers are not of a
    /// known form, or take more space than the frame has.
    pub fn signal_frame(&self, _address: u64, _restorer: u64, blocked: u64, extended: &[u64]) -> Option<Vec<u64>> {
        /// Invalid stack, which the kernel ignores, so that the alternate stack stays as it is (`restore_altstack` in
        /// kernel/signal.c).
        const INVALID_STACK: u64 = 0x7fff_ffff;
        const MASK: usize = 21;
        /// Index of the registers, which follow the address of a fault.
        const REGISTERS: usize = 39;
        let records = records(extended)?;
        let Self { x, sp, pc, pstate, .. } = self.continued();
        let mut words = vec![0; RECORDS];
        words[MASK - 2] = INVALID_STACK;
        words[MASK] = blocked;
        words[REGISTERS..][..31].copy_from_slice(&x);
        words[REGISTERS + 31..][..3].copy_from_slice(&[sp, pc, pstate]);
        words.extend(records);
        Some(words)
    }
}

/// Alignment of a signal frame: that of a stack.
pub const FRAME_ALIGNMENT: u64 = 16;

/// Number of words before the records of `struct sigcontext`, and maximum number of words of the records.
const RECORDS: usize = 74;
const RECORDS_MAX: usize = 4096 / 8;

/// Registers of floating-point numbers and vectors, as sets and as records of a signal frame
/// (arch/arm64/include/uapi/asm/sigcontext.h).
const VECTOR_WORDS: usize = 64;
const FPSIMD_WORDS: usize = VECTOR_WORDS + 2;
const FPSIMD_MAGIC: u64 = 0x4650_8001;
const SVE_MAGIC: u64 = 0x5356_4501;

/// Size of the header of the set `NT_ARM_SVE`, which the record has, too.
const SVE_HEADER_WORDS: usize = 2;

/// Whether the set `NT_ARM_SVE` has registers of the Scalable Vector Extension (`SVE_PT_REGS_SVE`): whether the thread uses them.
pub fn uses_sve(set: &[u64]) -> bool {
    // The set of floating-point registers, which has no header, is shorter than one with scalable registers.
    set.len() > FPSIMD_WORDS && set[1] >> 32 & 1 != 0
}

/// Returns one or two records of extended registers, and the record that ends them.
fn records(extended: &[u64]) -> Option<Vec<u64>> {
    let mut records = Vec::new();
    if extended.len() == FPSIMD_WORDS {
        push_fpsimd(&mut records, extended[..VECTOR_WORDS].iter().copied(), extended[VECTOR_WORDS]);
    } else {
        let length_bytes = (*extended.get(1)? & 0xffff) as usize;
        if !uses_sve(extended) || length_bytes == 0 || !length_bytes.is_multiple_of(16) {
            return None;
        }
        let vectors = &extended[SVE_HEADER_WORDS..];
        // 32 vectors; 16 predicates and the first-fault register with a bit per byte; padding up to 16 bytes.
        let words = 4 * length_bytes + (17 * length_bytes / 8).next_multiple_of(16) / 8;
        let (sve, status) = (vectors.get(..words)?, vectors.get(words)?);
        let low = vectors[..4 * length_bytes].chunks(length_bytes / 8).flat_map(|vector| &vector[..2]).copied();
        push_fpsimd(&mut records, low, *status);
        let size_bytes = 8 * (SVE_HEADER_WORDS + words) as u64;
        records.extend([SVE_MAGIC | size_bytes << 32, length_bytes as u64]);
        records.extend(sve);
    }
    records.extend([0; 2]);
    (records.len() <= RECORDS_MAX).then_some(records)
}

fn push_fpsimd(records: &mut Vec<u64>, vectors: impl Iterator<Item = u64>, status: u64) {
    records.extend([FPSIMD_MAGIC | (8 * FPSIMD_WORDS as u64) << 32, status]);
    records.extend(vectors);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> Registers {
        let mut registers = Registers { sp: 0x7000, pc: 0x1000, pstate: 0x6020_0c00, ..Registers::default() };
        registers.x = std::array::from_fn(|number| 100 + number as u64);
        registers
    }

    #[test]
    fn a_thread_in_a_call_has_its_registers_except_those_that_the_call_needs() {
        let call = registers().for_syscall(0x2000, 64, [1, 2, 3, 4, 5, 6]);
        assert_eq!(call.x[..9], [1, 2, 3, 4, 5, 6, 0, 107, 64], "x7 cannot be changed back");
        assert!(call.x[9..].iter().all(|&word| word == 0));
        assert_eq!((call.instruction(), call.stack_pointer(), call.pstate), (0x2000, 0x7000, 0x6000_0000));
        let returning = call.with_way_back(0x6000, 0x3000);
        assert_eq!((returning.x[30], returning.stack_pointer()), (0x3000, 0x6000));
    }

    #[test]
    fn a_restarted_call_is_made_again_with_its_first_argument() {
        let check = |result: i64, argument: Option<u64>, expected: (u64, u64)| {
            let mut registers = registers();
            registers.x[0] = result.cast_unsigned();
            let continued =
                argument.map_or(registers, |argument| registers.with_first_argument(argument)).at_other_stop();
            assert_eq!((continued.pc, continued.x[0]), expected, "{result}");
        };
        for result in [-4, -512, -513, -514, -516] {
            check(result, Some(3), (0x0ffc, 3));
            check(result, None, (0x1000, result.cast_unsigned()));
        }
        check(17, Some(3), (0x1000, 17));
        check(-11, Some(3), (0x1000, (-11_i64).cast_unsigned()));
    }

    #[test]
    fn the_first_argument_of_a_call_is_known_from_before() {
        let call = "22 0x4d 0xffffc32200e8 0x1 0xffffffffffffffff 0x0 0x8 0xffffc3220050 0x4430f4\n";
        let call = Call::parse(call).expect("a call");
        assert_eq!(call.number(), 22);
        let mut stopped = Registers { sp: 0xffff_c322_0050, pc: 0x0044_30f4, ..Registers::default() };
        stopped.x[..6].copy_from_slice(&[(-4_i64).cast_unsigned(), 0xffff_c322_00e8, 1, u64::MAX, 0, 8]);
        stopped.x[NUMBER] = 22;
        assert_eq!(stopped.first_argument_of(&call), Some(0x4d));
        for change in [
            |it: &mut Registers| it.x[1] += 8,
            |it: &mut Registers| it.x[NUMBER] = 21,
            |it: &mut Registers| it.sp += 16,
            |it: &mut Registers| it.pc += 4,
        ] {
            let mut other = stopped;
            change(&mut other);
            assert_eq!(other.first_argument_of(&call), None);
        }
        for text in ["running\n", "-1 0xffffc3220050 0x4430f4\n", "22 0x4d\n", ""] {
            assert_eq!(Call::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_call_that_is_restarted_by_another_is_itself_made_again() {
        let before = Registers { pc: 0x0ffc, ..registers() };
        let mut exit = registers();
        (exit.x[0], exit.x[7], exit.x[8]) = ((-516_i64).cast_unsigned(), 1, 128);
        let exit = exit.at_exit(&before, 100);
        assert_eq!((exit.x[7], exit.x[8], exit.first_argument()), (107, 128, Some(100)));
        assert_eq!(exit.at_other_stop(), before);
    }

    /// `struct rt_sigframe`: offsets in bytes.
    #[test]
    fn a_signal_frame_is_as_the_kernel_writes_it() {
        let mut extended: Vec<u64> = (0..66).map(|word| 1000 + word).collect();
        // Would be a flag in the header of scalable registers.
        extended[1] |= 1 << 32;
        assert!(!uses_sve(&extended));
        let words = registers().signal_frame(0, 0, 0xabcd, &extended).expect("known");
        let at = |offset: usize| words[offset / 8];
        assert_eq!((at(128), at(152), at(168)), (0, 0x7fff_ffff, 0xabcd), "flags, stack, mask");
        assert_eq!((at(312), at(552)), (100, 130), "x0, x30");
        assert_eq!((at(560), at(568), at(576)), (0x7000, 0x1000, 0x6020_0c00), "sp, pc, pstate");
        assert_eq!((at(592), at(600)), (0x210_4650_8001, 1064), "header, status");
        assert_eq!((at(608), at(1112)), (1000, 1063), "v0, v31");
        assert_eq!((words.len() * 8, at(1120)), (1136, 0), "the end");
    }

    #[test]
    fn scalable_vectors_are_restored_from_a_record_of_their_own() {
        // Vectors of 32 bytes; 17 predicates of 4 bytes, padded to 80.
        let mut set = vec![0, 32 | 32 << 16 | 1 << 32];
        set.extend((0..128).map(|word| word + 1));
        set.extend([7; 10]);
        set.push(0x55);
        assert!(uses_sve(&set));
        let words = registers().signal_frame(0, 0, 0, &set).expect("known");
        let records = &words[RECORDS..];
        assert_eq!(records[..6], [0x210_4650_8001, 0x55, 1, 2, 5, 6], "the lower halves");
        assert_eq!(records[66..69], [SVE_MAGIC | (16 + 1024 + 80) << 32, 32, 1]);
        assert_eq!(records[66 + 2 + 128..], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0]);
    }

    #[test]
    fn registers_of_another_form_give_no_frame() {
        let frame = |extended: &[u64]| registers().signal_frame(0, 0, 0, extended);
        assert_eq!(frame(&[]), None);
        assert_eq!(frame(&[0; 65]), None);
        let set = |length_bytes: u64, words: usize| {
            let mut set = vec![0, length_bytes | 1 << 32];
            set.resize(words, 0);
            set
        };
        assert!(frame(&set(16, 74)).is_some());
        assert_eq!(frame(&set(32, 74)), None, "too short");
        assert_eq!(frame(&set(24, 200)), None, "no such length");
        // Vectors of 256 bytes exceed the frame.
        let mut large = vec![0, 256 | 1 << 32];
        large.resize(2 + 1024 + 68 + 1, 0);
        assert_eq!(frame(&large), None);
    }

    #[test]
    fn the_last_instructions_of_a_handler_are_found() {
        let [number, call] = [0, 4].map(|at| u32::from_le_bytes(*RETURN_FROM_SIGNAL[at..].first_chunk().expect("4")));
        assert_eq!((number, call.to_le_bytes()), (0xd280_0008 | 139 << 5, SYSCALL_INSTRUCTION));
    }

    #[test]
    fn the_result_of_a_call_tells_what_interrupted_it() {
        let mut registers = Registers { syscall: -1, ..registers() };
        assert_eq!((registers.syscall(), registers.number(), registers.has_failed()), (None, 108, false));
        (registers.x[0], registers.syscall) = ((-4_i64).cast_unsigned(), 93);
        assert_eq!((registers.syscall(), registers.has_failed()), (Some(93), true));
        let with = registers.with_first_argument(9);
        assert_eq!((with.first_argument(), with.at_other_stop().first_argument()), (Some(9), None));
        assert_eq!((with.thread_pointer(), with.general()[FRAME_POINTER_INDEX], with.general()[31]), (0, 129, 0x7000));
        assert_eq!(FRAME_ALIGNMENT % 16, 0);
    }
}
