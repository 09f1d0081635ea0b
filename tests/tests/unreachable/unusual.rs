//! Processes in unusual states, and unusual places of pointers.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command};

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::target::{Target, build};
use heapbpf_tests::unreachable::{Known, Sum};

use super::runs::{Launch, run_check, truth};
use super::{CLEAN, FAILED, LEAKS};

fn unusual(state: &str) -> Target {
    Target::spawn(Command::new(build("leaks/unusual.c")).arg(state))
}

/// Fails unless the process is refused; returns the message.
#[track_caller]
fn refusal(pid: u32) -> String {
    let text = Heapbpf::new(["leaks", "--pid", &pid.to_string()]).run().expect_error(FAILED);
    assert!(text.contains(&format!("`{pid}`")) && !text.contains("unsupported allocator"), "{text}");
    text
}

#[test]
fn a_process_whose_first_thread_has_exited() {
    let mut target = Target::start("leaks/departed.c");
    let truth = truth(&mut target);
    for snapshot in ["read", "fork"] {
        let check = run_check(&target, &format!("--snapshot {snapshot}"), LEAKS);
        truth.assert_is(&check, Known::Walked);
        assert!(check.command.ends_with("/departed"), "{}", check.command);
    }
    target.begin_exit(5);
    assert_eq!(target.wait().code(), Some(5));
}

#[test]
fn a_program_that_has_never_allocated() {
    let text = refusal(unusual("idle").pid());
    assert!(text.contains("has not allocated any memory"), "{text}");
}

#[test]
fn a_program_that_has_freed_everything() {
    let text = refusal(unusual("freed").pid());
    assert!(text.contains("has freed every block") && !text.contains("damaged"), "{text}");
}

/// Whatever it is doing when it is stopped, its heap is whole.
#[test]
fn a_busy_heap_is_not_called_damaged() {
    let target = unusual("churns");
    for snapshot in ["read", "fork"].repeat(5) {
        let outcome = Heapbpf::new(["leaks", "--pid", &target.pid().to_string(), "--snapshot", snapshot]).run();
        assert!(!outcome.stderr.contains("damaged"), "{snapshot}: {}", outcome.stderr);
    }
}

#[test]
fn damaged_heaps() {
    let text = refusal(unusual("size").pid());
    assert!(text.contains("is damaged: the main arena at 0x") && text.contains("valgrind"), "{text}");
    let text = refusal(unusual("lists").pid());
    assert!(text.contains("is damaged: ") && text.contains("valgrind"), "{text}");
}

/// Killed when dropped.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Its dynamic linker waits for a library that is a named pipe.
#[test]
fn a_starting_process() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let pipe = folder.path().join("library.so");
    make_pipe(&pipe);
    let program = build("leaks/unusual.c");
    let child = Waiting(Command::new(program).arg("idle").env("LD_PRELOAD", &pipe).spawn().expect("it was built"));
    let call = format!("/proc/{}/syscall", child.0.id());
    // `openat`
    while !std::fs::read_to_string(&call).is_ok_and(|call| call.starts_with("257 ")) {
        std::thread::yield_now();
    }
    let text = refusal(child.0.id());
    assert!(text.contains("its dynamic linker is still loading it"), "{text}");
}

fn make_pipe(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).expect("paths have no NUL");
    rustix::fs::mkfifoat(rustix::fs::CWD, &name, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).expect("it is ours");
}

/// It always runs the C library's code with the address of a list of the allocator in a register.
#[test]
fn a_thread_that_never_allocates_is_not_in_the_allocator() {
    let target = unusual("spinner");
    let check = run_check(&target, "", CLEAN);
    assert_eq!(check.caveats, [""; 0]);
}

#[test]
fn a_block_referenced_by_the_base_of_a_segment() {
    assert_eq!(run_check(&unusual("gs"), "", CLEAN).leaked, Sum::default());
    assert_eq!(run_check(&unusual("none"), "", LEAKS).leaked, Sum::of(1, 504));
}

#[test]
fn memory_that_the_kernel_keeps_secret_is_reported() {
    let check = run_check(&unusual("secret"), "", LEAKS);
    assert_eq!(check.leaked, Sum::of(1, 504));
    let [caveat] = check.caveats.as_slice() else { panic!("{:?}", check.caveats) };
    assert!(caveat.starts_with("4096 bytes of secret memory (memfd_secret) cannot be read"), "{caveat}");
}

/// A pointer one past a block of a zero is one to `new T[0]`, which has the number of elements before them.
#[test]
fn arrays_without_elements() {
    let mut launch = Launch::start("", &build("leaks/arrays.cpp"), &[]);
    launch.check_now();
    assert_eq!(launch.exit(0), Some(LEAKS), "{}", launch.stderr());
    for name in ["check.0001.json", "check.json"] {
        let check = launch.check(name);
        let mut leaves: Vec<&str> = check.leaks.iter().filter_map(|leak| in_program(&leak.functions())).collect();
        leaves.sort_unstable();
        assert_eq!(leaves, ["empty_lost", "make", "number_lost"], "{}", check.leak_list());
        assert_eq!((check.leaked, check.direct), (Sum::of(4, 344), Sum::of(3, 336)), "{}", check.leak_list());
        assert_eq!(check.leak_of("empty_lost").size_bytes, 8);
        let holder = check.leaks.iter().find(|leak| leak.size_bytes == 320).expect("it has leaked");
        assert_eq!(holder.referenced, Sum::of(1, 8));
    }
}

/// The innermost function that is not the C++ library's.
fn in_program<'a>(functions: &[&'a str]) -> Option<&'a str> {
    let names = functions.iter().map(|name| name.split('(').next().unwrap_or(name));
    names.into_iter().find(|name| !name.starts_with("operator new"))
}
