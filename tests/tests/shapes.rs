//! The kernel side for calls of each shape and outcome. Uses the library, with functions that no allocator has, so that
//! every outcome is reachable.

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use heapbpf::internals::{Counters, Kernel, KernelConfig, LinkKind, Ring};
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid};
use heapbpf_ledger::ingest::decode;
use heapbpf_ledger::ingest::event::{Allocation, Event};
use heapbpf_ledger::ingest::record::Record;
use heapbpf_linux::bpf::{AttachType, MultiLink, link_multi};
use heapbpf_tests::kernel::require_root;
use heapbpf_tests::target::{Target, build, copy_program};
use object::{Object, ObjectSegment, ObjectSymbol};
use profiler_common::arch::ARGUMENTS;
use profiler_common::counter::Counter;
use profiler_common::hook::{CallShape, HookCookie, ProbeScope, Site};
use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;
use profiler_common::sampling::SamplingRate;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// From this size on, `make_or_throw` and `remake_or_throw` may throw.
const THROW_SAFE_BYTES: u64 = 1000;

const MAKE: u16 = 0;
const MAKE_OR_THROW: u16 = 4;
const REMAKE_OR_THROW: u16 = 5;

/// The functions of `targets/shapes.cpp`, by hook.
fn hooks() -> Vec<(&'static str, HookCookie)> {
    let cookie = |shape, hook| HookCookie {
        shape,
        size: ARGUMENTS[0],
        count: None,
        pointer: None,
        page_rounded: false,
        delegates: false,
        delegates_null: false,
        has_nested_callers: false,
        may_throw: false,
        frees_on_failure: false,
        scope: ProbeScope::Any,
        site: Site::Function,
        heap: 0,
        hook,
    };
    let with_block =
        |shape, hook| HookCookie { size: ARGUMENTS[1], pointer: Some(ARGUMENTS[0]), ..cookie(shape, hook) };
    vec![
        ("make", cookie(CallShape::Alloc, MAKE)),
        ("remake", with_block(CallShape::Realloc, 1)),
        ("remake_freeing", HookCookie { frees_on_failure: true, ..with_block(CallShape::Realloc, 2) }),
        ("resize", with_block(CallShape::Resize, 3)),
        ("make_or_throw", HookCookie { may_throw: true, delegates: true, ..cookie(CallShape::Alloc, MAKE_OR_THROW) }),
        ("remake_or_throw", HookCookie { may_throw: true, ..with_block(CallShape::Realloc, REMAKE_OR_THROW) }),
    ]
}

/// Returns the offsets of functions in a file.
fn offsets(program: &Path, names: &[&str]) -> Vec<u64> {
    let bytes = fs::read(program).expect("it was just built");
    let file = object::File::parse(&*bytes).expect("it is an executable");
    let offset = |name: &str| {
        let symbol = file.symbol_by_name(name).unwrap_or_else(|| panic!("no `{name}`"));
        let holds = |start: u64, size: u64| (start..start + size).contains(&symbol.address());
        let segment = file.segments().find(|it| holds(it.address(), it.size())).expect("code is in a segment");
        symbol.address() - segment.address() + segment.file_range().0
    };
    names.iter().map(|name| offset(name)).collect()
}

/// A recorded target.
struct Watched {
    target: Target,
    kernel: Kernel,
    ring: Ring,
    _links: Vec<OwnedFd>,
    _runtime: Runtime,
    _folder: TempDir,
}

/// A shortened event; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Short {
    Alloc(u64, u64, u16),
    Restore(u64, u64),
    Free(u64),
}

impl Watched {
    fn start(links: LinkKind) -> Self {
        require_root();
        let runtime = Builder::new_current_thread().enable_all().build().expect("there is memory");
        let entered = runtime.enter();
        // A copy of its own: the kernel replaces the returns of a function in all processes of a file where one has a return probe, and
        // an exception does not pass such a return.
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let program = folder.path().join("shapes");
        copy_program(build("shapes.cpp"), &program);
        let target = Target::spawn(&mut Command::new(&program));
        let config = KernelConfig {
            ring_bytes: 1 << 16,
            back_pressure_max: 0,
            live_blocks_max: 1000,
            unwind_by_tables: false,
            row_cells: 1,
            stack_seed: 0,
            raw_stacks: false,
            all_execs: false,
            throw_safe_bytes: THROW_SAFE_BYTES,
            stubs: false,
            entries: false,
            pages: false,
        };
        let mut kernel = Kernel::load(config, links).expect("this kernel has links of this kind");
        let ring = kernel.take_ring().expect("not taken yet");
        kernel.set_target(Pid(target.pid()), 0).expect("there is room");
        let (names, cookies): (Vec<_>, Vec<_>) =
            hooks().into_iter().map(|(name, cookie)| (name, cookie.pack())).unzip();
        let offsets = offsets(&program, &names);
        let link = |program: &BorrowedFd<'_>, attach_type, at_return| {
            let pid = Some(Pid(target.pid()));
            let link = MultiLink { path: &program_path(&target), offsets: &offsets, cookies: &cookies, pid, at_return };
            link_multi(program, attach_type, link).expect("the functions can be probed")
        };
        let programs = kernel.hook_programs().expect("they are loaded");
        let links = match (kernel.link_kind(), programs.as_slice()) {
            // None of the functions only frees.
            (LinkKind::Session, [session, _free]) => vec![link(session, AttachType::UprobeSession, false)],
            (LinkKind::Multi, [entry, at_return]) => {
                vec![link(at_return, AttachType::UprobeMulti, true), link(entry, AttachType::UprobeMulti, false)]
            }
            _ => panic!("perf links are not for here"),
        };
        drop(entered);
        let mut watched = Self { target, kernel, ring, _links: links, _runtime: runtime, _folder: folder };
        watched.sample(true);
        watched
    }

    /// Samples every call from now on, or one in a billion.
    fn sample(&mut self, sampled: bool) {
        let interval = if sampled { Interval::EXACT } else { Interval::nearest(1 << 30) };
        self.kernel.set_rate(HeapId(0), SamplingRate::new(interval)).expect("the map is there");
    }

    /// Stops sampling as at the end of a recording.
    fn stop(&mut self) {
        self.kernel.set_rate(HeapId(0), SamplingRate::STOPPED).expect("the map is there");
    }

    /// Makes the target call a function, and compares the events.
    #[track_caller]
    fn check(&mut self, call: &str, expected: &[Short]) {
        let _ = self.target.work(call);
        let mut events = Vec::new();
        self.ring.drain(usize::MAX, |bytes| match decode(bytes) {
            Ok(Record::Event(event)) => events.push(event),
            other => panic!("{other:?}"),
        });
        let block = |it: &Allocation| (it.address.0, it.size_bytes);
        let found: Vec<Short> = events
            .iter()
            .filter_map(|event| match event {
                Event::Alloc(made @ Allocation { hook: HookId(hook), .. }) => {
                    let (address, size_bytes) = block(made);
                    Some(Short::Alloc(address, size_bytes, *hook))
                }
                Event::Restore(made) => Some(Short::Restore(block(made).0, block(made).1)),
                Event::Free(free) => {
                    let TargetAddr(address) = free.address;
                    Some(Short::Free(address))
                }
                Event::Stack(..) => None,
                Event::Remap(_) => panic!("{event:?}"),
            })
            .collect();
        assert_eq!(found, expected, "{call}");
    }

    /// Returns the drops so far.
    fn losses(&self) -> Vec<(Counter, u64)> {
        Counters::read(&self.kernel).expect("the map is there").losses().collect()
    }
}

fn program_path(target: &Target) -> std::path::PathBuf {
    format!("/proc/{}/exe", target.pid()).into()
}

const LINKS: [LinkKind; 2] = [LinkKind::Session, LinkKind::Multi];

fn live_blocks_of(kernel: &Kernel, pid: Pid) -> Vec<(TargetAddr, LiveBlock)> {
    let mut blocks = Vec::new();
    let keep = |owner: Pid, address, block| {
        if owner == pid {
            blocks.push((address, block));
        }
        true
    };
    kernel.live_reader().expect("the map is there").sift(keep).expect("it can be read");
    blocks
}

#[test]
fn a_block_is_resized_in_place() {
    for links in LINKS {
        let mut watched = Watched::start(links);
        watched.check("make 100 4096", &[Short::Alloc(4096, 100, MAKE)]);
        watched.check("resize 4096 200 256", &[Short::Free(4096), Short::Alloc(4096, 200, 3)]);
        watched.check("resize 4096 256 256", &[Short::Free(4096), Short::Alloc(4096, 256, 3)]);
        // The kernel returns less than requested: nothing has changed.
        watched.check("resize 4096 300 256", &[Short::Free(4096), Short::Restore(4096, 256)]);
        watched.check("resize 8192 300 256", &[]);
        watched.check("resize 8192 300 320", &[Short::Alloc(8192, 300, 3)]);
        watched.sample(false);
        watched.check("resize 4096 300 256", &[Short::Free(4096), Short::Restore(4096, 256)]);
        watched.check("resize 4096 300 320", &[Short::Free(4096)]);
        watched.check("resize 4096 310 320", &[]);
        assert_eq!(watched.losses(), []);
    }
}

#[test]
fn live_blocks_stay_live_when_the_recording_ends() {
    for links in LINKS {
        let mut watched = Watched::start(links);
        watched.check("make 100 4096", &[Short::Alloc(4096, 100, MAKE)]);
        watched.stop();
        watched.check("resize 4096 300 320", &[]);
        watched.check("remake_freeing 4096 200 8192", &[]);
        watched.sample(true);
        watched.check("resize 4096 300 320", &[Short::Free(4096), Short::Alloc(4096, 300, 3)]);
        assert_eq!(watched.losses(), []);
    }
}

#[test]
fn a_failing_realloc_keeps_the_old_block_unless_it_frees_it() {
    for links in LINKS {
        let mut watched = Watched::start(links);
        watched.check("make 100 4096", &[Short::Alloc(4096, 100, MAKE)]);
        watched.check("remake 4096 200 0", &[Short::Free(4096), Short::Restore(4096, 100)]);
        watched.check("remake_freeing 4096 200 8192", &[Short::Free(4096), Short::Alloc(8192, 200, 2)]);
        watched.check("remake_freeing 8192 300 0", &[Short::Free(8192)]);
        watched.check("remake_freeing 8192 300 0", &[]);
        assert_eq!(watched.losses(), []);
    }
}

#[test]
fn a_block_whose_free_was_missed_is_replaced_by_the_next_one() {
    for links in LINKS {
        let mut watched = Watched::start(links);
        watched.check("make 100 4096", &[Short::Alloc(4096, 100, MAKE)]);
        watched.check("make 200 4096", &[Short::Alloc(4096, 200, MAKE)]);
        watched.check("make 300 8192", &[Short::Alloc(8192, 300, MAKE)]);
        watched.check("remake_freeing 4096 1 0", &[Short::Free(4096)]);
        watched.check("remake_freeing 4096 1 0", &[]);
        watched.check("remake_freeing 8192 1 0", &[Short::Free(8192)]);
        watched.check("make 400 4096", &[Short::Alloc(4096, 400, MAKE)]);
        watched.check("remake_freeing 4096 1 0", &[Short::Free(4096)]);
        assert_eq!(watched.losses(), [(Counter::MissedFree, 1)]);
    }
}

#[test]
fn a_call_that_may_throw_is_not_probed_and_its_nested_calls_are() {
    let mut watched = Watched::start(LinkKind::Session);
    watched.check("make_or_throw 999 4096", &[Short::Alloc(4096, 999, MAKE_OR_THROW)]);
    assert_eq!(watched.losses(), []);
    watched.check("make_or_throw 1000 8192", &[Short::Alloc(8192, 1000, MAKE)]);
    assert_eq!(watched.losses(), [(Counter::MayThrow, 1)]);
    // It throws, and the exception propagates.
    watched.check("make_or_throw 1000 0", &[]);
    watched.check("make 10 12288", &[Short::Alloc(12288, 10, MAKE)]);
    watched.check("make_or_throw 20 16384", &[Short::Alloc(16384, 20, MAKE_OR_THROW)]);
    assert_eq!(watched.losses(), [(Counter::MayThrow, 2)]);
    watched.target.assert_running();
}

/// What a call has moved is not known without its return: the old block counts as freed, and the new one is missing.
#[test]
fn a_realloc_that_may_throw_is_not_probed() {
    let mut watched = Watched::start(LinkKind::Session);
    watched.check("make 400 4096", &[Short::Alloc(4096, 400, MAKE)]);
    watched.check("remake_or_throw 4096 999 8192", &[Short::Free(4096), Short::Alloc(8192, 999, REMAKE_OR_THROW)]);
    assert_eq!(watched.losses(), []);
    watched.check("remake_or_throw 8192 1000 12288", &[Short::Free(8192)]);
    assert_eq!(watched.losses(), [(Counter::MayThrow, 1)]);
    // It throws, and the exception propagates.
    watched.check("remake_or_throw 12288 1000 0", &[]);
    assert_eq!(watched.losses(), [(Counter::MayThrow, 2)]);
    watched.target.assert_running();
}

#[test]
fn calls_of_other_processes_are_not_sampled_although_probed() {
    for links in LINKS {
        let mut watched = Watched::start(links);
        let pid = Pid(watched.target.pid());
        watched.check("make 100 4096", &[Short::Alloc(4096, 100, MAKE)]);
        watched.kernel.forget_target(pid).expect("it is there");
        watched.check("make 100 8192", &[]);
        watched.check("resize 8192 200 256", &[]);
        // The block is still in the live set, and its free is recorded.
        assert_eq!(live_blocks_of(&watched.kernel, pid).len(), 1);
        watched.check("resize 4096 200 256", &[Short::Free(4096)]);
        assert_eq!(live_blocks_of(&watched.kernel, pid), []);
        watched.kernel.set_target(pid, 0).expect("there is room");
        watched.check("make 100 12288", &[Short::Alloc(12288, 100, MAKE)]);
        assert_eq!(watched.losses(), []);
    }
}
