//! Tests with pages of real processes, which are found in both ways.

use heapbpf_linux::proc::maps::{region_of, regions};

use super::super::stop::Stopped;
use super::*;
use crate::collect::tests::fixture::Subject;

/// A program with mappings of many kinds, each of four pages, of which the second is written.
const KINDS: &str = r#"
#include <fcntl.h>
static char *map(int protection, int flags, int file) {
    char *memory = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, file, 0);
    if (memory == MAP_FAILED) abort();
    memory[4096] = 1;
    // Read, and still the file's.
    if (file >= 0) *(volatile char *)(memory + 2 * 4096);
    mprotect(memory, 4 * 4096, protection);
    return memory;
}
int main(int argc, char **argv) {
    int file = open(argv[1], O_RDWR);
    int memory = memfd_create("x", 0);
    ftruncate(memory, 4 * 4096);
    enum { RW = PROT_READ | PROT_WRITE };
    say("%p %p %p %p %p %p %p %p", map(RW, MAP_PRIVATE | MAP_ANONYMOUS, -1), map(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1),
        map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1), map(PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1),
        map(PROT_READ, MAP_PRIVATE, file), map(RW, MAP_SHARED, file), map(RW, MAP_SHARED | MAP_ANONYMOUS, -1),
        map(RW, MAP_SHARED, memory));
    char *reserved = mmap(NULL, 1ul << 40, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    reserved[1ul << 39] = 1;
    say("%p", reserved);
    wait_for_word();
}
"#;

/// Returns the indexes of the reported pages of the mapping at an address.
fn pages_at(touched: &Touched, start: u64) -> Vec<u64> {
    let address = |page: u64| TargetAddr(start + page * 4096);
    (0..4).filter(|&page| touched.spans.iter().any(|span| span.contains(&address(page)))).collect()
}

#[test]
fn written_pages_are_found_in_both_ways() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), [7; 4 * 4096]).expect("writable");
    let path = file.path().to_str().expect("UTF-8").to_owned();
    let mut subject = Subject::start_with(KINDS, &[&path], "gcc");
    let addresses = subject.numbers();
    let reserved = subject.numbers()[0];
    let stopped = Stopped::new(subject.pid(), Vec::new()).expect("it stops");
    let regions = regions(subject.pid()).expect("readable");
    for source in [Source::Scan, Source::Pagemap] {
        let touched = Touched::with(subject.pid(), &regions, source).expect("readable");
        assert_eq!(touched.unread_bytes, 0);
        assert!(touched.spans.is_sorted_by(|first, second| first.end < second.start), "{source:?}");
        let found: Vec<Vec<u64>> = addresses.iter().map(|&start| pages_at(&touched, start)).collect();
        let [anonymous, read_only, closed, code, private, shared, shared_anonymous, memory] = found.as_slice() else {
            panic!("eight mappings: {found:?}")
        };
        for written in [anonymous, read_only, closed, code, private, shared_anonymous] {
            assert_eq!(written, &[1], "{source:?}: {found:?}");
        }
        assert!(memory.contains(&1) && !memory.contains(&0), "{source:?}: a page that was only read may be included");
        assert!(shared.is_empty(), "{source:?}: {found:?}");
        let stack = region_of(&regions, stopped.states().expect("it runs")[0].stack_pointer).expect("mapped");
        assert_eq!(stack.kind, RegionKind::Stack);
        let of_stack = |span: &Span| stack.contains(span.start);
        assert!(touched.spans.iter().any(of_stack) && touched.bytes() < 64 << 20, "{source:?}: {}", touched.bytes());
        let at = TargetAddr(reserved + (1 << 39));
        assert!(touched.spans.iter().any(|span| span.contains(&at)), "{source:?}");
    }
}

#[test]
fn device_memory_is_not_read() {
    let region = |path: &str, shared| Region {
        shared,
        ..Region::synthetic(0x1000, 0x1000, RegionKind::File { path: path.into() })
    };
    for (path, private, shared) in [
        ("/dev/mem", None, None),
        ("/dev/nvidia0", None, None),
        ("/dev/zero (deleted)", Some(Pages::Anonymous), Some(Pages::All)),
        ("/dev/shm/x", Some(Pages::Anonymous), Some(Pages::All)),
        ("/memfd:x (deleted)", Some(Pages::Anonymous), Some(Pages::All)),
        ("/SYSV00000000 (deleted)", Some(Pages::Anonymous), Some(Pages::All)),
        ("/var/lib/data.mdb", Some(Pages::Anonymous), None),
        ("anon_inode:[io_uring]", Some(Pages::Anonymous), Some(Pages::All)),
        ("/dev/hugepages/rtemap_0", Some(Pages::Anonymous), Some(Pages::All)),
    ] {
        assert_eq!((wanted(&region(path, false)), wanted(&region(path, true))), (private, shared), "{path}");
    }
    let kernel = Region { kind: RegionKind::Kernel, ..region("", false) };
    assert_eq!(wanted(&kernel), None);
}

/// Pages that were written before a fork belong to the child as well, and are not in its page tables.
#[test]
fn shared_memory_written_before_a_fork_is_found() {
    const FORKS: &str = r#"
int main(void) {
    char *memory = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *large = mmap(NULL, 1ul << 40, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memory[4096] = 1, memory[3 * 4096] = 1, large[4096] = 1;
    if (fork() != 0) { wait_for_word(); return 0; }
    large[2 * 4096] = 1;
    say("%x %p %p", getpid(), memory, large);
    wait_for_word();
}
"#;
    let mut subject = Subject::start(FORKS);
    let &[child, memory, large] = subject.numbers().as_slice() else { panic!("three numbers") };
    let child = Pid(u32::try_from(child).expect("a process"));
    let touched = Touched::of(child, &regions(child).expect("readable")).expect("readable");
    assert_eq!((pages_at(&touched, memory), pages_at(&touched, large)), (vec![1, 3], vec![2]));
}
