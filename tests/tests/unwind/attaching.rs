//! Processes that exit or execute another program after heapbpf has found them, and before it attaches to them.

use std::process::Command;

use heapbpf::internals::{Selection, Session, SessionConfig};
use heapbpf_base::ids::Pid;
use heapbpf_tests::kernel::require_root;
use heapbpf_tests::target::{Target, build, copy_program};

pub(crate) const TESTS: [(&str, fn()); 2] = [
    ("a_process_that_exits_meanwhile_is_reported_as_such", exits),
    ("a_process_that_executes_a_program_meanwhile_has_its_name", executes),
];

/// Finds a target, calls back, and attaches to it. Returns what is recorded, or why nothing is.
fn attached(target: &mut Target, meanwhile: impl Fn(&mut Target)) -> Result<String, String> {
    require_root();
    let config = SessionConfig {
        selection: Selection { pids: vec![Pid(target.pid())], ..Selection::default() },
        inventory_bytes_max: 0,
        ..SessionConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut session = Session::start(config).expect("the program can be profiled");
        let is_to_stop = async || {
            meanwhile(target);
            false
        };
        let attached = session.attach(is_to_stop).await;
        attached.map(|()| session.describe()).map_err(|error| format!("{error:#}"))
    })
}

fn exits() {
    let mut target = Target::start("service.c");
    let pid = target.pid();
    let error = attached(&mut target, Target::kill).expect_err("it has exited");
    let expected = format!(
        "process `{pid}` exited while heapbpf attached to it; to record a program from its start: `heapbpf -- PROGRAM`"
    );
    assert_eq!(error, expected);
}

fn executes() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = folder.path().join("another");
    copy_program(build("family.c"), &program);
    let mut target = Target::spawn(&mut Command::new(build("family.c")));
    let pid = target.pid();
    let described = attached(&mut target, |target| target.exec(&format!("exec {}", program.display())));
    let described = described.expect("it is another program with an allocator");
    assert!(described.starts_with(&format!("another ({pid}): ")), "{described}");
}
