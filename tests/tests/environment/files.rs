//! Targets whose files are replaced, deleted, or not at their paths.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::changed_code;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Process, Report};
use heapbpf_tests::target::{Target, build, run};

use super::{LIBC, LINKER, assert_sites, copy, kept, modules};

/// A directory with a program, its C library and linker, at the paths where it searches for them.
fn root(program: &Path) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("there is a directory for temporary files");
    let inside = |path: &str| root.path().join(path.trim_start_matches('/'));
    copy(program, &inside("/program"));
    [LIBC, LINKER].into_iter().for_each(|path| copy(path, &inside(path)));
    root
}

/// Profiles a target while it allocates 25 blocks of 1000 bytes.
fn profile(target: &mut Target) -> Report {
    profile_and_inspect(target, || {})
}

/// The same; `inspect` is called while probes are attached.
fn profile_and_inspect(target: &mut Target, inspect: impl FnOnce()) -> Report {
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    inspect();
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    report
}

/// Fails unless the profile has exactly these blocks, under the right name, from hooks in this module.
#[track_caller]
fn assert_profile(process: &Process, module: &str) {
    assert_sites(process, &[("keeps", kept(25, 1000))]);
    let found = modules(process, "libc");
    assert!(matches!(found.as_slice(), [path] if path.ends_with(module)), "{found:?}");
}

/// Returns the inode of the libc that a process has mapped, which is not the machine's.
#[track_caller]
fn assert_other_libc(pid: u32) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let line = maps.lines().find(|line| line.contains("libc.so.6")).expect("it has a C library");
    let inode = line.split_ascii_whitespace().nth(4).and_then(|inode| inode.parse().ok());
    assert_ne!(inode, Some(fs::metadata(LIBC).expect("the machine has one").ino()), "{line}");
}

#[test]
fn a_root_of_its_own() {
    let root = root(&build("service.c"));
    let mut target = Target::spawn(Command::new("chroot").arg(root.path()).arg("/program"));
    assert_other_libc(target.pid());
    let report = profile(&mut target);
    assert_profile(report.process(target.pid()), LIBC);
    // Line numbers come from the program in this root.
    let leaf = &report.targets[0].callsites[0].stack[0];
    assert!(leaf.line.is_some() && leaf.file.as_deref().is_some_and(|file| file.ends_with("service.c")), "{leaf:?}");
}

#[test]
fn a_root_with_a_different_file_at_the_programs_path() {
    let program = build("service.c");
    let root = root(&program);
    // Outside the root, this path is another program, with functions at other addresses.
    let path = build("exact.c");
    copy(&program, &root.path().join(path.strip_prefix("/").expect("it is absolute")));
    let mut target = Target::spawn(Command::new("chroot").arg(root.path()).arg(&path));
    let report = profile(&mut target);
    assert_profile(report.process(target.pid()), LIBC);
}

/// Returns a command that runs a script in its own mount namespace.
fn in_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script]);
    command
}

/// Returns a command that starts a program where `path` is mounted over by `file`.
fn with_mount(file: &Path, path: &Path, program: &Path) -> Command {
    in_namespace(&format!("mount --bind '{}' '{}'; exec '{}'", file.display(), path.display(), program.display()))
}

/// An overlay over a directory, like containers' roots.
struct Overlay {
    layers: tempfile::TempDir,
    mount: String,
}

impl Overlay {
    /// Mount point.
    fn new(lower: &Path, at: &Path) -> Self {
        let layers = tempfile::tempdir().expect("there is a directory for temporary files");
        let [upper, work] = ["upper", "work"].map(|name| layers.path().join(name));
        [&upper, &work].into_iter().for_each(|folder| fs::create_dir(folder).expect("the folder is ours"));
        let (lower, upper, work) = (lower.display(), upper.display(), work.display());
        let mount = format!(
            "mount -t overlay overlay -o 'lowerdir={lower},upperdir={upper},workdir={work}' '{}'",
            at.display()
        );
        Self { layers, mount }
    }

    /// Replaces a file of the lower directory.
    fn put(&self, file: &Path, name: &str) {
        copy(file, &self.layers.path().join("upper").join(name));
    }

    /// Runs the rest of a script with the overlay mounted.
    fn start(&self, rest: &str) -> Target {
        Target::spawn(&mut in_namespace(&format!("{}; {rest}", self.mount)))
    }
}

#[test]
fn a_root_on_an_overlay() {
    let merged = tempfile::tempdir().expect("there is a directory for temporary files");
    for (flags, module) in [("", LIBC), ("-static", "/program")] {
        let root = root(&Recipe::of("service.c").flags(flags).build());
        let overlay = Overlay::new(root.path(), merged.path());
        let mut target = overlay.start(&format!("exec chroot '{}' /program", merged.path().display()));
        let report = profile(&mut target);
        assert_profile(report.process(target.pid()), module);
    }
}

#[test]
fn a_mount_namespace_with_another_c_library() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let libc = folder.path().join("other-libc");
    copy(LIBC, &libc);
    let program = build("service.c");
    let mut neighbour = Target::start("service.c");
    let mut target = Target::spawn(&mut with_mount(&libc, Path::new(LIBC), &program));
    let pid = target.pid();
    assert_other_libc(pid);
    let report = profile_and_inspect(&mut target, || {
        // A process with the machine's libc is not affected by the other one's probes.
        assert_eq!(changed_code(neighbour.pid()), Vec::<String>::new());
        // Both have the same contents.
        assert!(!changed_code(pid).is_empty(), "no probes are in place");
    });
    assert_profile(report.process(pid), LIBC);
    let report = profile(&mut neighbour);
    assert_profile(report.process(neighbour.pid()), LIBC);
}

/// Builds a library with an allocator, whose functions are shifted by this many bytes.
fn plugin(shift_bytes: u32) -> PathBuf {
    Recipe::of("plugin.c").flags(&format!("-shared -fPIC -Wl,-Bsymbolic -DSHIFT={shift_bytes}")).build()
}

/// Checks a target whose library differs from the file at its path here.
#[track_caller]
fn check_library(mut target: Target, path: &Path) {
    target.work(&format!("load {}", path.display()));
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("use 100 30");
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(target.pid());
    assert_sites(process, &[("keeps", kept(25, 1000)), ("plugin_keeps", kept(30, 100))]);
    assert_eq!(modules(process, "plugin"), [path.to_str().expect("plain")]);
}

#[test]
fn a_mount_namespace_with_a_different_file_at_a_librarys_path() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let path = folder.path().join("plugin");
    copy(plugin(64), &path);
    let host = Recipe::of("host.c").libraries("-ldl").build();
    check_library(Target::spawn(&mut with_mount(&plugin(4096), &path, &host)), &path);

    let overlay = Overlay::new(folder.path(), folder.path());
    overlay.put(&plugin(4096), "plugin");
    check_library(overlay.start(&format!("exec '{}'", host.display())), &path);
}

/// Replaces or deletes a file, as package managers do.
fn upgrade(path: &Path, by: Option<&Path>) {
    let Some(by) = by else { return fs::remove_file(path).expect("it is ours") };
    let next = path.with_extension("next");
    copy(by, &next);
    fs::rename(next, path).expect("both lie in one folder");
}

/// A program with its own C library, in its own directory.
struct Installed {
    folder: tempfile::TempDir,
    target: Target,
}

impl Installed {
    fn start(program: &Path) -> Self {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let (program_here, libc_here) = (folder.path().join("service"), folder.path().join("libc.so.6"));
        copy(program, &program_here);
        copy(LIBC, &libc_here);
        let target = Target::spawn(Command::new(&program_here).env("LD_LIBRARY_PATH", folder.path()));
        Self { folder, target }
    }

    /// Replaces all its files by others that are valid and differ.
    fn replace(&self) {
        upgrade(&self.folder.path().join("service"), Some(&build("exact.c")));
        upgrade(&self.folder.path().join("libc.so.6"), Some(&plugin(64)));
    }

    fn delete(&self) {
        upgrade(&self.folder.path().join("service"), None);
        upgrade(&self.folder.path().join("libc.so.6"), None);
    }
}

#[test]
fn files_replaced_or_deleted_before_the_recording() {
    for change in [Installed::replace, Installed::delete] {
        let mut installed = Installed::start(&build("service.c"));
        change(&installed);
        let pid = installed.target.pid();
        let report = profile(&mut installed.target);
        assert_profile(report.process(pid), "/libc.so.6");
        assert_eq!(
            report.process(pid).callsites[0].stack[0].file.as_deref().map(|file| file.ends_with("service.c")),
            Some(true)
        );
    }
}

#[test]
fn files_replaced_or_deleted_during_the_recording() {
    for change in [Installed::replace, Installed::delete] {
        let mut installed = Installed::start(&build("service.c"));
        let pid = installed.target.pid();
        let mut heapbpf = Heapbpf::of(pid, "--interval 1 -o out.json");
        let session = heapbpf.start();
        installed.target.work("keep 1000 20");
        change(&installed);
        installed.target.work("keep 1000 5");
        installed.target.exit(0);
        let _ = session.wait().expect_code(0);
        let report = heapbpf.report("out.json");
        report.assert_complete();
        assert_profile(report.process(pid), "/libc.so.6");
    }
}

#[test]
fn a_static_program_that_was_replaced_or_deleted() {
    for change in [Some(build("exact.c")), None] {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let program = folder.path().join("service");
        copy(Recipe::of("service.c").flags("-static").build(), &program);
        let mut target = Target::spawn(&mut Command::new(&program));
        upgrade(&program, change.as_deref());
        let report = profile(&mut target);
        assert_profile(report.process(target.pid()), "/service");
    }
}

#[test]
fn a_stripped_copy_takes_its_place() {
    // The same code at the same offsets without names: the running program's file still has them.
    let mut installed = Installed::start(&build("service.c"));
    let stripped = installed.folder.path().join("stripped");
    run(Command::new("strip").arg("-o").arg(&stripped).arg(build("service.c")));
    upgrade(&installed.folder.path().join("service"), Some(&stripped));
    let pid = installed.target.pid();
    let report = profile(&mut installed.target);
    assert_profile(report.process(pid), "/libc.so.6");
}

#[test]
fn a_pid_namespace() {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(build("family.c"));
    let mut target = Target::spawn(&mut command);
    let pid = target.child_pid();
    let mut heapbpf = Heapbpf::of(pid, "-v --interval 1 -o out.json");
    let mut session = heapbpf.start();
    target.work("keep 1000 25");
    // Its children are followed, under their PIDs in this namespace.
    target.work("fork");
    session.wait_for("is being recorded");
    target.work("keep 7 3");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_profile(report.process(pid), LIBC);
    let child = report.child_of(pid);
    assert!(child.pid > 2, "its number is the one outside: {}", child.pid);
    assert_eq!(child.totals.exact().alloc_count, 3);
}
