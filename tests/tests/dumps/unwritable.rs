//! Dumps that cannot be written, on a file system of their own.

use std::fs;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel::{require_root, wait_until};
use heapbpf_tests::report::Report;
use heapbpf_tests::target::{Target, run};
use rustix::process::Signal;
use tempfile::TempDir;

/// Small in-memory file system, unmounted on drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Self {
        require_root();
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(folder.path()));
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills the file system.
    fn fill(&self) {
        let error = fs::write(self.path().join("filler"), vec![0; 1 << 20]).expect_err("it is smaller");
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        fs::remove_file(self.path().join("filler")).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // If this fails, the directory cannot be removed, which is reported.
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

#[test]
fn a_full_disk_loses_a_dump_and_not_the_recording() {
    let disk = SmallDisk::mount();
    let mut target = Target::start("slots.c");
    let out = disk.path().join("out.json");
    let pid = target.pid().to_string();
    let mut heapbpf =
        Heapbpf::new(["--pid", &pid, "--interval", "1", "-o", out.to_str().expect("it is UTF-8"), "-o", "here.json"]);
    let mut session = heapbpf.start();
    target.work("+0:100");
    disk.fill();
    session.signal(Signal::USR1);
    session.wait_for(&format!("error: cannot write `{}`", disk.path().join("out.0001.json").display()));
    session.wait_for("wrote here.0001.json (signal, ");
    disk.make_room();
    target.work("+1:20");
    session.signal(Signal::USR1);
    session.wait_for("out.0002.json");
    let outcome = session.interrupt().expect_code(1);
    assert!(outcome.stderr.contains("No space left on device"), "{}", outcome.stderr);
    let left: Vec<String> = fs::read_dir(disk.path())
        .expect("it is mounted")
        .map(|entry| entry.expect("it is there").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(!left.iter().any(|name| name == "out.0001.json" || name.starts_with(".heapbpf-")), "{left:?}");
    // The window of the failed dump ends nevertheless.
    let second = Report::read(&disk.path().join("out.0002.json"));
    assert_eq!(second.process(target.pid()).totals.exact().alloc_bytes, 20);
    assert_eq!(Report::read(&out).process(target.pid()).totals.exact().alloc_bytes, 120);
    assert_eq!(heapbpf.report("here.0001.json").process(target.pid()).totals.exact().alloc_bytes, 100);
}

/// Starts heapbpf from a shell script that redirects its streams.
fn in_shell(script: &str, pid: u32, arguments: &str) -> Heapbpf {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script])
        .arg(binary())
        .args(["--no-inventory", "--pid", &pid.to_string()])
        .args(arguments.split_whitespace());
    Heapbpf::with_command(shell)
}

#[test]
fn messages_need_no_reader() {
    let target = Target::start("slots.c");
    // `exec` keeps the process, so that it can be interrupted.
    let script = r#"exec "$0" "$@" 2>/dev/full"#;
    let mut heapbpf = in_shell(script, target.pid(), "--interval 1 --dump-every 200ms -o out.json");
    let second = heapbpf.file("out.0002.json");
    let session = heapbpf.spawn();
    wait_until("the second dump is written", || second.exists());
    session.interrupt().expect_code(0);
    let files = heapbpf.files();
    assert!(["out.0001.json", "out.0002.json", "out.json"].iter().all(|name| files.contains(&(*name).to_owned())));
}

#[test]
fn a_closed_pipe_does_not_affect_other_reports() {
    let mut target = Target::start("slots.c");
    let script = r#"{ "$0" "$@"; echo "$?" >code; } | true"#;
    let mut heapbpf = in_shell(script, target.pid(), "--interval 1 --duration 2s -o - -o out.json");
    let session = heapbpf.start();
    target.work("+0:100");
    let outcome = session.wait().expect_code(0);
    assert_eq!(heapbpf_tests::heapbpf::text(&heapbpf.file("code")), "0\n", "{}", outcome.stderr);
    assert_eq!(heapbpf.report("out.json").process(target.pid()).totals.exact().alloc_bytes, 100);
}

#[test]
fn a_pipe_without_a_reader_is_named_and_waited_for() {
    let mut target = Target::start("slots.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --format json -o pipe");
    let pipe = heapbpf.file("pipe");
    run(Command::new("mkfifo").arg(&pipe));
    let mut session = heapbpf.spawn();
    session.wait_for("waiting for a program that reads `pipe`");
    let reader = std::thread::spawn(move || heapbpf_tests::heapbpf::text(&pipe));
    session.wait_for("heapbpf: recording");
    target.work("+0:100");
    let _ = session.interrupt().expect_code(0);
    assert!(reader.join().expect("it reads").contains("\"alloc_bytes\""));
}

/// The first dump is written to a pipe that has no reader yet.
#[test]
fn unwritten_dumps_do_not_accumulate() {
    const WAITING_MAX: u32 = 16;
    let mut target = Target::start("slots.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "-vv --interval 1 -o out.json");
    let pipe = heapbpf.file("out.0001.json");
    run(Command::new("mkfifo").arg(&pipe));
    let mut session = heapbpf.start();
    for number in 1..=WAITING_MAX {
        session.signal(Signal::USR1);
        session.wait_for(&format!("window {number} held the session"));
    }
    for _ in 0..50 {
        session.signal(Signal::USR1);
        target.work("+0:100 -0");
    }
    let first = std::thread::spawn(move || heapbpf_tests::heapbpf::text(&pipe));
    session.wait_for(&format!("wrote out.{:04}.json", WAITING_MAX + 1));
    let _ = session.interrupt().expect_code(0);
    assert!(first.join().expect("it reads").contains("\"number\":1,"));
    let last = heapbpf.report(&format!("out.{:04}.json", WAITING_MAX + 2));
    assert_eq!(last.window.expect("it is one").reason, "end", "one dump is for all that waited");
    assert_eq!(heapbpf.report("out.json").process(target.pid()).totals.exact().alloc_bytes, 5000);
}
