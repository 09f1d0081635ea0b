//! Tests with synthetic memory, and with memory of programs that use glibc and musl.

use heapbpf_base::address::FileOffset;
use heapbpf_base::memory::Copied;
use proptest::prelude::*;

use super::super::Method;
use super::*;
use crate::collect::tests::fixture::{Subject, collect_here};

fn region(start: u64, end: u64, kind: RegionKind) -> Region {
    let [readable, writable, executable, shared] = [true, true, false, false];
    let (start, end) = (TargetAddr(start), TargetAddr(end));
    Region { start, end, readable, writable, executable, shared, offset: FileOffset(0), kind }
}

fn anonymous(start: u64, end: u64) -> Region {
    region(start, end, RegionKind::Anonymous { name: None })
}

fn thread(tid: u32, stack_pointer: u64, thread_pointer: u64) -> ThreadState {
    ThreadState {
        tid: Tid(tid),
        registers: Vec::new(),
        instruction: TargetAddr(0),
        stack_pointer: TargetAddr(stack_pointer),
        thread_pointer: TargetAddr(thread_pointer),
        in_syscall: true,
        exit_status: None,
    }
}

/// Pieces of memory that contain these words.
fn memory(spans: &[(u64, u64)], words: &[(u64, u64)]) -> Copied {
    Copied::new(spans.iter().map(|&(start, end)| {
        let mut bytes = vec![0_u8; usize::try_from(end - start).expect("small")];
        for &(address, word) in words.iter().filter(|(address, _)| (start..end).contains(address)) {
            let at = usize::try_from(address - start).expect("small");
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        (TargetAddr(start), bytes.into_boxed_slice())
    }))
}

fn check(threads: &[ThreadState], regions: &[Region], memory: &Copied, heap: &[(u64, u64)], expected: &[(u64, u64)]) {
    let span = |&(start, end): &(u64, u64)| TargetAddr(start)..TargetAddr(end);
    let heap: Vec<Span> = heap.iter().map(span).collect();
    let expected: Vec<Span> = expected.iter().map(span).collect();
    assert_eq!(root_spans(threads, regions, memory, &heap), expected);
}

#[test]
fn the_heap_is_excluded() {
    let memory = memory(&[(0x1000, 0x5000), (0x8000, 0x9000)], &[]);
    let heap = [(0x8800, 0xa000), (0x2000, 0x3000), (0x2800, 0x3800)];
    check(&[], &[], &memory, &heap, &[(0x1000, 0x2000), (0x3800, 0x5000), (0x8000, 0x8800)]);
    check(&[], &[], &memory, &[(0, u64::MAX)], &[]);
    check(&[], &[], &memory, &[], &[(0x1000, 0x5000), (0x8000, 0x9000)]);
}

#[test]
fn the_first_stack_counts_from_the_stack_pointer() {
    let regions = [anonymous(0x1000, 0x3000), region(0x10000, 0x20000, RegionKind::Stack)];
    let memory = memory(&[(0x1000, 0x3000), (0x10000, 0x20000)], &[]);
    let whole = [(0x1000, 0x3000), (0x10000, 0x20000)];
    check(&[thread(1, 0x18000, 0)], &regions, &memory, &[], &[whole[0], (0x18000 - RED_ZONE_BYTES, 0x20000)]);
    check(&[thread(1, 0x10010, 0)], &regions, &memory, &[], &whole);
    // On an unknown stack, such as of a coroutine or for signals, everything counts, including the ordinary stack.
    check(&[thread(1, 0x2000, 0)], &regions, &memory, &[], &whole);
    check(&[thread(1, 0, 0)], &regions, &memory, &[], &whole);
    // With two threads, the lower stack pointer counts.
    let two = [thread(1, 0x18000, 0), thread(2, 0x14000, 0)];
    check(&two, &regions, &memory, &[], &[whole[0], (0x14000 - RED_ZONE_BYTES, 0x20000)]);
}

/// Words by which the control block of a running thread is recognized; its thread pointer is [`POINTER`].
#[cfg(target_arch = "x86_64")]
fn running(block: u64) -> Vec<(u64, u64)> {
    vec![(block, block)]
}

#[cfg(target_arch = "x86_64")]
const POINTER: u64 = 0x2f700;

#[cfg(target_arch = "aarch64")]
fn running(block: u64) -> Vec<(u64, u64)> {
    let (links, head) = (block + PTHREAD_LIST_OFFSET, 0x3f000);
    vec![(links, head), (links + 8, head), (head, links), (head + 8, links)]
}

#[cfg(target_arch = "aarch64")]
const POINTER: u64 = 0x2f700 + 0x740;

#[test]
fn the_control_block_defines_the_stack_of_a_thread() {
    let regions = [anonymous(0x10000, 0x40000)];
    let (block, pointer) = (0x2f700, POINTER);
    let mut words = running(block);
    words.extend([(block + 0x690, 0x20000), (block + 0x698, 0x10000)]);
    let spans = [(0x10000, 0x40000)];
    let known = memory(&spans, &words);
    // Memory below the stack in the same mapping is not excluded.
    let expected = [(0x10000, 0x20000), (0x28000 - RED_ZONE_BYTES, 0x40000)];
    check(&[thread(2, 0x28000, pointer)], &regions, &known, &[], &expected);
    // Memory below the mapping is not excluded either.
    let [guard, stack] = [(0x10000, 0x24000), (0x24000, 0x40000)];
    let two = [anonymous(guard.0, guard.1), anonymous(stack.0, stack.1)];
    check(
        &[thread(2, 0x28000, pointer)],
        &two,
        &known,
        &[],
        &[(0x10000, 0x24000), (0x28000 - RED_ZONE_BYTES, 0x40000)],
    );
    // If the stack pointer is on another stack in the same mapping, everything counts.
    check(&[thread(2, 0x18000, pointer)], &regions, &known, &[], &spans);
    check(&[thread(2, 0x38000, pointer)], &regions, &known, &[], &spans);
    // If the control block is inconsistent, everything counts.
    for missing in 0..words.len() {
        let mut words = words.clone();
        words.remove(missing);
        check(&[thread(2, 0x28000, pointer)], &regions, &memory(&spans, &words), &[], &spans);
    }
    // Invalid bounds.
    let no_stacks = [
        (0x2f800, 0x800),
        (0, 0x30000),
        (0, u64::MAX),
        (0x20000, u64::MAX),
        (u64::MAX, 0x10000),
        (0x20000, 0x20000),
        (0x20010, 0x10000),
        (0x20000, 0xff00),
    ];
    for (start, size) in no_stacks {
        let mut words = running(block);
        words.extend([(block + 0x690, start), (block + 0x698, size)]);
        check(&[thread(2, 0x28000, pointer)], &regions, &memory(&spans, &words), &[], &spans);
    }
}

/// Words of the control block of an exited thread, which is in a list of two.
fn ended(tid: u64) -> Vec<(u64, u64)> {
    let (block, links, head) = (0x2f700, 0x2f700 + PTHREAD_LIST_OFFSET, 0x50000);
    let line = block + MARK_OFFSET;
    vec![
        (line + 8 * MARK_WORDS[0] as u64, line + MARK_TARGET),
        (line + 8 * MARK_WORDS[1] as u64, line + MARK_TARGET),
        (links, head),
        (links + 8, head),
        (block + PTHREAD_TID_OFFSET, tid),
        (block + 0x690, 0x20000),
        (block + 0x698, 0x10000),
        (head, links),
        (head + 8, links),
    ]
}

#[test]
fn stacks_of_exited_threads_are_excluded() {
    let regions = [anonymous(0x10000, 0x40000), anonymous(0x50000, 0x51000)];
    let spans = [(0x10000, 0x40000), (0x50000, 0x51000)];
    let head = spans[1];
    let check = |threads: &[ThreadState], words: &[(u64, u64)], expected: &[(u64, u64)]| {
        check(threads, &regions, &memory(&spans, words), &[], expected);
    };
    let joined = ended(u64::from(u32::MAX));
    match arch::kept_of_ended(0x2f700, None, true) {
        kept if kept.end < 0x30000 => {
            check(&[], &joined, &[(0x10000, 0x20000), (kept.start, kept.end), (0x30000, 0x40000), head]);
        }
        kept => check(&[], &joined, &[(0x10000, 0x20000), (kept.start, 0x40000), head]),
    }
    // The return value of a thread that was not joined is in its control block.
    check(&[], &ended(0), &[(0x10000, 0x20000), (0x2f700, 0x40000), head]);
    // Nobody can read the return value of a detached thread.
    let kept = arch::kept_of_ended(0x2f700, None, true);
    for field in [0x2f700 + 0x690 - 0x70, 0x2f700 + 0x690 - 0x68] {
        let detached = [ended(0), vec![(field, 0x2f700)]].concat();
        match kept.end < 0x30000 {
            true => check(&[], &detached, &[(0x10000, 0x20000), (kept.start, kept.end), (0x30000, 0x40000), head]),
            false => check(&[], &detached, &[(0x10000, 0x20000), (kept.start, 0x40000), head]),
        }
    }
    // The block has the thread's argument, or another thread joins it.
    for other in [(0x2f700 + 0x690 - 0x50, 0x2f700), (0x2f700 + 0x690 - 0x70, 0x50000)] {
        check(&[], &[ended(0), vec![other]].concat(), &[(0x10000, 0x20000), (0x2f700, 0x40000), head]);
    }
    // The thread runs, or another thread is on its stack.
    check(&[], &ended(77), &spans);
    check(&[thread(3, 0x28000, 0)], &ended(0), &spans);
    check(&[thread(3, 0, 0x2f700)], &ended(0), &spans);
    for missing in 0..9 {
        let mut words = ended(u64::from(u32::MAX));
        words.remove(missing);
        if missing != 4 {
            check(&[], &words, &spans);
        }
    }
}

/// A program with running, exited and joined threads, which have words on their stacks and as return values.
const THREADS: &str = r#"
static __thread uint64_t in_tls;
static uint64_t addresses[10];
static volatile int ready, started;
static __attribute__((noinline)) void bury(int at) {
    volatile uint64_t buried[64];
    for (int i = 0; i < 64; i++) buried[i] = 0xdead;
    addresses[at] = (uint64_t)&buried[8];
}
static void *live(void *unused) {
    volatile uint64_t word = 1;
    in_tls = 2;
    addresses[0] = (uint64_t)&word;
    addresses[1] = (uint64_t)&in_tls;
    bury(2);
    ready = 1;
    for (;;) pause();
    return (void *)word;
}
static void *gone(void *at) {
    volatile uint64_t word = 3;
    // Until then, none may have the stack of another.
    while (!started) usleep(1000);
    addresses[(long)at] = (uint64_t)&word;
    return (void *)0x5ca1ab1e0ddba11;
}
int main(void) {
    pthread_t thread, joined, unjoined, other, detached, later;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_create(&thread, NULL, live, NULL);
    pthread_create(&joined, NULL, gone, (void *)3);
    pthread_create(&unjoined, NULL, gone, (void *)4);
    pthread_create(&other, NULL, gone, (void *)6);
    pthread_create(&detached, &attributes, gone, (void *)8);
    pthread_create(&later, NULL, gone, (void *)9);
    started = 1;
    pthread_join(joined, NULL);
    pthread_join(other, NULL);
    bury(5);
    while (!ready || !addresses[4] || !addresses[8] || !addresses[9]) usleep(1000);
    // Until the kernel has cleared its TID, it counts as running.
    for (int i = 0; i < 1000; i++) usleep(10);
    pthread_detach(later);
    volatile uint64_t word = 4;
    addresses[7] = (uint64_t)&word;
    say("%lx %lx %lx %lx %lx %lx %lx %lx %lx %lx %lx %lx %lx", addresses[0], addresses[1], addresses[2], addresses[3], addresses[4],
        addresses[5], addresses[6], addresses[7], (unsigned long)unjoined,
        addresses[8], addresses[9], (unsigned long)detached, (unsigned long)later);
    wait_for_word();
    return word;
}
"#;

/// Checks which of the threads' words are roots.
fn check_real(compiler: &str, cached: bool) {
    let mut subject = Subject::start_with(THREADS, &[], compiler);
    let addresses = subject.numbers();
    let collected = collect_here(subject.pid(), Method::Read, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(collected.threads.len(), 2);
    let roots = root_spans(&collected.threads, &collected.regions, &*collected.memory, &[]);
    let is_root = |address: u64| roots.iter().any(|span| span.contains(&TargetAddr(address)));
    let found: Vec<bool> = addresses[..11].iter().map(|&address| is_root(address)).collect();
    let expected = [true, true, false, false, false, false, false, true, true, false, false];
    // musl keeps the stack of a thread that was not joined, without a record that is read here.
    let expected = expected.iter().enumerate().map(|(index, &root)| root || index == 4 && !cached);
    assert_eq!(found, expected.collect::<Vec<_>>(), "{compiler}: {addresses:x?}");
    // Checks the return value in a control block.
    let result = |block: u64| {
        let mut words = (block..block + 0x900).step_by(8);
        words.find(|&at| collected.memory.word(TargetAddr(at)) == Some(0x05ca_1ab1_e0dd_ba11))
    };
    assert!(is_root(result(addresses[8]).expect("a return value")));
    // musl unmaps the stacks of detached threads.
    assert_eq!(
        addresses[11..].iter().map(|&block| result(block).map(is_root)).collect::<Vec<_>>(),
        [cached.then_some(false); 2]
    );
}

#[test]
fn stacks_of_glibc_are_recognised() {
    check_real("gcc", true);
}

#[test]
fn stacks_of_musl_are_recognised() {
    check_real("musl-gcc", false);
}

proptest! {
    #[test]
    fn cuts_are_removed(
        spans in proptest::collection::vec((0_u64..200, 1_u64..20), 0..12),
        cuts in proptest::collection::vec((0_u64..200, 0_u64..20), 0..12),
    ) {
        let span = |&(start, length): &(u64, u64)| TargetAddr(start)..TargetAddr(start + length);
        let spans = joined(spans.iter().map(span).collect());
        let cuts = joined(cuts.iter().map(span).collect());
        let rest = without(spans.clone(), &cuts);
        prop_assert!(rest.is_sorted_by(|first, second| first.end <= second.start));
        for address in (0..230).map(TargetAddr) {
            let within = |spans: &[Span]| spans.iter().any(|span| span.contains(&address));
            prop_assert_eq!(within(&rest), within(&spans) && !within(&cuts), "{:x}", address);
        }
    }

    #[test]
    fn any_memory_is_scanned_without_panic(words in proptest::collection::vec((0_u64..0x600, any::<u64>()), 0..200), at in 0_u64..0x3000) {
        let regions = [anonymous(0x10000, 0x13000)];
        let near = words.iter().map(|&(index, word)| (0x10000 + index * 8, if word % 3 == 0 { 0x10000 + word % 0x3000 } else { word }));
        let memory = memory(&[(0x10000, 0x13000)], &near.collect::<Vec<_>>());
        let threads = [thread(1, 0x10000 + at, 0x12f00), thread(2, at, u64::MAX - at)];
        let roots = root_spans(&threads, &regions, &memory, &[]);
        prop_assert!(roots.is_sorted_by_key(|span| span.start));
    }
}

#[test]
fn frames_interrupted_by_a_signal_handled_on_the_same_stack_count() {
    let regions = [region(0x10000, 0x20000, RegionKind::Stack)];
    let on = |words: &[(u64, u64)], expected: (u64, u64)| {
        check(&[thread(1, 0x18000, 0)], &regions, &memory(&[(0x10000, 0x20000)], words), &[], &[expected]);
    };
    let (whole, cut) = ((0x10000, 0x20000), (0x18000 - RED_ZONE_BYTES, 0x20000));
    // An alternate signal stack from 0x17000 to 0x19000; the upper half of the word with its flags is not initialised.
    on(&[(0x18100, 0x17000), (0x18108, 0xdead_0000_0000), (0x18110, 0x2000)], whole);
    // Another stack, a record outside of the frame, invalid flags, and an invalid size.
    on(&[(0x18100, 0x1a000), (0x18110, 0x2000)], cut);
    on(&[(0x1a100, 0x17000), (0x1a110, 0x2000)], cut);
    on(&[(0x18100, 0x17000), (0x18108, 2), (0x18110, 0x2000)], cut);
    on(&[(0x18100, 0x17000), (0x18108, 0), (0x18110, u64::MAX)], cut);
}
