//! Tests with real processes.

pub(crate) mod fixture;

use fixture::{Subject, collect_here};
use heapbpf_base::address::TargetAddr;

use super::*;

/// A program with a known value in a register, and memory with known contents.
const HOLDS: &str = r#"
int main(void) {
    uint64_t *words = mmap(NULL, 1 << 24, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 1 << 21; i++) words[i] = 0x9e3779b97f4a7c15u * i;
    // Every second page is given back.
    for (int i = 0; i < 1 << 24; i += 8192) madvise((char *)words + i, 4096, MADV_DONTNEED);
    char *reserved = mmap(NULL, 1ul << 36, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    reserved[1ul << 35] = 42;
    for (unsigned long i = 0; i < 1ul << 30; i += 4096) *(volatile char *)(reserved + i);
    uint64_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared[3] = 0x1122334455667788;
    say("%p %p %p", (void *)words, (void *)reserved, (void *)shared);
#ifdef __aarch64__
    register uint64_t known asm("x19") = 0x5ca1ab1e0ddba11;
    asm volatile("1: b 1b" : : "r"(known));
#else
    register uint64_t known asm("r12") = 0x5ca1ab1e0ddba11;
    asm volatile("1: jmp 1b" : : "r"(known));
#endif
}
"#;

fn collected(subject: &Subject) -> Collected {
    collect_here(subject.pid(), Method::Read, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn exactly_the_written_memory_is_read() {
    let mut subject = Subject::start(HOLDS);
    let &[words, reserved, shared] = subject.numbers().as_slice() else { panic!("three addresses") };
    let before = subject.status("VmRSS");
    let mut stops = 0;
    let collected = collect_here(subject.pid(), Method::Read, &mut |threads| {
        assert_eq!(threads.len(), 1);
        assert!(subject.status("State").starts_with('t'));
        stops += 1;
    });
    let collected = collected.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(stops, 1);
    assert_eq!(subject.status("VmRSS"), before, "nothing is faulted in");
    assert!(collected.pause > Duration::ZERO && collected.unread_bytes == 0);
    assert!(collected.threads[0].registers.contains(&0x05ca_1ab1_e0dd_ba11));
    let memory = &collected.memory;
    for index in 0..1_u64 << 21 {
        let expected = (index % 1024 >= 512).then(|| index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert_eq!(memory.word(TargetAddr(words + index * 8)), expected, "word {index}");
    }
    assert_eq!(memory.word(TargetAddr(shared + 24)), Some(0x1122_3344_5566_7788));
    let present = memory.present(TargetAddr(reserved)..TargetAddr(reserved + (1 << 36)));
    let bytes: u64 = present.iter().map(|span| span.end.0 - span.start.0).sum();
    assert!(bytes <= 4 << 20, "{bytes} of 64 GiB, of which one byte was written and one GiB read");
    assert_eq!(memory.word(TargetAddr(reserved + (1 << 35))), Some(42));
}

#[test]
fn a_panic_of_the_caller_resumes_the_process() {
    let mut subject = Subject::start("int main(void) { say(\"ready\"); for (;;) { wait_for_word(); say(\"on\"); } }");
    assert_eq!(subject.line(), "ready");
    let pid = subject.pid();
    let caught = std::panic::catch_unwind(|| {
        collect_here(pid, Method::Read, &mut |_| std::panic::resume_unwind(Box::new("midway"))).map(drop)
    });
    assert!(caught.is_err());
    subject.check_answers();
    assert_eq!(collected(&subject).threads.len(), 1);
    subject.check_answers();
}
