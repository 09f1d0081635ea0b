//! Everything that heapbpf creates, replaces or removes, and all that it listens at, is where the user's names lead to, and not where a
//! link of another user does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, copy_program, run};
use tempfile::TempDir;

use super::{OTHER, open_folder};

/// Each file of the agent that writes through the modules of the crate `linux`, and its test. Paths are below `profiler/src`.
const WRITERS: [(&str, fn()); 9] = [
    ("cli/output.rs", outputs_behind_links_of_others_are_refused),
    ("cli/symbolize.rs", named_recordings_are_not_behind_links_of_others),
    ("debuginfod/cache.rs", debug_files_are_not_cached_behind_links_of_others),
    ("debuginfod/mod.rs", debug_files_are_not_cached_behind_links_of_others),
    ("interpreter/java/perf_map.rs", requests_to_virtual_machines_need_the_rights_of_their_user),
    ("push/queue.rs", outputs_behind_links_of_others_are_refused),
    ("recording/write.rs", outputs_behind_links_of_others_are_refused),
    ("serve/socket.rs", outputs_behind_links_of_others_are_refused),
    ("unwind/cache.rs", unwind_tables_are_not_cached_behind_links_of_others),
];

/// What files have that write.
const NAMES: [&str; 4] = ["Replacement", "linux::folder", "linux::listener", "linux::place"];

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources are there") {
        let path = entry.expect("the sources are there").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn each_writer_has_a_test() {
    let profiler = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler");
    let (root, crates) = (profiler.join("src"), profiler.join("crates"));
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    rust_files(&crates, &mut files);
    files.retain(|path| !path.starts_with(crates.join("linux")));
    let writes = |path: &&PathBuf| {
        let text = fs::read_to_string(path).expect("sources are text");
        NAMES.iter().any(|name| text.contains(name))
    };
    let name = |path: &PathBuf| path.strip_prefix(&root).unwrap_or(path).to_str().expect("UTF-8").to_owned();
    let found: BTreeSet<String> = files.iter().filter(writes).map(name).collect();
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    let listed: BTreeSet<&str> = WRITERS.iter().map(|(file, _)| *file).collect();
    assert_eq!(found, listed, "each file that writes is in this table, with a test that it does not for another user");
}

/// A link of another user, `way`, to a folder of root's, `own`, which must stay empty.
struct Ground(TempDir);

impl Ground {
    fn new() -> Self {
        kernel::require_root();
        let folder = open_folder();
        fs::create_dir(folder.path().join("own")).expect("ours");
        symlink("own", folder.path().join("way")).expect("ours");
        lchown(folder.path().join("way"), Some(OTHER), None).expect("tests run as root");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn way(&self) -> String {
        self.path("way").to_str().expect("UTF-8").to_owned()
    }

    #[track_caller]
    fn check_refused(&self, mut heapbpf: Heapbpf, what: &str) {
        let error = heapbpf.run().expect_error(1);
        assert!(error.contains("`way` on the way is a link of user 65534"), "{what}: {error}");
        self.check_empty(what);
    }

    #[track_caller]
    fn check_empty(&self, what: &str) {
        let found: Vec<_> = fs::read_dir(self.path("own")).expect("ours").collect();
        assert!(found.is_empty(), "{what}: {found:?}");
    }
}

#[test]
fn outputs_behind_links_of_others_are_refused() {
    let (ground, target) = (Ground::new(), Target::start("exact.c"));
    for options in [
        "-o WAY/x.svg",
        "-o WAY/x.heapbpf",
        "--serve unix:WAY/socket",
        "--push otlp+http://127.0.0.1:1 --push-queue WAY/queue",
    ] {
        let heapbpf = Heapbpf::of(target.pid(), &options.replace("WAY", &ground.way()));
        ground.check_refused(heapbpf, options);
    }
    let output = format!("{}/log", ground.way());
    ground.check_refused(Heapbpf::new(["top", "--once", "--command-output", &output, "--", "true"]), "top");
}

/// The owner of the folder above can exchange it, whether its path is named or is that of the current directory.
#[test]
fn sockets_below_folders_of_others_are_refused() {
    let (ground, target) = (Ground::new(), Target::start("exact.c"));
    chown(ground.path(""), Some(OTHER), None).expect("tests run as root");
    let absolute = ground.path("own/socket");
    for name in [absolute.to_str().expect("UTF-8"), "socket", "./socket"] {
        let mut command = Command::new("sh");
        let script =
            "cd \"$1\" && exec \"$2\" --pid \"$3\" --no-inventory --format json -o /dev/null --serve \"unix:$4\"";
        command.args(["-c", script, "sh"]).arg(ground.path("own")).arg(binary());
        command.args([&target.pid().to_string(), name]);
        let error = Heapbpf::with_command(command).run().expect_error(1);
        assert!(error.contains("that other users may change"), "{name}: {error}");
        ground.check_empty(name);
    }
}

fn record(target: &mut Target, command: Command) -> Heapbpf {
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    target.work("go");
    let _ = session.interrupt().expect_code(0);
    heapbpf
}

fn recording_of(target: &Target) -> Command {
    let mut command = Command::new(binary());
    command.args(["--no-inventory", "--interval", "1", "-o", "x.heapbpf", "--pid", &target.pid().to_string()]);
    command
}

#[test]
fn named_recordings_are_not_behind_links_of_others() {
    let (ground, mut target) = (Ground::new(), Target::start("exact.c"));
    let command = recording_of(&target);
    let heapbpf = record(&mut target, command);
    let (recording, output) = (heapbpf.file("x.heapbpf"), format!("{}/y.heapbpf", ground.way()));
    let words = ["symbolize", recording.to_str().expect("UTF-8"), "-o", &output];
    ground.check_refused(Heapbpf::new(words), "symbolize");
}

#[test]
fn unwind_tables_are_not_cached_behind_links_of_others() {
    let ground = Ground::new();
    for (cache, is_used) in [("way/cache", false), ("cache", true)] {
        let mut target = Target::start("exact.c");
        let mut command = recording_of(&target);
        command.env("XDG_CACHE_HOME", ground.path(cache));
        record(&mut target, command);
        ground.check_empty(cache);
        assert_eq!(ground.path(cache).join("heapbpf/unwind").is_dir(), is_used, "{cache}");
    }
}

/// A server that has no file, until the test ends.
fn server_without_files() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    format!("http://{address}")
}

#[test]
fn debug_files_are_not_cached_behind_links_of_others() {
    let ground = Ground::new();
    let (url, program) = (server_without_files(), Recipe::of("stripped.c").flags("-Wl,--build-id -s").build());
    for (cache, is_used) in [("way/cache", false), ("cache", true)] {
        let mut command = Command::new("env");
        command.arg(format!("DEBUGINFOD_URLS={url}"));
        command.arg(format!("DEBUGINFOD_CACHE_PATH={}", ground.path(cache).display()));
        command.arg(binary()).args(["--interval", "1", "--on-overload", "drop", "-o", "x.json", "--"]).arg(&program);
        let _ = Heapbpf::with_command(command).run().expect_code(0);
        ground.check_empty(cache);
        assert_eq!(ground.path(cache).exists(), is_used, "{cache}");
    }
}

/// A process can have a folder at `/tmp` where only root may create files.
#[test]
fn requests_to_virtual_machines_need_the_rights_of_their_user() {
    let ground = Ground::new();
    let (program, library) = (ground.path("posing"), ground.path("libjvm.so"));
    copy_program(Recipe::of("posing.c").build(), &program);
    run(Command::new("gcc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&library));
    let script = "mount --bind \"$1\" /tmp && exec setpriv --reuid 65534 --regid 65534 --clear-groups env \
        LD_LIBRARY_PATH=\"$2\" \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(ground.path("own")).arg(ground.path("")).arg(&program);
    let mut target = Target::spawn(&mut command);
    let changed = || {
        let metadata = ground.path("own").metadata().expect("ours");
        (metadata.mtime(), metadata.mtime_nsec())
    };
    let before = changed();
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --jvm-perfmap -o x.json");
    let session = heapbpf.start();
    target.work("go");
    let outcome = session.interrupt().expect_code(0);
    assert!(outcome.stderr.contains("writes no perf map: Permission denied"), "{}", outcome.stderr);
    assert_eq!(changed(), before, "a file was created in a folder of root, and removed");
    ground.check_empty("request");
}
