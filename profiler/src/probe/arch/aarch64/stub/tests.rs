//! Tests that execute stubs.

mod machine;

use profiler_common::arch::aarch64::{ARGUMENTS, STUB_INTERVAL};
use profiler_common::interval::Interval;
use profiler_common::live::LiveKey;
use proptest::prelude::*;

use self::machine::Machine;
use super::routine::low;
use super::*;
use crate::probe::arch::stub::logarithm;

const CODE: u64 = 0x7000_0000_0000;
const TABLE: u64 = CODE;
const DRAW: u64 = CODE + 0x1000;
const STUB: u64 = CODE + 0x2000;
const SLOTS: u64 = CODE + 0x1_0000;
const CONTROL: u64 = CODE + 0x2_0000;
const FILTER: u64 = CODE + 0x10_0000;
const FUNCTION: u64 = CODE + 0x700_0000;
const SIMPLER: u64 = CODE + 0x3000;
const CALLER: u64 = 0x5000_0000_1000;
const STACK: u64 = 0x7fff_0000_1000;
const THREAD: u64 = 0x7fff_8000_0000;
const RSEQ: i32 = -0x4a0;
const CPU: u32 = 3;
const SLOT: u64 = SLOTS + slot::BYTES as u64 * CPU as u64;
const PAGE_BYTES: u64 = 16384;

fn at(field: i32) -> u64 {
    SLOT + u64::from(field.unsigned_abs())
}

const MALLOC: StubFunction<'static> = StubFunction {
    shape: CallShape::Alloc,
    size: 0,
    count: None,
    pointer: None,
    page_rounded: false,
    nothrow: None,
    address: FUNCTION,
    prefix: &[],
    heap_offset: 0,
    simpler: None,
};
const FREE: StubFunction<'static> = StubFunction { shape: CallShape::Free, pointer: Some(0), ..MALLOC };
const REALLOC: StubFunction<'static> =
    StubFunction { shape: CallShape::Realloc, size: 1, pointer: Some(0), simpler: Some(SIMPLER), ..MALLOC };

fn common(index: SlotIndex) -> Common {
    Common { filter: FILTER, control: CONTROL, index, draw: DRAW, page_bytes: PAGE_BYTES }
}

/// A call of a stub.
struct Call {
    machine: Machine,
    /// Probed instructions before the call of the function.
    entries: Vec<u64>,
    returned: Option<u64>,
}

impl Call {
    fn new(function: &StubFunction<'_>, arguments: &[u64]) -> Self {
        Self::with_index(function, arguments, SlotIndex::Rseq(RSEQ))
    }

    fn with_index(function: &StubFunction<'_>, arguments: &[u64], index: SlotIndex) -> Self {
        let common = common(index);
        let routine = Aarch64::stub(STUB, function, &common).expect("it is encoded");
        let mut machine = Machine::at(STUB);
        machine.thread_pointer = THREAD;
        machine.write(STUB, &routine.code);
        machine.write(DRAW, &Aarch64::draw(DRAW, TABLE).expect("it is encoded").code);
        for step in 0..=1_u32 << TABLE_BITS {
            machine.write(TABLE + u64::from(step) * 4, &logarithm(step).to_le_bytes());
        }
        machine.write(THREAD.wrapping_add_signed(RSEQ.into()), &CPU.to_le_bytes());
        machine.x[..arguments.len()].copy_from_slice(arguments);
        (machine.x[30], machine.x[31]) = (CALLER, STACK);
        machine.write(CONTROL + control::BASE as u64, &SLOTS.to_le_bytes());
        let sites =
            |wanted| routine.sites.iter().filter(move |site| site.site == wanted).map(|site| STUB + site.offset);
        Self { machine, entries: sites(Site::StubEntry).collect(), returned: sites(Site::StubReturn).next() }
    }

    fn with_countdown(mut self, countdown: i64, interval: Interval) -> Self {
        self.machine.write(at(slot::COUNTDOWN), &countdown.to_le_bytes());
        self.machine.write(at(slot::INTERVAL), &u64::from(interval.bytes()).to_le_bytes());
        self.machine.write(at(slot::CODE), &interval.code().to_le_bytes());
        self.machine.write(at(slot::NEXT_CODE), &interval.code().to_le_bytes());
        self
    }

    /// Returns whether the call reaches the probe; otherwise it continues in the function. Either finds what the caller has
    /// passed.
    fn is_probed(&mut self) -> bool {
        let before = self.machine.x;
        let ends: Vec<u64> = self.entries.iter().copied().chain([FUNCTION]).collect();
        let reached = self.machine.run_to(&ends);
        for register in ARGUMENTS.map(|register| usize::from(register.number())).into_iter().chain([18, 29, 30, 31]) {
            assert_eq!(self.machine.x[register], before[register], "x{register}");
        }
        reached != FUNCTION
    }

    fn countdown(&self) -> i64 {
        self.machine.long(at(slot::COUNTDOWN)).cast_signed()
    }

    fn interval_code(&self) -> u64 {
        self.machine.x[usize::from(STUB_INTERVAL.number())]
    }
}

proptest! {
    #[test]
    fn frees_reach_the_probe_unless_the_filter_excludes_the_block(
        address in 1_u64..1 << 48, tag: u8, count in 0_u64..3, hash: u32, is_its_own: bool,
    ) {
        let key = LiveKey::new(0, address);
        let slot = if is_its_own { key.filter_word() } else { count << 48 | u64::from(hash) };
        let mut call = Call::new(&FREE, &[address | u64::from(tag) << 56]);
        call.machine.write(FILTER + u64::from(key.filter_slot()) * 8, &slot.to_le_bytes());
        prop_assert_eq!(call.is_probed(), !key.is_excluded_by(slot));
    }

    #[test]
    fn countdowns_are_drawn_from_the_exponential_distribution(random: u64, code in 1_u32..1 << 15, shift in 0_u32..15) {
        let (interval, before) = (Interval::from_code(shift << 15 | code), Interval::nearest(4096));
        let mut call = Call::new(&MALLOC, &[24]).with_countdown(8, before);
        call.machine.write(at(slot::NEXT_CODE), &interval.code().to_le_bytes());
        call.machine.write(at(slot::RANDOM), &random.to_le_bytes());
        prop_assert!(call.is_probed());
        prop_assert_eq!(call.interval_code(), u64::from(before.code()));
        prop_assert_eq!(call.machine.long(at(slot::INTERVAL)), u64::from(interval.bytes()));
        prop_assert_eq!(call.machine.word(at(slot::CODE)), interval.code());
        let mut state = random.wrapping_add(RANDOM_INCREMENT);
        prop_assert_eq!(call.machine.long(at(slot::RANDOM)), state);
        for (shift, factor) in RANDOM_MIXES {
            state = (state ^ state >> shift).wrapping_mul(factor.unwrap_or(1));
        }
        #[expect(clippy::cast_precision_loss, reason = "compared with a tolerance")]
        let (uniform, drawn) = ((state | 1) as f64 / 2_f64.powi(64), call.countdown() as f64);
        let (mean, expected) = (f64::from(interval.bytes()), -uniform.ln() * f64::from(interval.bytes()));
        prop_assert!((drawn - expected).abs() <= 1.0 + mean * 3e-6, "{} instead of {}", drawn, expected);
    }

    #[test]
    fn constants_are_loaded(constant: u64, shift in 0_u32..64, negative: i32) {
        for constant in [constant, constant >> shift, i64::from(negative).cast_unsigned()] {
            let mut stub = Stub::new(STUB);
            stub.load(12, constant);
            let mut machine = Machine::at(STUB);
            let code = stub.finish().expect("it is encoded").code;
            machine.write(STUB, &code);
            machine.run_to(&[STUB + code.len() as u64]);
            prop_assert_eq!(machine.x[12], constant);
        }
    }
}

#[test]
fn calls_count_their_bytes_down() {
    let interval = Interval::nearest(4096);
    let mut call = Call::new(&MALLOC, &[100]).with_countdown(1000, interval);
    assert!(!call.is_probed());
    assert_eq!((call.countdown(), call.machine.long(at(slot::CALLS))), (900, 1));
    // The countdown may reach 0, and 0 bytes count as 1.
    let mut last = Call::new(&MALLOC, &[0]).with_countdown(1, interval);
    assert!(!last.is_probed() && last.countdown() == 0);
    let mut sampled = Call::new(&MALLOC, &[1]).with_countdown(0, interval);
    assert!(sampled.is_probed() && sampled.interval_code() == u64::from(interval.code()));
    // Large blocks are sampled in any case.
    let mut large = Call::new(&MALLOC, &[4096]).with_countdown(1 << 20, interval);
    assert!(large.is_probed());
    let by_thread = SlotIndex::Thread(4);
    let mut call = Call::with_index(&MALLOC, &[1], by_thread);
    let hash = low((THREAD >> 8).wrapping_mul(FILTER_SPREAD), 32) >> 28;
    let slot = SLOTS + u64::from(hash) * slot::BYTES as u64;
    call.machine.write(slot, &i64::MAX.to_le_bytes());
    call.machine.write(slot + u64::from(slot::INTERVAL.unsigned_abs()), &u64::MAX.to_le_bytes());
    assert!(!call.is_probed());
    assert_eq!(call.machine.long(slot), i64::MAX.cast_unsigned() - 1);
}

#[test]
fn sampled_calls_return_through_a_probe() {
    let mut call = Call::new(&MALLOC, &[64]).with_countdown(0, Interval::EXACT);
    call.machine.x[29] = STACK + 64;
    assert!(call.is_probed());
    assert_eq!(call.machine.run_to(&[FUNCTION]), FUNCTION);
    // The function has a frame record below, whose caller is the stub's.
    assert_eq!(call.machine.x[31], STACK - 16);
    assert_eq!(
        [call.machine.long(call.machine.x[29]), call.machine.long(call.machine.x[29] + 8)],
        [STACK + 64, CALLER]
    );
    call.machine.x[0] = 0x1234;
    call.machine.pc = call.machine.x[30];
    let returned = call.returned.expect("it has a second probe");
    assert_eq!(call.machine.run_to(&[returned]), returned);
    let [result, frame, link, sp] = [0, 29, 30, 31].map(|register: usize| call.machine.x[register]);
    assert_eq!([result, frame, link, sp], [0x1234, STACK + 64, CALLER, STACK]);
    assert_eq!(call.machine.run_to(&[CALLER]), CALLER);
}

#[test]
fn sizes_are_products_and_whole_pages() {
    let interval = Interval::nearest(1 << 20);
    let used = |function: &StubFunction<'_>, arguments: &[u64]| {
        let mut call = Call::new(function, arguments).with_countdown(1 << 20, interval);
        assert!(!call.is_probed());
        (1 << 20) - call.countdown()
    };
    let calloc = StubFunction { size: 1, count: Some(0), ..MALLOC };
    assert_eq!(used(&calloc, &[7, 9]), 63);
    // The call will fail.
    assert_eq!(used(&calloc, &[1 << 32, 1 << 32]), 0);
    let pvalloc = StubFunction { page_rounded: true, ..MALLOC };
    assert_eq!(used(&pvalloc, &[1]), 16384);
    assert_eq!(used(&pvalloc, &[16385]), 32768);
}

#[test]
fn functions_that_may_throw_are_called_in_a_form_that_does_not() {
    const NOTHROW: u64 = FUNCTION + 0x1000;
    const GET_HANDLER: u64 = FUNCTION + 0x2000;
    let interval = Interval::nearest(1 << 20);
    let nothrow = Some(Nothrow { function: NOTHROW, argument: 1, get_handler: GET_HANDLER });
    let sampled = || Call::new(&StubFunction { nothrow, ..MALLOC }, &[100, 8]).with_countdown(0, interval);
    let with_handler = |set: u64| {
        let mut call = sampled();
        assert_eq!(call.machine.run_to(&[GET_HANDLER]), GET_HANDLER);
        let back = call.machine.x[30];
        call.machine.x[..19].fill(7);
        (call.machine.x[0], call.machine.pc) = (set, back);
        call
    };
    let end = |call: &mut Call, result: u64| {
        assert_eq!(call.machine.run_to(&call.entries), call.entries[0]);
        assert_eq!((call.interval_code(), call.machine.x[30]), (interval.code().into(), CALLER));
        assert_eq!(call.machine.run_to(&[NOTHROW]), NOTHROW);
        assert_eq!(call.machine.x[0], 100);
        // The nothrow function may change all registers that a call need not preserve.
        let back = call.machine.x[30];
        call.machine.x[..19].fill(7);
        (call.machine.x[0], call.machine.pc) = (result, back);
        let end = call.machine.run_to(&[CALLER, FUNCTION]);
        assert_eq!([30, 31].map(|register: usize| call.machine.x[register]), [CALLER, STACK]);
        (end, call.machine.x[0], call.machine.long(at(slot::LEFT)))
    };
    assert_eq!(end(&mut with_handler(0), 0x5000), (CALLER, 0x5000, 0));
    // If the nothrow function fails, the function itself is called.
    let mut failed = with_handler(0);
    assert_eq!(end(&mut failed, 0), (FUNCTION, 100, 1));
    assert_eq!(failed.machine.x[1], 8);
    let mut left = with_handler(0x6000);
    assert_eq!(left.machine.run_to(&[FUNCTION, NOTHROW]), FUNCTION);
    assert_eq!(
        (&left.machine.x[..2], left.machine.x[30], left.machine.long(at(slot::LEFT))),
        (&[100, 8][..], CALLER, 1)
    );
}

#[test]
fn reallocations_free_and_allocate() {
    const BLOCK: u64 = 0x5555_0000_1230;
    let interval = Interval::nearest(4096);
    let key = LiveKey::new(0, BLOCK);
    let call = |countdown, is_live: bool| {
        let mut call = Call::new(&REALLOC, &[BLOCK, 100]).with_countdown(countdown, interval);
        let word = if is_live { key.filter_word() } else { 0 };
        call.machine.write(FILTER + u64::from(key.filter_slot()) * 8, &word.to_le_bytes());
        (call.is_probed(), call.interval_code(), call.countdown())
    };
    assert_eq!(call(1000, false), (false, 0, 900));
    // The old block was sampled, the new one is not.
    assert_eq!(call(1000, true), (true, 0, 900));
    let (is_probed, code, _) = call(0, false);
    assert_eq!((is_probed, code), (true, interval.code().into()));
    // Calls with a null pointer are allocations.
    let mut null = Call::new(&REALLOC, &[0, 100]);
    assert_eq!(null.machine.run_to(&[SIMPLER, FUNCTION]), SIMPLER);
    assert_eq!(null.machine.x[0], 100);
    let array = StubFunction { count: Some(1), size: 2, ..REALLOC };
    let mut product = Call::new(&array, &[BLOCK, 3, 5]);
    assert_eq!(product.machine.run_to(&[SIMPLER, FUNCTION]), SIMPLER);
    assert_eq!(product.machine.x[..2], [BLOCK, 15]);
    let mut overflow = Call::new(&array, &[BLOCK, 1 << 32, 1 << 32]);
    assert_eq!(overflow.machine.run_to(&[SIMPLER, FUNCTION]), FUNCTION);
    assert_eq!(overflow.machine.x[..3], [BLOCK, 1 << 32, 1 << 32]);
}

fn code(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn instructions_are_executed_elsewhere() {
    // The code at the function's address, and the stub, end at the same places with the same registers.
    let prefixes: [&[u32]; 7] = [
        // cbz x1, .+0x100; cbnz w1, .+0x200
        &[0xb400_0801, 0x3500_1001],
        // tbz x1, #40, .+0x100; tbnz w1, #3, .+0x200
        &[0xb640_0801, 0x3718_1001],
        // cmp x1, #5; b.hs .+0x100
        &[0xf100_143f, 0x5400_07e2],
        // cmp x1, #5; b.ne .+0x100
        &[0xf100_143f, 0x5400_07e1],
        // adrp x9, .+0x3000; adr x10, .+4
        &[0xb000_0009, 0x1000_002a],
        // b .+0x100
        &[0x1400_0040],
        // stp x29, x30, [sp, #-32]!; add x9, x1, #5
        &[0xa9be_7bfd, 0x9100_1429],
    ];
    for prefix in prefixes {
        let bytes = code(prefix);
        let function = StubFunction { prefix: &bytes, ..FREE };
        for argument in [0, 5, 8, 1 << 40, u64::MAX] {
            let ends = [FUNCTION + bytes.len() as u64, FUNCTION + 0x100, FUNCTION + 0x104, FUNCTION + 0x204];
            let mut call = Call::new(&function, &[1, argument]);
            let mut original = call.machine.clone();
            original.pc = FUNCTION;
            original.write(FUNCTION, &bytes);
            let expected = original.run_to(&ends);
            assert_eq!(call.machine.run_to(&ends), expected, "{prefix:x?} of {argument:#x}");
            let of = |machine: &Machine| [0, 1, 29, 30, 31].map(|register: usize| machine.x[register]);
            assert_eq!(of(&call.machine), of(&original), "{prefix:x?} of {argument:#x}");
            if prefix.contains(&0x1000_002a) {
                assert_eq!(call.machine.x[9..=10], original.x[9..=10]);
            }
        }
    }
}

#[test]
fn other_code_is_refused() {
    let refusal = |word: u32| {
        let bytes = code(&[0xd503_201f, word]);
        let function = StubFunction { prefix: &bytes, ..FREE };
        let common = common(SlotIndex::Thread(4));
        Aarch64::stub(STUB, &function, &common).expect_err("it cannot be moved").to_string()
    };
    // bl, ret, blr, ldr of a literal, branch backwards, invalid
    for (word, reason) in [
        (0x9400_0004, "calls a function"),
        (0xd65f_03c0, "returns before the probe"),
        (0xd63f_0000, "calls a function"),
        (0x5800_0040, "literal"),
        (0x54ff_ffe0, "loop"),
        (0x0300_0000, "invalid"),
    ] {
        assert!(refusal(word).contains(reason), "{word:#010x}: {}", refusal(word));
    }
    let far = StubFunction { address: STUB + Aarch64::REACH_BYTES + 8, ..FREE };
    let common = common(SlotIndex::Thread(4));
    assert!(matches!(Aarch64::stub(STUB, &far, &common), Err(StubError::Encode(_))));
}

/// Data alone switches stubs off: they continue at the function's entry instead of behind its probe.
#[test]
fn stubs_that_are_switched_off_continue_at_the_entry_of_their_function() {
    const IDLE: u64 = SLOTS + 0x1000;
    let prefix = code(&[0xd503_201f]);
    for function in [MALLOC, FREE, REALLOC] {
        let function = StubFunction { prefix: &prefix, ..function };
        for (base, bypassed, continues_at) in [(SLOTS, 0_u64, FUNCTION + 4), (IDLE, 1, FUNCTION)] {
            let mut call = Call::new(&function, &[4096, 64]).with_countdown(i64::MAX, Interval::from_code(0x4fff));
            call.machine.write(CONTROL + control::BASE as u64, &base.to_le_bytes());
            call.machine.write(CONTROL + control::BYPASSED as u64, &bypassed.to_le_bytes());
            let before = call.machine.x[..8].to_vec();
            let ends: Vec<u64> = call.entries.iter().copied().chain([FUNCTION, FUNCTION + 4]).collect();
            assert_eq!(call.machine.run_to(&ends), continues_at, "{:?}", function.shape);
            assert_eq!(call.machine.x[..8], before, "{:?}", function.shape);
        }
    }
}
