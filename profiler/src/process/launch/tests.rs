//! Tests with real programs. Some run an ignored test of this file in another process.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use heapbpf_linux::signals::Inherited;
use heapbpf_linux::spawn::spawn_resumed;
use rustix::process::{Signal, kill_process};

use super::*;
use heapbpf_base::testing::{Running, Workshop};

mod at_exec;
mod exec_stop;
mod exit;
mod leaving;

/// Environment variable of a process that runs a test of this file: the command to launch, one word per line.
const COMMAND: &str = "HEAPBPF_TEST_COMMAND";
/// Environment variable of such a process: number of the call of `on_new_code` at which it waits forever.
const HOLD_AT: &str = "HEAPBPF_TEST_HOLD_AT";

impl Launch {
    pub(crate) fn start(command: &[OsString], inherited: Inherited) -> Result<Self, LaunchError> {
        let (program, arguments) = command.split_first().ok_or(LaunchError::Empty)?;
        let name = program.to_string_lossy().into_owned();
        let mut child = Command::new(program);
        child.args(arguments);
        let mut spawned = spawn_resumed(child, inherited).map_err(|error| LaunchError::Fork(name.clone(), error))?;
        let mut launch = Self::seize(spawned.pid(), name.clone())?;
        spawned.start_exec();
        if let Some(error) = spawned.exec_error() {
            return Err(LaunchError::not_run(Path::new(program), name, error));
        }
        launch.run_to_exec(&|| true).map(|()| launch)
    }
}

fn words(command: &[&str]) -> Vec<OsString> {
    command.iter().map(OsString::from).collect()
}

fn start(command: &[&str]) -> Launch {
    Launch::start(&words(command), Inherited::now()).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn step(launch: &mut Launch, mut on_new_code: impl FnMut()) -> StartUp {
    step_with_exec(launch, |_| on_new_code())
}

/// Steps the launch. `on_new_code` gets whether the program is at an exec.
fn step_with_exec(launch: &mut Launch, mut on_new_code: impl FnMut(bool)) -> StartUp {
    let step = launch.step_until_loaded::<LaunchError>(&mut |at_exec| {
        on_new_code(at_exec);
        Ok(())
    });
    step.expect("held")
}

/// Detaches from a shell and returns its exit code.
fn code(launch: &mut Launch) -> i32 {
    launch.release().expect("detached");
    loop {
        if let Some(status) = launch.try_reap() {
            return shell_code(status);
        }
        std::thread::yield_now();
    }
}

fn send(pid: Pid, signal: Signal) {
    let number = heapbpf_linux::pidfd::raw_pid(pid).expect("a valid PID");
    kill_process(number, signal).expect("it runs");
}

fn maps(pid: Pid) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it is held")
}

/// Returns whether `maps` has a line of this file with these permissions.
fn mapped(maps: &str, file: &str, rights: &str) -> bool {
    maps.lines().any(|line| line.contains(file) && line.contains(rights))
}

/// Checks why stepping ends, and the exit code.
fn check(command: &[&str], end: StartUpEnd, exit_code: i32) {
    let mut launch = start(command);
    let mut calls = 0;
    let start_up = step(&mut launch, || calls += 1);
    assert_eq!(start_up.end, end, "{command:?}: {start_up:?}");
    assert!(calls > 0, "{command:?}");
    assert_eq!(code(&mut launch), exit_code, "{command:?}");
    assert_eq!(launch.try_reap().map(shell_code), Some(exit_code), "reported again");
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn libc_is_reported_before_its_code_has_run() {
    let mut launch = start(&["/bin/true"]);
    let pid = launch.pid();
    let mut seen = Vec::new();
    let start_up = step(&mut launch, || seen.push(maps(pid)));
    assert_eq!(start_up.end, StartUpEnd::Loaded);
    assert!(!mapped(&seen[0], "libc.so.6", ""), "{}", seen[0]);
    let first = seen.iter().find(|maps| mapped(maps, "libc.so.6", "r-xp")).expect("seen");
    // No code of libc can have run before libc's data is mapped, and there is no heap yet.
    assert!(!mapped(first, "libc.so.6", "rw-p") && !mapped(first, "[heap]", ""), "{first}");
    assert!(mapped(&maps(pid), "libc.so.6", "rw-p"));
    // The library search path of the test environment causes some of the system calls.
    assert!(start_up.syscalls < 1000, "{start_up:?}");
    assert_eq!(code(&mut launch), 0);
}

#[test]
fn a_preloaded_allocator_is_reported_before_its_code_has_run() {
    let mut launch = start(&["env", "LD_PRELOAD=libjemalloc.so.2", "/bin/true"]);
    let pid = launch.pid();
    step(&mut launch, || {});
    launch.follow_execs().expect("held");
    while !launch.next_exec().expect("followed") {
        std::thread::yield_now();
    }
    let mut seen = Vec::new();
    step(&mut launch, || seen.push(maps(pid)));
    let first = seen.iter().find(|maps| mapped(maps, "libjemalloc.so.2", "r-xp")).expect("seen");
    assert!(!mapped(first, "libjemalloc.so.2", "rw-p") && !mapped(first, "[heap]", ""), "{first}");
    assert_eq!(code(&mut launch), 0);
}

#[test]
fn constructors_run_after_all_code_is_reported() {
    let workshop = Workshop::new();
    let ran = workshop.path("ran");
    let text = "#include <fcntl.h>\n\
         __attribute__((constructor)) static void run(void) { open(RAN, O_CREAT | O_WRONLY, 0600); }\n\
         void first(void) {}";
    let define = format!("-DRAN=\"{}\"", path(&ran));
    workshop.compile("gcc", "libfirst.c", text, &["-shared", "-fPIC", &define]);
    std::fs::rename(workshop.path("libfirst"), workshop.path("libfirst.so")).expect("renamed");
    let folder = path(&workshop.path("")).to_owned();
    let arguments = ["-L.", "-Wl,--no-as-needed", "-lfirst", &format!("-Wl,-rpath,{folder}")];
    let program = workshop.compile("gcc", "main.c", "int main(void) { return 4; }", &arguments);
    let mut launch = start(&[path(&program)]);
    let pid = launch.pid();
    let mut seen = false;
    step(&mut launch, || {
        seen |= mapped(&maps(pid), "libfirst.so", "r-xp");
        assert!(!ran.exists());
    });
    assert!(seen);
    // The program is held before its call of `open`.
    assert!(!ran.exists());
    assert_eq!(code(&mut launch), 4);
    assert!(ran.exists());
}

#[test]
fn static_programs_are_complete_at_the_exec() {
    let workshop = Workshop::new();
    let text = "#include <stdlib.h>\nint main(void) { return malloc(10) ? 7 : 8; }";
    for (tool, source, flag) in
        [("gcc", "a.c", "-static"), ("gcc", "b.c", "-static-pie"), ("musl-gcc", "c.c", "-static")]
    {
        let program = workshop.compile(tool, source, text, &[flag]);
        check(&[path(&program)], StartUpEnd::NoLoader, 7);
    }
}

#[test]
fn musl_is_stepped_to_the_first_call_that_no_linker_makes() {
    let workshop = Workshop::new();
    let text = "#include <stdlib.h>\n#include <unistd.h>\n\
         int main(void) { void *volatile block = malloc(1 << 20); write(1, \"\", 0); return block ? 9 : 8; }";
    let program = workshop.compile("musl-gcc", "main.c", text, &[]);
    let mut launch = start(&[path(&program)]);
    let start_up = step(&mut launch, || {});
    assert_eq!(start_up.end, StartUpEnd::Loaded);
    assert!(start_up.syscalls < 1000, "{start_up:?}");
    assert_eq!(code(&mut launch), 9);
}

/// The program is also stepped over the calls that its linker makes.
#[test]
fn musl_is_stepped_to_the_first_call_after_its_linker_is_done() {
    let workshop = Workshop::new();
    let ran = workshop.path("ran");
    let text = "#include <fcntl.h>\nint main(void) { return open(RAN, O_CREAT | O_WRONLY, 0600) < 0 ? 8 : 9; }";
    let program = workshop.compile("musl-gcc", "main.c", text, &[&format!("-DRAN=\"{}\"", path(&ran))]);
    let mut launch = start(&[path(&program)]);
    assert_eq!(step(&mut launch, || {}).end, StartUpEnd::Loaded);
    assert!(!ran.exists());
    assert_eq!(code(&mut launch), 9);
    assert!(ran.exists());
}

#[test]
fn a_linker_run_as_a_program_is_stepped() {
    check(&["/lib64/ld-linux-x86-64.so.2", "/bin/false"], StartUpEnd::Loaded, 1);
}

#[test]
fn exit_codes_are_those_of_a_shell() {
    check(&["/bin/true"], StartUpEnd::Loaded, 0);
    check(&["sh", "-c", "exit 7"], StartUpEnd::Loaded, 7);
    check(&["sh", "-c", "kill -KILL $$"], StartUpEnd::Loaded, 137);
    check(&["sh", "-c", "kill -SEGV $$"], StartUpEnd::Loaded, 139);
}

#[test]
fn a_script_is_its_interpreter() {
    let workshop = Workshop::new();
    let script = workshop.path("script");
    for (first_line, expected) in [("#!/bin/sh\n", 6), ("", 6)] {
        std::fs::write(&script, format!("{first_line}exit 6\n")).expect("writable");
        workshop.run("chmod", &["+x", "script"]);
        check(&[path(&script)], StartUpEnd::Loaded, expected);
    }
}

#[test]
fn an_exec_is_followed() {
    let mut launch = start(&["sh", "-c", "exec /bin/false"]);
    let pid = launch.pid();
    step(&mut launch, || {});
    let executable = || std::fs::read_link(format!("/proc/{pid}/exe")).expect("it is held");
    let shell = executable();
    launch.follow_execs().expect("held");
    while !launch.next_exec().expect("followed") {
        std::thread::yield_now();
    }
    assert_ne!(executable(), shell);
    let mut calls = 0;
    assert_eq!(step(&mut launch, || calls += 1).end, StartUpEnd::Loaded);
    assert!(calls > 1, "the exec and libc");
    assert_eq!(code(&mut launch), 1);
}

#[test]
fn an_exec_is_distinguished_from_other_stops() {
    let mut launch = start(&["/bin/true"]);
    let mut at_exec = Vec::new();
    step_with_exec(&mut launch, |exec| at_exec.push(exec));
    assert!(at_exec[0] && at_exec.len() > 1 && !at_exec[1..].contains(&true), "{at_exec:?}");
    assert_eq!(code(&mut launch), 0);

    let sleeps = Running::sleep("sleep".as_ref());
    let mut launch = Launch::hold(sleeps.pid()).expect("it can be stopped");
    at_exec.clear();
    step_with_exec(&mut launch, |exec| at_exec.push(exec));
    assert_eq!(at_exec, [false]);
}

#[test]
fn threads_are_counted() {
    let workshop = Workshop::new();
    let text = "#include <pthread.h>\n#include <unistd.h>\n\
         static void *wait(void *none) { pause(); return none; }\n\
         int main(void) { pthread_t thread; pthread_create(&thread, 0, wait, 0); write(1, \".\", 1); return !wait(0); }";
    let program = workshop.compile("gcc", "threads.c", text, &["-pthread"]);
    let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().expect("it was compiled");
    child.stdout.take().expect("piped").read_exact(&mut [0]).expect("it writes");
    assert!(!has_one_thread(Launch::hold(Pid(child.id())).expect("it can be stopped").pid()));
    child.kill().expect("it runs");
    child.wait().expect("it is a child");
    let mut launch = start(&["/bin/true"]);
    assert!(has_one_thread(launch.pid()));
    assert_eq!(code(&mut launch), 0);
    assert!(!has_one_thread(launch.pid()), "it is gone");
}

#[test]
fn a_followed_program_receives_signals_and_is_detached() {
    for (signal, expected) in [(None, 3), (Some(Signal::TERM), 143)] {
        let mut launch = start(&["sh", "-c", "sleep 0.05; exit 3"]);
        step(&mut launch, || {});
        launch.follow_execs().expect("held");
        if let Some(signal) = signal {
            send(launch.pid(), signal);
            while launch.try_reap().is_none() {
                assert!(!launch.next_exec().expect("followed"));
            }
        }
        assert_eq!(code(&mut launch), expected);
    }
}

#[test]
fn a_program_that_forks_at_once_is_detached_with_its_child() {
    let workshop = Workshop::new();
    let text = "#include <sys/wait.h>\n#include <unistd.h>\n\
         int main(void) { int s; if (FORK() == 0) _exit(3); wait(&s); return WEXITSTATUS(s) + 1; }";
    for (tool, source, how) in [("gcc", "a.c", "fork"), ("gcc", "b.c", "vfork"), ("musl-gcc", "c.c", "fork")] {
        let program = workshop.compile(tool, source, text, &[&format!("-DFORK={how}")]);
        check(&[path(&program)], StartUpEnd::Loaded, 4);
    }
}

#[test]
fn signals_during_the_start_up_are_delivered() {
    // The signals include a real-time signal.
    for (signal, expected) in [("TERM", 143), ("KILL", 137), ("40", 168), ("CHLD", 0), ("CONT", 0)] {
        let mut launch = start(&["/bin/true"]);
        let pid = launch.pid().to_string();
        let mut sent = false;
        step(&mut launch, || {
            if !std::mem::replace(&mut sent, true) {
                let kill = Command::new("/bin/kill").args(["-s", signal, &pid]).status().expect("kill");
                assert!(kill.success());
            }
        });
        assert_eq!(code(&mut launch), expected, "{signal}");
    }
}

#[test]
fn a_stopped_program_stays_stopped_and_goes_on() {
    let mut launch = start(&["sh", "-c", "exit 5"]);
    let mut sent = false;
    let pid = launch.pid();
    let start_up = step(&mut launch, || {
        if !std::mem::replace(&mut sent, true) {
            send(pid, Signal::STOP);
        }
    });
    assert_eq!(start_up.end, StartUpEnd::Quiet);
    launch.release().expect("detached");
    // The program stops once it is detached, and would exit otherwise.
    let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is not reaped");
    while !status().contains("State:\tT (stopped)") {
        assert!(!status().contains("State:\tZ"), "{}", status());
    }
    assert!(status().contains("TracerPid:\t0"), "{}", status());
    send(pid, Signal::CONT);
    assert_eq!(code(&mut launch), 5);
}

#[test]
fn exec_errors_have_the_exit_code_of_a_shell() {
    let workshop = Workshop::new();
    let orphan = workshop.path("orphan");
    std::fs::write(&orphan, "#!/nowhere/interpreter\n").expect("writable");
    workshop.run("chmod", &["+x", "orphan"]);
    let folder = path(&workshop.path("")).to_owned();
    for (command, message, code) in [
        ("no-such-program-here", "`no-such-program-here`: not found in PATH", Some(127)),
        ("./no-such-file", "`./no-such-file`: no such file", Some(127)),
        (path(&orphan), "its interpreter or dynamic linker does not exist", Some(127)),
        (&folder, "Permission denied", Some(126)),
    ] {
        let error = Launch::start(&words(&[command]), Inherited::now()).expect_err("it cannot run");
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.exit_code(), code, "{error}");
    }
    let error = Launch::start(&[], Inherited::now()).expect_err("nothing to run");
    assert!(error.to_string().starts_with("no command to run"), "{error}");
}

#[test]
fn an_error_of_the_caller_leaves_the_program_held() {
    #[derive(Debug)]
    struct Refused;
    impl From<LaunchError> for Refused {
        fn from(error: LaunchError) -> Self {
            panic!("{error}")
        }
    }
    let mut launch = start(&["/bin/true"]);
    launch.step_until_loaded(&mut |_| Err(Refused)).expect_err("refused");
    assert_eq!(code(&mut launch), 0);
}

/// Starts another process that runs a test of this file.
fn run_test(test: &str, command: &[&str], wrap: &[&str]) -> Child {
    let this = std::env::current_exe().expect("known");
    let mut all: Vec<PathBuf> = wrap.iter().map(PathBuf::from).collect();
    all.push(this);
    let mut process = Command::new(&all[0]);
    process.args(&all[1..]).args(["--ignored", "--exact", "--nocapture", &format!("process::launch::tests::{test}")]);
    process.env(COMMAND, command.join("\n")).stdin(Stdio::piped()).stdout(Stdio::piped());
    process.spawn().expect("this program starts")
}

fn given_command() -> Vec<OsString> {
    std::env::var(COMMAND).expect("started by a test").lines().map(OsString::from).collect()
}

/// Prints a line for the test that started this process.
fn print(line: &str) {
    std::io::stdout().write_all(format!("\n{line}\n").as_bytes()).expect("it is read");
}

/// Returns a process's output for this input.
fn output(mut process: Child, input: &str) -> String {
    process.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = process.wait_with_output().expect("it exits");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[tokio::test(flavor = "current_thread")]
#[ignore = "part of other tests"]
async fn launches_the_given_command() {
    let inherited = Inherited::now();
    let _caught = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).expect("installed");
    let mut launch = match Launch::start(&given_command(), inherited) {
        Ok(launch) => launch,
        Err(error) => return print(&error.to_string()),
    };
    launch.step_until_loaded::<LaunchError>(&mut |_| Ok(())).expect("held");
    print(&format!("code {}", code(&mut launch)));
}

#[test]
#[ignore = "part of other tests"]
fn holds_the_given_command() {
    let hold_at: u32 = std::env::var(HOLD_AT).expect("set").parse().expect("a number");
    let mut calls = 0;
    let mut launch = Launch::start(&given_command(), Inherited::now()).expect("started");
    step(&mut launch, || {
        if calls == hold_at {
            print("holds");
            loop {
                std::thread::park();
            }
        }
        calls += 1;
    });
}

#[test]
fn streams_and_environment_are_inherited() {
    let written = output(
        run_test("launches_the_given_command", &["sh", "-c", "cat; echo $HEAPBPF_TEST_COMMAND; exit 2"], &[]),
        "hello\n",
    );
    assert!(written.contains("hello\nsh -c cat; echo $HEAPBPF_TEST_COMMAND; exit 2\n"), "{written}");
    assert!(written.contains("code 2"), "{written}");
}

#[test]
fn only_ignored_signals_are_inherited_as_ignored() {
    let command = ["sed", "-n", "s/^SigBlk:.//p; s/^SigIgn:.//p", "/proc/self/status"];
    // SIGPIPE, which this process ignores, is bit 12.
    for (trap, ignored) in [("true", 0), ("trap '' INT HUP", 3)] {
        // If the tests run in the background, some signals are ignored already.
        let wrap = ["env", "--default-signal", "sh", "-c", &format!("{trap}; exec \"$0\" \"$@\"")];
        let written = output(run_test("launches_the_given_command", &command, &wrap), "");
        let sets = written.lines().filter(|line| line.len() == 16).map(|line| u64::from_str_radix(line, 16));
        let sets: Vec<u64> = sets.collect::<Result<_, _>>().expect("hexadecimal");
        // Signals from 32 on belong to the C library.
        let named = sets.iter().map(|set| set & 0x7fff_ffff).collect::<Vec<_>>();
        assert_eq!(named, [0, ignored], "{trap}: {written}");
    }
}

#[test]
fn the_program_survives_the_death_of_its_tracer() {
    // The tracer is killed while the program is at its exec, or has mapped libc.
    for hold_at in ["0", "1"] {
        let mut process = run_test(
            "holds_the_given_command",
            &["sh", "-c", "echo survived"],
            &["env", &format!("{HOLD_AT}={hold_at}")],
        );
        let mut lines = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        while line != "holds\n" {
            line.clear();
            assert_ne!(lines.read_line(&mut line).expect("it writes"), 0, "it exited");
        }
        process.kill().expect("it runs");
        process.wait().expect("it is a child");
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("the program writes");
        assert_eq!(rest, "survived\n", "held at {hold_at}");
    }
}

#[test]
fn the_error_where_tracing_is_forbidden_suggests_pid() {
    let workshop = Workshop::new();
    let text = r"
        #include <errno.h>
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(int count, char **words) {
            struct sock_filter rules[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            };
            struct sock_fprog filter = { 4, rules };
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 1;
            return execv(words[1], words + 1);
        }";
    let without_ptrace = workshop.compile("gcc", "without.c", text, &[]);
    let written = output(run_test("launches_the_given_command", &["echo", "it has run"], &[path(&without_ptrace)]), "");
    assert!(written.contains("cannot hold `echo` until its probes are attached: Operation not permitted"), "{written}");
    assert!(written.contains("`--pid`") && !written.contains("it has run"), "{written}");
}
