//! Allocators that are loaded and unloaded while the target is recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Callsite, Counts, Process, Report};
use heapbpf_tests::target::Target;

use super::{kept, modules};

/// Logged when hooks are added to a recorded target.
const MORE: &str = "more hooks";

fn plugin(flags: &str) -> PathBuf {
    Recipe::of("plugin.c").flags(&format!("-shared -fPIC -Wl,-Bsymbolic {flags}")).build()
}

/// A target that can load a library, and heapbpf recording it.
struct Watched {
    target: Target,
    heapbpf: Heapbpf,
    session: Session,
}

impl Watched {
    fn start() -> Self {
        let program = Recipe::of("host.c").libraries("-ldl").build();
        let target = Target::spawn(&mut std::process::Command::new(program));
        let mut heapbpf = Heapbpf::of(target.pid(), "-v --interval 1 -o out.json");
        let session = heapbpf.start();
        Self { target, heapbpf, session }
    }

    /// Makes it load a library, and waits until the library is recorded too.
    fn load(&mut self, library: &Path) {
        self.target.work(&format!("load {}", library.display()));
        self.session.wait_for(MORE);
    }

    /// Waits until heapbpf has inspected a library that the target has loaded.
    fn wait_until_opened(&self, library: &Path) {
        let descriptors = format!("/proc/{}/fd", self.session.pid());
        let is_open = || {
            let mut files = fs::read_dir(&descriptors).expect("heapbpf runs").flatten();
            files.any(|file| fs::read_link(file.path()).is_ok_and(|path| path == library))
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_open() {
            assert!(Instant::now() < deadline, "`{}` is not inspected", library.display());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn finish(self) -> Report {
        let mut target = self.target;
        let _ = self.session.interrupt().expect_counted();
        target.assert_running();
        let report = self.heapbpf.report("out.json");
        report.assert_complete();
        report
    }
}

#[test]
fn a_library_with_its_own_malloc() {
    let mut watched = Watched::start();
    let library = plugin("");
    watched.target.work("keep 1000 10");
    watched.load(&library);
    watched.target.work("use 100 30");
    watched.target.work("keep 1000 15");
    let pid = watched.target.pid();
    let report = watched.finish();
    let process = report.process(pid);
    assert_sites(process, &[("keeps", kept(25, 1000)), ("plugin_keeps", kept(30, 100))]);
    assert_eq!(modules(process, "plugin"), [library.to_str().expect("plain")]);
    assert_eq!(process.heap("plugin").totals.exact(), kept(30, 100));
}

/// Fails unless these functions have these counts, and only the dynamic linker allocated besides, for the library.
#[track_caller]
fn assert_sites(process: &Process, sites: &[(&str, Counts)]) {
    let reported = process.exact_by_leaf();
    for (function, counts) in sites {
        assert_eq!(reported.get(*function), Some(counts), "{function} in {reported:#?}");
    }
    for callsite in process.callsites.iter().filter(|callsite| callsite.stack.len() > 1) {
        let leaf = callsite.stack[0].function.as_deref().unwrap_or_default();
        let expected = sites.iter().any(|(function, _)| *function == leaf);
        assert!(expected || callsite.has(|function| function == "load" || function == "dlclose"), "{callsite:#?}");
    }
}

#[test]
fn a_library_with_prefixed_names() {
    let names = ["malloc", "free", "calloc", "realloc", "aligned_alloc", "memalign", "valloc", "posix_memalign"];
    let flags: Vec<String> = names.iter().map(|name| format!("-D{name}=je_{name}")).collect();
    let mut watched = Watched::start();
    watched.load(&plugin(&flags.join(" ")));
    watched.target.work("use 100 30");
    let pid = watched.target.pid();
    let report = watched.finish();
    let process = report.process(pid);
    assert_sites(process, &[("plugin_keeps", kept(30, 100))]);
    assert_eq!(process.heap("jemalloc").totals.exact(), kept(30, 100));
}

#[test]
fn nested_calls_count_once() {
    for flags in ["", "-DWRAPS"] {
        let mut watched = Watched::start();
        watched.load(&plugin(flags));
        watched.target.work("use 100 30");
        let resized = watched.target.work("resize 5000").site("plugin_resizes").counts;
        let freed = watched.target.work("free");
        assert_eq!(freed.sum(), Counts::default(), "the ledger is of one line");
        let pid = watched.target.pid();
        let report = watched.finish();
        let process = report.process(pid);
        assert_eq!((resized.alloc_count, resized.alloc_bytes), (30, 150_000));
        let gone = |count, bytes| Counts {
            free_count: count,
            free_bytes: bytes,
            live_count: 0,
            live_bytes: 0,
            ..kept(count, bytes / count)
        };
        let sites = [("plugin_keeps", gone(30, 3000)), ("plugin_resizes", gone(30, 150_000))];
        assert_sites(process, &sites);
        assert_eq!(
            process.heap("plugin").totals.exact(),
            gone(60, 153_000),
            "{flags}: in the heap of the outermost call"
        );
    }
}

#[test]
fn a_library_that_is_unloaded_and_loaded_again() {
    let mut watched = Watched::start();
    let library = plugin("");
    let load = format!("load {}", library.display());
    watched.load(&library);
    watched.target.work("use 100 30");
    watched.target.work("unload");
    watched.target.work("keep 1000 25");
    // Once another library is recorded, the target was scanned while the first was unloaded.
    watched.load(&plugin("-DSHIFT=4096"));
    watched.target.work("use 7 3");
    watched.target.work(&load);
    watched.target.work("use 100 1");
    // And since then.
    watched.load(&plugin("-DSHIFT=8192"));
    watched.target.work("use 13 2");
    watched.target.work(&load);
    watched.target.work("use 100 4");
    let pid = watched.target.pid();
    let report = watched.finish();
    let process = report.process(pid);
    let (count, bytes) = (30 + 3 + 1 + 2 + 4, 3000 + 21 + 100 + 26 + 400);
    assert_eq!(
        process.heap("plugin").totals.exact(),
        Counts { alloc_bytes: bytes, live_bytes: bytes, ..kept(count, 0) }
    );
    assert_eq!(process.exact_by_leaf()["keeps"], kept(25, 1000));
    assert_eq!(modules(process, "plugin").len(), 3, "{:#?}", process.heaps);
}

#[test]
fn hooks_of_an_unloaded_library_are_reported() {
    let mut watched = Watched::start();
    let library = plugin("");
    watched.load(&library);
    watched.target.work("use 100 30");
    watched.target.work("unload");
    watched.load(&plugin("-Dmalloc=je_malloc -Dfree=je_free -Drealloc=je_realloc"));
    let pid = watched.target.pid();
    let report = watched.finish();
    let process = report.process(pid);
    assert_eq!(process.heap("plugin").totals.exact(), kept(30, 100));
    assert!(modules(process, "plugin").contains(&library.to_str().expect("plain")), "{:#?}", process.heaps);
}

#[test]
fn a_library_whose_first_stacks_are_of_another_heap() {
    let mut watched = Watched::start();
    // New targets are scanned anyway; later libraries must be detected.
    thread::sleep(Duration::from_millis(2500));
    let library = plugin("");
    watched.target.work(&format!("load {}", library.display()));
    watched.target.work("copy 10");
    watched.session.wait_for(MORE);
    watched.target.work("use 100 30");
    let pid = watched.target.pid();
    let report = watched.finish();
    let process = report.process(pid);
    assert_eq!(process.exact_by_leaf()["plugin_keeps"], kept(30, 100));
    let copies = process.exact_under(|function| function == "plugin_copies");
    assert_eq!(copies, kept(10, 100), "{:#?}", process.callsites);
}

#[test]
fn a_library_without_an_allocator_changes_nothing() {
    let mut watched = Watched::start();
    let library = plugin("-DNO_HEAP");
    watched.target.work(&format!("load {}", library.display()));
    watched.wait_until_opened(&library);
    watched.target.work("use 100 30");
    watched.target.work("unload");
    watched.target.work("keep 1000 25");
    let pid = watched.target.pid();
    let report = watched.finish();
    let process = report.process(pid);
    assert_eq!(process.heap_names(), ["libc"]);
    let of_keeps: Vec<_> = process.exact_by_leaf().into_iter().filter(|(name, _)| name == "keeps").collect();
    assert_eq!(of_keeps, [("keeps".to_owned(), kept(25, 1000))]);
    // The library's functions have no names any more; their callers do.
    assert_eq!(process.exact_under(|function| function == "plugin_keeps"), kept(30, 100));
    let mut of_work = Counts::default();
    let is_linker = |function: &str| function == "load" || function == "dlclose";
    let of_blocks = |it: &&Callsite| it.has(|function| function == "work") && !it.has(is_linker);
    process.callsites.iter().filter(of_blocks).for_each(|callsite| of_work.add(callsite.totals.exact()));
    assert_eq!(of_work, Counts::kept(25 + 30, 25_000 + 3000), "{:#?}", process.callsites);
}
