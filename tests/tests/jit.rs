//! Names of generated code, from the files of just-in-time compilers.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::interpreters::{java_without_description, node_without_description};
use heapbpf_tests::report::{Callsite, Frame, Process, Report};
use heapbpf_tests::shared::java_classes;
use heapbpf_tests::target::{Target, build, build_directory, copy_program, run};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// A file of `/tmp` that names the code of a process. Removed when dropped.
struct PerfMap(PathBuf);

impl PerfMap {
    fn of(pid: u32) -> Self {
        Self(PathBuf::from(format!("/tmp/perf-{pid}.map")))
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Of an engine that names its functions in a perf map or dump only.
fn node(options: &[&str]) -> Target {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/leaking.js");
    // V8 writes a log into the working directory.
    Target::spawn(Command::new(node_without_description()).args(options).arg(script).current_dir(build_directory()))
}

/// Of a virtual machine that names its methods in a perf map only.
fn java(options: &[&str]) -> Target {
    let classes = java_classes("Leaking");
    Target::spawn(
        Command::new(java_without_description())
            .args(options)
            .arg("-XX:MaxDirectMemorySize=2g")
            .arg("-cp")
            .arg(classes)
            .arg("Leaking"),
    )
}

/// Generated frames weighted by live bytes: the part of them that has names. Debian's libraries lack names of their own.
fn named_share(process: &Process) -> f64 {
    let mut sums = [0.0; 2];
    for callsite in &process.callsites {
        for frame in callsite.stack.iter().filter(|frame| is_jitted(frame)) {
            sums[usize::from(frame.function.is_some())] += bytes(callsite);
        }
    }
    sums[1] / (sums[0] + sums[1])
}

fn bytes(callsite: &Callsite) -> f64 {
    callsite.totals.live_bytes.as_f64().expect("a number")
}

fn is_jitted(frame: &Frame) -> bool {
    frame.kind.as_deref() == Some("jitted")
}

/// Share of the live bytes below each generated function, the widest first. Of equal ones, the innermost comes first.
fn widths(process: &Process) -> Vec<(String, f64)> {
    let whole: f64 = process.callsites.iter().map(bytes).sum();
    let mut widths: Vec<(String, f64)> = Vec::new();
    for callsite in &process.callsites {
        let jitted = callsite.stack.iter().filter(|frame| is_jitted(frame));
        let mut seen = Vec::new();
        for name in jitted.filter_map(|frame| frame.function.as_deref()) {
            if seen.contains(&name) {
                continue;
            }
            seen.push(name);
            match widths.iter_mut().find(|(known, _)| known == name) {
                Some((_, width)) => *width += bytes(callsite) / whole,
                None => widths.push((name.to_owned(), bytes(callsite) / whole)),
            }
        }
    }
    widths.sort_by(|one, other| other.1.total_cmp(&one.1));
    widths
}

fn width(process: &Process, function: &str) -> f64 {
    widths(process).into_iter().find(|(name, _)| name == function).map_or(0.0, |(_, width)| width)
}

fn show(process: &Process) -> String {
    let stacks = process.callsites.iter().map(|callsite| {
        let name = |frame: &Frame| {
            format!("{}{}", if is_jitted(frame) { "*" } else { "" }, frame.function.as_deref().unwrap_or("?"))
        };
        let names: Vec<String> = callsite.stack.iter().map(name).collect();
        format!("{} {:?} {}", bytes(callsite), callsite.end, names.join(" < "))
    });
    stacks.take(12).collect::<Vec<_>>().join("\n")
}

/// Records a target while it leaks, with code that has been compiled.
fn profile(target: &mut Target, blocks: u32, before: impl FnOnce()) -> (Report, String, Heapbpf) {
    profile_with(target, blocks, "", before)
}

fn profile_with(target: &mut Target, blocks: u32, option: &str, before: impl FnOnce()) -> (Report, String, Heapbpf) {
    target.run_command(&(4 * blocks).to_string());
    before();
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 16KiB -o out.json -o out.heapbpf {option}"));
    let session = heapbpf.start();
    target.run_command(&blocks.to_string());
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    (report, outcome.stdout, heapbpf)
}

#[track_caller]
fn check_complete(report: &Report) {
    let complete = report.health.unwind.get("complete").copied().unwrap_or_default();
    assert!(complete * 100 > report.health.unwind.values().sum::<u64>() * 99, "{:?}", report.health.unwind);
}

#[track_caller]
fn check_leak(process: &Process, function: &str) {
    let (widths, stacks) = (widths(process), show(process));
    let own = width(process, function);
    let widest = widths.iter().map(|(_, width)| *width).fold(0.0, f64::max);
    assert!(own > 0.9 && own >= widest - 0.001, "{function}: {own} of {widest}: {widths:?}\n{stacks}");
    let share = named_share(process);
    assert!(share > 0.99, "{share} of the frames have names\n{stacks}");
}

#[test]
fn leaking_functions_of_node_have_names_files_and_lines() {
    let mut target = node(&["--perf-basic-prof"]);
    let map = PerfMap::of(target.pid());
    let (report, _, heapbpf) = profile(&mut target, 20_000, || ());
    let process = report.process(target.pid());
    check_leak(process, "leakBuffers");
    check_complete(&report);
    let frames = || process.callsites.iter().flat_map(|callsite| &callsite.stack);
    // Built into the program: by its symbols, or by the map where it has none, as in Debian.
    let built_in = |frame: &Frame| frame.function.as_deref().is_some_and(|name| name.ends_with("JSEntryTrampoline"));
    assert!(frames().any(|frame| built_in(frame) && !is_jitted(frame)), "{}", show(process));
    let leak = frames().find(|frame| frame.function.as_deref() == Some("leakBuffers")).expect("it is there");
    assert_eq!((is_jitted(leak), leak.module.as_deref(), leak.line), (true, Some("[jit]"), Some(4)));
    assert!(leak.file.as_deref().is_some_and(|file| file.ends_with("targets/leaking.js")), "{leak:?}");
    // A replay has the names, although the process and its file are gone.
    drop((target, map));
    let recording = heapbpf.file("out.heapbpf");
    let mut convert = Heapbpf::new(["convert".as_ref(), recording.as_os_str(), "-o".as_ref(), "again.json".as_ref()]);
    let _ = convert.run().expect_code(0);
    check_leak(&convert.report("again.json").targets[0], "leakBuffers");
}

#[test]
fn dumps_of_node_have_names() {
    let directory = tempfile::tempdir().expect("temporary folder");
    // The dump is in the working directory.
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/targets/leaking.js");
    let options = ["--perf-prof", "--no-logfile-per-isolate", "--logfile=v8.log"];
    let mut target =
        Target::spawn(Command::new(node_without_description()).args(options).arg(script).current_dir(directory.path()));
    target.run_command("80000");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 16KiB -o out.json");
    let session = heapbpf.start();
    target.run_command("20000");
    // Node writes the end of its dump when it exits.
    target.exit(0);
    let _ = session.wait();
    let report = heapbpf.report("out.json");
    let process = report.process(target.pid());
    // At its exit it frees all.
    let frames = process.callsites.iter().flat_map(|callsite| &callsite.stack);
    let leak = frames.into_iter().find(|frame| frame.function.as_deref() == Some("leakBuffers"));
    let leak = leak.unwrap_or_else(|| panic!("{}", show(process)));
    assert_eq!(leak.line, Some(4), "{leak:?}");
}

#[test]
fn leaking_methods_of_java_have_names() {
    let mut target = java(&["-XX:+PreserveFramePointer"]);
    let pid = target.pid();
    let _map = PerfMap::of(pid);
    let (report, _, _) =
        profile(&mut target, 20_000, || run(Command::new("jcmd").args([&pid.to_string(), "Compiler.perfmap"])));
    check_leak(report.process(pid), "void Leaking.leakBuffers(int)");
    check_complete(&report);
}

#[test]
fn virtual_machines_write_their_map_on_request() {
    let mut target = java(&["-XX:+PreserveFramePointer"]);
    let pid = target.pid();
    let map = PerfMap::of(pid);
    let (report, summary, _) = profile_with(&mut target, 20_000, "", || ());
    assert!(widths(report.process(pid)).is_empty() && !map.0.exists(), "it writes none by itself");
    assert!(summary.contains("record it with `--jvm-perfmap`"), "{summary}");
    let (report, summary, _) = profile_with(&mut target, 20_000, "--jvm-perfmap", || ());
    check_leak(report.process(pid), "void Leaking.leakBuffers(int)");
    assert!(!summary.contains("generated code without names"), "{summary}");
    assert!(!PathBuf::from(format!("/tmp/.attach_pid{pid}")).exists());
    target.run_command("1");
    // A program that is no virtual machine is left alone.
    let mut scene = Scene::new("");
    let mut heapbpf = Heapbpf::of(scene.target.pid(), "--jvm-perfmap -o out.json");
    let session = heapbpf.start();
    scene.target.run_command("first");
    let _ = session.interrupt();
    scene.target.run_command("second");
}

/// A program with generated code, and its map, which does not exist yet.
struct Scene {
    target: Target,
    /// Of the program itself.
    pid: u32,
    map: PerfMap,
    address: u64,
    size: u64,
}

impl Scene {
    fn new(argument: &str) -> Self {
        let target = Target::spawn(Command::new(build("generating.c")).arg(argument));
        let pid = target.pid();
        Self::of(target, pid, PerfMap::of(pid))
    }

    fn of(mut target: Target, pid: u32, map: PerfMap) -> Self {
        let place = target.query("where");
        let (address, size) = place.first().and_then(|place| place.split_once(' ')).expect("two numbers");
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        Self { target, pid, map, address: number(address), size: number(size) }
    }

    fn line(&self, name: &str) -> String {
        format!("{:x} {:x} {name}\n", self.address, self.size)
    }

    /// The names of its generated code in a recording, by caller. `prepare` runs before, and `meanwhile` between the allocations.
    fn names(&mut self, meanwhile: impl FnOnce(&Self)) -> (Vec<(String, Option<String>)>, String) {
        let mut heapbpf = Heapbpf::of(self.pid, "--interval 1 -o out.json");
        let session = heapbpf.start();
        self.target.run_command("first");
        meanwhile(self);
        self.target.run_command("second");
        let outcome = session.interrupt();
        let report = heapbpf.report("out.json");
        check_complete(&report);
        let process = report.process(self.pid);
        let callsites = process.callsites.iter().filter_map(|callsite| match callsite.stack.as_slice() {
            [generated, caller, ..] if is_jitted(generated) => {
                Some((caller.function.clone()?, generated.function.clone()))
            }
            _ => None,
        });
        let mut names: Vec<_> = callsites.collect();
        names.sort();
        (names, outcome.stdout)
    }
}

/// Names of the same code, called by `first` and by `second`.
fn both(name: Option<&str>) -> Vec<(String, Option<String>)> {
    ["first", "second"].map(|caller| (caller.to_owned(), name.map(str::to_owned))).to_vec()
}

#[test]
fn generated_code_is_named_in_anonymous_and_in_shared_memory() {
    for memory in ["", "memfd"] {
        let mut scene = Scene::new(memory);
        assert_eq!(scene.names(|_| ()).0, both(None), "without a map");
        fs::write(&scene.map.0, scene.line("app::generated")).expect("tests run as root");
        assert_eq!(scene.names(|_| ()).0, both(Some("app::generated")));
    }
}

/// As in a container: the program is process 1 of its own PID namespace, and its `/tmp` is not heapbpf's.
#[test]
fn maps_are_found_in_other_mount_and_pid_namespaces() {
    // Not in `/tmp`, which the program does not see.
    let folder = tempfile::tempdir_in("/var/tmp").expect("there is such a directory");
    let program = folder.path().join("generating");
    copy_program(build("generating.c"), &program);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--mount", "--fork", "--kill-child", "sh", "-c"]);
    let target = Target::spawn(command.arg("mount -t tmpfs tmpfs /tmp && exec \"$0\"").arg(&program));
    let pid = target.child_pid();
    let map = PerfMap(PathBuf::from(format!("/proc/{pid}/root/tmp/perf-1.map")));
    let mut scene = Scene::of(target, pid, map);
    // A map of another process, for its number here.
    let foreign = PerfMap::of(pid);
    fs::write(&foreign.0, scene.line("foreign")).expect("tests run as root");
    assert_eq!(scene.names(|_| ()).0, both(None));
    fs::write(&scene.map.0, scene.line("contained")).expect("tests run as root");
    assert_eq!(scene.names(|_| ()).0, both(Some("contained")));
}

/// A user can mount any file in the place of its map, in a mount namespace of its own.
#[test]
fn maps_that_the_programs_user_may_not_read_are_not_read() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("there is such a directory");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    let (program, secret) = (folder.path().join("generating"), folder.path().join("secret"));
    copy_program(build("generating.c"), &program);
    fs::write(&secret, "").expect("ours");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--mount", "--fork", "--kill-child", "sh", "-c"]);
    command.arg(
        "mount -t tmpfs -o mode=777 tmpfs /tmp && touch /tmp/perf-1.map && mount --bind \"$1\" /tmp/perf-1.map && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$0\"",
    );
    let target = Target::spawn(command.arg(&program).arg(&secret));
    let pid = target.child_pid();
    let mut scene = Scene::of(target, pid, PerfMap(PathBuf::from(format!("/proc/{pid}/root/tmp/perf-1.map"))));
    fs::write(&secret, scene.line("secret")).expect("ours");
    for (mode, name) in [(0o600, None), (0o644, Some("secret"))] {
        fs::set_permissions(&secret, PermissionsExt::from_mode(mode)).expect("ours");
        assert_eq!(scene.names(|_| ()).0, both(name), "mode {mode:o}");
    }
}

#[test]
fn code_that_replaces_other_code_does_not_rename_older_stacks() {
    let mut scene = Scene::new("");
    fs::write(&scene.map.0, scene.line("old")).expect("tests run as root");
    let append = |scene: &Scene| {
        // Until the agent has seen the map's size.
        sleep(Duration::from_millis(600));
        let mut map = OpenOptions::new().append(true).open(&scene.map.0).expect("ours");
        map.write_all(scene.line("new").as_bytes()).expect("ours");
        sleep(Duration::from_millis(600));
    };
    assert_eq!(scene.names(append).0, both(Some("old")));
    // A new recording has the latest names.
    assert_eq!(scene.names(|_| ()).0, both(Some("new")));
}

#[test]
fn maps_that_are_written_late_or_vanish_name_earlier_stacks() {
    let mut scene = Scene::new("");
    let write = |scene: &Scene| {
        fs::write(&scene.map.0, scene.line("late")).expect("tests run as root");
        sleep(Duration::from_millis(600));
        fs::remove_file(&scene.map.0).expect("ours");
    };
    assert_eq!(scene.names(write).0, both(Some("late")));
}

#[test]
fn hostile_maps_are_ignored_or_read_in_part() {
    let mut scene = Scene::new("");
    let path = scene.map.0.clone();
    let line = scene.line("generated");
    let directory = tempfile::tempdir().expect("temporary folder");
    let elsewhere = directory.path().join("map");
    fs::write(&elsewhere, &line).expect("ours");
    type Make<'a> = Box<dyn Fn() + 'a>;
    let write = |bytes: &[u8]| fs::write(&path, bytes).expect("tests run as root");
    let cases: [(&str, Make<'_>, Option<&str>); 7] = [
        ("a link", Box::new(|| symlink(&elsewhere, &path).expect("ours")), None),
        ("a pipe", Box::new(|| mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).expect("ours")), None),
        ("a directory", Box::new(|| fs::create_dir(&path).expect("ours")), None),
        (
            "another owner",
            Box::new(|| {
                write(line.as_bytes());
                std::os::unix::fs::chown(&path, Some(12_345), None).expect("tests run as root");
            }),
            None,
        ),
        (
            "garbage",
            Box::new(|| write(&[&[0xff, 0, b'\n', b'\n'].repeat(1 << 16), line.as_bytes()].concat())),
            Some("generated"),
        ),
        ("an endless line", Box::new(|| write(&[line.as_bytes(), &[b'a'; 8 << 20]].concat())), Some("generated")),
        (
            "a gigantic file",
            Box::new(|| {
                write(line.as_bytes());
                OpenOptions::new().write(true).open(&path).and_then(|map| map.set_len(1 << 40)).expect("sparse");
            }),
            Some("generated"),
        ),
    ];
    for (case, make, name) in cases {
        make();
        let (names, summary) = scene.names(|_| ());
        assert_eq!(names, both(name), "{case}: {summary}");
        match case {
            "garbage" => assert!(summary.contains("malformed entries in its perf map or jitdump: 131072"), "{summary}"),
            "a gigantic file" => assert!(summary.contains("exceeds the limit of 256 MiB"), "{summary}"),
            _ => assert!(!summary.contains("perf map or jitdump"), "{case}: {summary}"),
        }
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
}

#[test]
fn a_map_that_grows_while_it_is_read_is_harmless() {
    let mut scene = Scene::new("");
    fs::write(&scene.map.0, scene.line("generated")).expect("tests run as root");
    let path = scene.map.0.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut map = OpenOptions::new().append(true).open(path).expect("ours");
            while !stop.load(Ordering::Relaxed) {
                map.write_all(&b"10 8 other\n".repeat(100)).expect("ours");
                sleep(Duration::from_millis(1));
            }
        }
    });
    let names = scene.names(|_| ()).0;
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("it does not panic");
    assert_eq!(names, both(Some("generated")));
}
