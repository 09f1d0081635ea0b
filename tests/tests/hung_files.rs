//! Programs on file systems that do not answer, answer late, end, or belong to other users.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use heapbpf_tests::fuse::{Fuse, Options};
use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary};
use heapbpf_tests::kernel::{changed_code, wait_until};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::Ledger;
use heapbpf_tests::shared::java_classes;
use heapbpf_tests::target::{Target, build};

const OTHER: u32 = 65534;

/// A program on a file system, which is unmounted first: the program may wait for it.
struct Ground {
    fuse: Fuse,
    target: Target,
}

impl Ground {
    /// The program runs as the user who serves the file system. All of its file is in memory.
    fn start(recipe: &Recipe, name: &str, options: Options) -> Self {
        let fuse = Fuse::mount(&[("program", &recipe.build())], options);
        let mut command = Command::new(fuse.path("program"));
        if options.user != 0 {
            command.uid(options.user).gid(options.user);
        }
        let target = Target::spawn(command.arg0(name));
        if options.user == 0 {
            fs::read(fuse.path("program")).expect("it answers");
        }
        Self { fuse, target }
    }

    fn record(&mut self) -> (Heapbpf, Outcome, Ledger) {
        self.record_with("", Fuse::answer)
    }

    /// `act` changes the file system before heapbpf starts.
    fn record_with(&mut self, options: &str, act: impl FnOnce(&mut Fuse)) -> (Heapbpf, Outcome, Ledger) {
        act(&mut self.fuse);
        let mut heapbpf = Heapbpf::of(self.target.pid(), &format!("--interval 1 -o out.json {options}"));
        let session = heapbpf.start();
        let ledger = self.target.work("go");
        (heapbpf, session.interrupt(), ledger)
    }

    fn unanswered(&self) -> String {
        format!("`{}` does not answer", self.fuse.folder().display())
    }

    fn has_names(&self, heapbpf: &Heapbpf) -> bool {
        let report = heapbpf.report("out.json");
        report.process(self.target.pid()).callsites.iter().any(|callsite| callsite.has(|name| name == "mallocs"))
    }

    #[track_caller]
    fn assert_exact(&self, heapbpf: &Heapbpf, ledger: &Ledger) {
        assert_eq!(heapbpf.report("out.json").process(self.target.pid()).totals.exact(), ledger.sum());
    }
}

fn exact() -> Recipe {
    Recipe::of("exact.c")
}

/// A name that no other process has.
fn unique(word: &str) -> String {
    format!("{word}-of-{}", std::process::id())
}

#[test]
fn programs_are_recorded_without_names_while_their_file_system_does_not_answer() {
    let mut ground = Ground::start(&exact(), "program", Options::default());
    let (heapbpf, outcome, ledger) = ground.record_with("", Fuse::hang);
    ground.assert_exact(&heapbpf, &ledger);
    assert!(!ground.has_names(&heapbpf));
    assert!(outcome.stderr.contains(&ground.unanswered()), "{outcome:?}");
    assert!(outcome.stdout.contains(&ground.unanswered()), "{outcome:?}");
    // Another recording finds it answering.
    ground.fuse.answer();
    ground.target = Target::spawn(&mut Command::new(ground.fuse.path("program")));
    let (heapbpf, _, ledger) = ground.record();
    heapbpf.report("out.json").process(ground.target.pid()).assert_matches(&ledger);
}

#[test]
fn programs_are_recorded_while_their_file_system_has_ended() {
    let mut ground = Ground::start(&exact(), "program", Options::default());
    let (heapbpf, _, ledger) = ground.record_with("", Fuse::die);
    ground.assert_exact(&heapbpf, &ledger);
}

#[test]
fn others_are_recorded_beside_a_file_system_that_does_not_answer() {
    let name = unique("held");
    let mut ground = Ground::start(&exact(), &name, Options::default());
    let mut other = Target::spawn(Command::new(build("exact.c")).arg0(&name));
    ground.fuse.hang();
    let mut heapbpf = Heapbpf::new(["--cmdline", &name, "--interval", "1", "-o", "out.json"]);
    let session = heapbpf.start();
    let ledgers = [ground.target.work("go"), other.work("go")];
    let _ = session.interrupt();
    ground.assert_exact(&heapbpf, &ledgers[0]);
    heapbpf.report("out.json").process(other.pid()).assert_matches(&ledgers[1]);
}

/// Without its symbols, there is no place for probes.
#[test]
fn others_are_recorded_beside_a_process_that_cannot_be() {
    let mut ground = Ground::start(&exact().flags("-static"), "program", Options::default());
    let mut other = Target::start("exact.c");
    ground.fuse.hang();
    let [held, answering] = [ground.target.pid(), other.pid()].map(|pid| pid.to_string());
    let options = ["--interval", "1", "-o", "out.json"];
    let mut heapbpf = Heapbpf::new(["--pid", &held, "--pid", &answering].into_iter().chain(options));
    let session = heapbpf.start();
    let ledger = other.work("go");
    let outcome = session.interrupt().expect_code(3);
    heapbpf.report("out.json").process(other.pid()).assert_matches(&ledger);
    let warning = format!("heapbpf: warning: process {held} is not recorded: ");
    assert!(outcome.stderr.contains(&warning) && outcome.stderr.contains(&ground.unanswered()), "{outcome:?}");
    for part in ["health: incomplete: 1 process not recorded", "1 process could not be profiled, such as "] {
        assert!(outcome.stdout.contains(part), "{part}: {outcome:?}");
    }
    let alone = Heapbpf::new(["--pid", &held]).run().expect_error(1);
    assert!(alone.contains(&ground.unanswered()), "{alone}");
}

#[test]
fn a_program_is_not_started_from_a_file_system_that_does_not_answer() {
    let mut fuse = Fuse::mount(&[("program", &exact().build())], Options::default());
    fuse.hang();
    let message = Heapbpf::new(["--".into(), fuse.path("program")]).run().expect_error(126);
    assert!(message.contains(&format!("`{}` does not answer", fuse.folder().display())), "{message}");
}

/// Such a program has its file system at `/`.
#[test]
fn a_file_system_has_the_name_that_it_has_for_root() {
    let mut fuse = Fuse::mount(&[("program", &exact().flags("-static").build())], Options::default());
    let target = Target::spawn(Command::new("chroot").arg(fuse.folder()).arg("/program"));
    fuse.hang();
    let message = Heapbpf::of(target.pid(), "").run().expect_error(1);
    assert!(message.contains(&format!("`{}` does not answer", fuse.folder().display())), "{message}");
}

/// In whichever phase it comes.
#[test]
fn an_interrupt_ends_heapbpf_while_a_file_system_does_not_answer() {
    let mut ground = Ground::start(&exact(), "program", Options::default());
    ground.fuse.hang();
    let pid = ground.target.pid().to_string();
    let commands = [
        &["--pid", &pid, "--interval", "1"][..],
        &["top", "--pid", &pid, "--json", "--duration", "1h"],
        &["leaks", "--pid", &pid],
    ];
    for arguments in commands {
        for wait in ["", "does not answer"] {
            let mut heapbpf = Heapbpf::new(arguments);
            let mut session = heapbpf.spawn();
            if !wait.is_empty() {
                session.wait_for(wait);
            }
            let outcome = session.interrupt();
            assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
        }
    }
}

/// It tries again at each of its scans.
#[test]
fn an_agent_records_others_beside_a_file_system_that_does_not_answer() {
    let name = unique("held");
    let mut ground = Ground::start(&Recipe::of("service.c"), &name, Options::default());
    let other = Target::spawn(Command::new(build("service.c")).arg0(&name));
    ground.fuse.hang();
    let folder = tempfile::tempdir().expect("temporary folder");
    let config = folder.path().join("agent.toml");
    let text = "[budget]\nmax-cpu = \"100%\"\n[duty]\nrecord = \"1s\"\nevery = \"4s\"\n";
    let select = format!("[select]\ncommands = [\"{name}\"]\nmin-age = \"1s\"\nscan-every = \"1s\"\n");
    let stop = format!("stop-file = \"{}\"\n", folder.path().join("stop").display());
    fs::write(&config, stop + text + &select).expect("ours");
    let mut heapbpf = Heapbpf::new(["agent".as_ref(), "--config".as_ref(), config.as_os_str()]);
    let mut session = heapbpf.spawn();
    for _ in 0..2 {
        session.wait_for("heapbpf: info: recording ");
        wait_until("probes are attached", || !changed_code(other.pid()).is_empty());
        session.wait_for("heapbpf: info: recorded 2 processes for ");
    }
    let _ = session.terminate().expect_code(0);
}

#[test]
fn programs_of_other_users_file_systems_have_names() {
    let options = Options { user: OTHER, ..Options::default() };
    let mut ground = Ground::start(&exact(), "program", options);
    let (heapbpf, outcome, ledger) = ground.record();
    assert!(fs::read(ground.fuse.path("program")).is_err(), "root may not read it");
    heapbpf.report("out.json").process(ground.target.pid()).assert_matches(&ledger);
    let _ = outcome.expect_counted();
}

#[test]
fn programs_have_names_where_files_cannot_be_mapped_shared() {
    let options = Options { is_direct: true, ..Options::default() };
    let mut ground = Ground::start(&exact(), "program", options);
    let (heapbpf, _, ledger) = ground.record();
    heapbpf.report("out.json").process(ground.target.pid()).assert_matches(&ledger);
}

/// Probes are placed in the file itself.
#[test]
fn allocators_on_served_file_systems_are_probed_unless_another_user_could_stop_the_kernel() {
    for is_direct in [false, true] {
        let mut ground =
            Ground::start(&exact().flags("-static"), "program", Options { is_direct, ..Options::default() });
        let (heapbpf, _, ledger) = ground.record();
        heapbpf.report("out.json").process(ground.target.pid()).assert_matches(&ledger);
    }
    let options = Options { user: OTHER, ..Options::default() };
    let ground = Ground::start(&exact().flags("-static"), "program", options);
    let message = Heapbpf::of(ground.target.pid(), "").run().expect_error(1);
    assert!(message.contains("another user serves the file system of its file"), "{message}");
}

/// What the user's own configuration names, on a file system that does not answer.
fn record_with_configuration(recipe: &Recipe, arguments: &[&str], environment: &[(&str, &Path)], expected: &str) {
    let mut target = Target::spawn(&mut Command::new(recipe.build()));
    let mut command = Command::new(binary());
    command.args(["--pid", &target.pid().to_string(), "--no-inventory", "--interval", "1", "--on-overload", "drop"]);
    command.args(["-o", "out.json"]).args(arguments).env_remove("XDG_CACHE_HOME").envs(environment.iter().copied());
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    let ledger = target.work("go");
    let outcome = session.interrupt();
    assert_eq!(heapbpf.report("out.json").process(target.pid()).totals.exact(), ledger.sum());
    assert_eq!(outcome.stderr.matches(expected).count(), 1, "{expected}: {outcome:?}");
}

#[test]
fn caches_and_folders_that_do_not_answer_are_not_used() {
    let mut fuse = Fuse::mount(&[], Options::default());
    fuse.hang();
    let name = fuse.folder().display().to_string();
    let stripped = exact().flags("-s -Wl,--build-id");
    record_with_configuration(
        &exact(),
        &[],
        &[("XDG_CACHE_HOME", fuse.folder())],
        &format!("heapbpf: warning: unwind tables are not cached: `{name}` does not answer"),
    );
    // Each of the program's modules would have a file there.
    record_with_configuration(
        &stripped,
        &["--debug-dir", &name],
        &[],
        &format!("heapbpf: warning: `{name}` does not answer: debug files below it are not used"),
    );
    for variable in ["DEBUGINFOD_CACHE_PATH", "HOME"] {
        record_with_configuration(
            &stripped,
            &["--debuginfod", "http://127.0.0.1:9"],
            &[(variable, fuse.folder())],
            &format!("heapbpf: warning: debug files are not cached: `{name}` does not answer"),
        );
    }
}

/// The map of a virtual machine is requested in its `/tmp`, which hangs.
#[test]
fn a_perf_map_is_not_requested_through_a_file_system_that_does_not_answer() {
    let mut fuse = Fuse::mount(&[], Options::default());
    let script = "mount --bind \"$0\" /tmp && exec java -XX:-UsePerfData -cp \"$1\" Waiting";
    let mut java = Command::new("unshare");
    java.args(["--mount", "sh", "-c", script]).arg(fuse.folder()).arg(java_classes("Waiting"));
    let mut java = java.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("util-linux is installed");
    let output = java.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut String::new()).expect("it prints a line, and waits");
    fuse.hang();
    let mut heapbpf = Heapbpf::of(java.id(), "--jvm-perfmap -o out.json");
    let mut session = heapbpf.start();
    session.wait_for("may not answer");
    let outcome = session.interrupt();
    assert!(outcome.stderr.contains("writes no perf map: `tmp` is on a file system"), "{}", outcome.stderr);
    assert!(heapbpf.report("out.json").process(java.id()).heaps.iter().all(|heap| heap.hooks.len() > 1));
    drop(java.stdin.take());
    fuse.answer();
    java.kill().and_then(|()| java.wait()).expect("it is our child");
}
