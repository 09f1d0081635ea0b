//! Records a program while it runs a script.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use super::plan::{Plan, Start};
use super::truth::{Request, Truth};
use crate::heapbpf::{Heapbpf, Session, binary, in_own_session};
use crate::recipe::Recipe;
use crate::report::Report;
use crate::{kernel, shared};

/// Timeout for a whole script, which takes about half a second.
const DONE_WITHIN: Duration = Duration::from_secs(60);
/// Timeout until a process is recorded that waits for this: afterwards it goes on, and its blocks may be missing.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);

/// A recording, and what its program has counted.
#[derive(Debug)]
pub(super) struct Recorded {
    /// What the program has counted.
    pub(super) truth: Truth,
    /// The report, if there is one.
    pub(super) report: Option<Report>,
    /// Exit code of heapbpf.
    pub(super) code: Option<i32>,
    /// Standard output and standard error of heapbpf.
    pub(super) output: String,
    /// Whether heapbpf has exited with an error instead of recording.
    pub(super) is_refused: bool,
    /// What went wrong besides numbers.
    pub(super) trouble: Vec<String>,
}

/// A program that runs a script, and heapbpf beside it.
struct Runner<'plan> {
    plan: &'plan Plan,
    heapbpf: Heapbpf,
    session: Option<Session>,
    /// Where heapbpf does not start it.
    program: Option<Child>,
    fifo: File,
    truth: Truth,
    root: Option<u32>,
    /// How often a process was logged as recorded before its present program.
    recorded_before: HashMap<u32, usize>,
    /// Processes that wait until they are recorded, and since when.
    pending: Vec<(u32, Instant)>,
    is_halted: bool,
    has_ended: bool,
    is_refused: bool,
    trouble: Vec<String>,
}

/// The folder with both libraries of `targets/plugged.c`.
fn plugins() -> PathBuf {
    let build = |name: &str| Recipe::of("plugged.c").flags(&format!("-DPLUGGED=plugged_{name} -shared -fPIC")).build();
    let built = ["a", "b"].map(|name| (name, build(name)));
    let inputs: Vec<PathBuf> = built.iter().map(|(_, path)| path.clone()).collect();
    shared::folder("model-plugins", &inputs, |folder| {
        for (name, path) in &built {
            fs::copy(path, folder.join(format!("plugin_{name}.so"))).expect("the build directory is ours");
        }
    })
}

/// The script, with numbers of processes that no process has.
fn numbered(script: &str) -> String {
    let mut free: HashMap<&str, u32> = HashMap::new();
    let lines = script.lines().map(|line| {
        let wanted = line.rsplit_once(' ').filter(|(start, number)| start.starts_with("fork ") && *number != "0");
        let Some((start, number)) = wanted else { return line.to_owned() };
        let first = number.parse().expect("a number of a process");
        let taken: Vec<u32> = free.values().copied().collect();
        let is_free = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists() && !taken.contains(pid);
        let free = *free.entry(number).or_insert_with(|| (first..).find(is_free).expect("not all numbers are taken"));
        format!("{start} {free}")
    });
    lines.map(|line| line + "\n").collect()
}

fn fifo(path: &Path) -> File {
    mknodat(CWD, path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("the folder is ours");
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).expect("a small flag");
    OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(path).expect("it was just made")
}

/// Sends a signal to a process that may have ended.
fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

impl<'plan> Runner<'plan> {
    fn new(plan: &'plan Plan, folder: &Path) -> Self {
        let (script, pipe) = (folder.join("script"), folder.join("fifo"));
        fs::write(&script, numbered(&plan.script())).expect("the folder is ours");
        let fifo = fifo(&pipe);
        let words = [Recipe::of("scripted.c").build(), script, pipe, plugins()];
        let mut options = vec!["-v".to_owned(), "-o".to_owned(), "out.json".to_owned()];
        options.extend(plan.options.iter().cloned());
        let (mut command, program) = match plan.start {
            Start::Launched => {
                let mut command = in_own_session();
                command.args(&options).arg("--").args(&words);
                (command, None)
            }
            Start::Attached { has_inventory } => {
                let mut program = Command::new(&words[0]);
                let error = File::create(folder.join("error")).expect("the folder is ours");
                program.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(error).process_group(0);
                let program = program.spawn().expect("it was just built");
                let mut command = Command::new(binary());
                command.args(&options).args(["--pid", &program.id().to_string()]);
                command.args((!has_inventory).then_some("--no-inventory"));
                (command, Some(program))
            }
        };
        command.env("LD_BIND_NOW", "1");
        Self {
            plan,
            heapbpf: Heapbpf::with_command(command),
            session: None,
            program,
            fifo,
            truth: Truth::default(),
            root: None,
            recorded_before: HashMap::new(),
            pending: Vec::new(),
            is_halted: false,
            has_ended: false,
            is_refused: false,
            trouble: Vec::new(),
        }
    }

    fn printed(&mut self) -> String {
        self.session.as_mut().map(|session| session.printed().to_owned()).unwrap_or_default()
    }

    /// How often a process was logged as recorded.
    fn times_recorded(&mut self, pid: u32) -> usize {
        let start = format!("process {pid} (");
        self.printed().lines().filter(|line| line.contains(&start) && line.contains("is being recorded")).count()
    }

    fn note_recorded(&mut self, pid: u32) {
        let times = self.times_recorded(pid);
        self.recorded_before.insert(pid, times);
    }

    fn attach(&mut self) {
        let mut session = self.heapbpf.spawn();
        let deadline = Instant::now() + RECORDED_WITHIN;
        while !session.printed().contains("heapbpf: recording") {
            self.is_refused = session.has_ended() && session.printed().contains("heapbpf: error: ");
            if self.is_refused || session.has_ended() || Instant::now() > deadline {
                self.has_ended = self.is_refused;
                self.trouble.push("heapbpf does not record".to_owned());
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // The inventory is taken while the program runs. Most programs wait for its end, so that what is missing has another cause.
        let waits = self.plan.start == (Start::Attached { has_inventory: true }) && !self.plan.uses.contains(&"early");
        let is_there = |text: &str| text.contains("are older than the recording") || text.contains("no inventory of");
        while waits && !is_there(session.printed()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        self.session = Some(session);
    }

    fn halt(&mut self, halts: bool) {
        if let Some(session) = &self.session
            && self.is_halted != halts
        {
            if halts {
                session.halt()
            } else {
                session.resume()
            }
            self.is_halted = halts;
        }
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::Begins(pid) => {
                self.root.get_or_insert(pid);
            }
            // The next program of this process may be recorded before it prints a line.
            Request::Executes(pid, waits) => {
                self.note_recorded(pid);
                if waits {
                    send(pid, Signal::USR1);
                }
            }
            Request::Wait(pid, what) if what == "recorded" => {
                self.pending.push((pid, Instant::now()));
            }
            Request::Wait(pid, what) => {
                match what.as_str() {
                    "attach" => self.attach(),
                    "stop" => self.halt(true),
                    "go" => self.halt(false),
                    _ => self.trouble.push(format!("`{what}` is no request")),
                }
                send(pid, Signal::USR1);
            }
            Request::Ends(pid) => {
                self.note_recorded(pid);
                // It may have exited.
                if self.root == Some(pid) {
                    self.has_ended = true;
                } else {
                    send(pid, Signal::USR1);
                }
            }
        }
    }

    /// Lets processes go on that are recorded now, or have waited for long.
    fn answer_pending(&mut self) {
        for (pid, since) in std::mem::take(&mut self.pending) {
            let before = self.recorded_before.get(&pid).copied().unwrap_or_default();
            let is_late = since.elapsed() > RECORDED_WITHIN;
            if self.times_recorded(pid) > before || is_late {
                // Nobody else may resume it.
                self.halt(false);
                if is_late && self.plan.is_plain {
                    self.trouble.push(format!("process {pid} waits and is not recorded"));
                }
                send(pid, Signal::USR1);
            } else {
                self.pending.push((pid, since));
            }
        }
    }

    /// Reads lines of the program, and answers them, until its first process has ended.
    fn follow(&mut self) {
        let deadline = Instant::now() + DONE_WITHIN;
        let (mut text, mut buffer) = (String::new(), vec![0; 64 << 10]);
        while !self.has_ended {
            match self.fifo.read(&mut buffer) {
                Ok(count) => text.push_str(std::str::from_utf8(&buffer[..count]).expect("the program prints ASCII")),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_gone = self.program.as_mut().is_some_and(|it| it.try_wait().is_ok_and(|it| it.is_some()))
                        || self.session.as_mut().is_some_and(Session::has_ended);
                    if is_gone || Instant::now() > deadline {
                        self.trouble.push(format!("the script does not end; a process has exited: {is_gone}"));
                        return;
                    }
                    thread::sleep(Duration::from_micros(300));
                }
                Err(error) => panic!("the pipe of the program: {error}"),
            }
            while let Some((line, rest)) = text.split_once('\n') {
                let request = self.truth.read(line);
                text = rest.to_owned();
                if let Some(request) = request {
                    self.answer(request);
                }
            }
            self.answer_pending();
        }
    }

    /// Ends the recording and the program.
    fn end(mut self) -> Recorded {
        self.halt(false);
        if !self.has_ended || self.is_refused {
            self.truth.instances.iter().for_each(|instance| send(instance.pid, Signal::KILL));
        }
        let is_launched = self.plan.start == Start::Launched;
        let exits_first = is_launched || self.plan.exits_first && self.has_ended;
        if let (true, Some(root)) = (exits_first, self.root) {
            send(root, Signal::USR1);
        }
        let (mut code, mut output) = (None, String::new());
        if let Some(mut session) = self.session.take() {
            let outcome = if exits_first || session.has_ended() { session.wait() } else { session.interrupt() };
            code = outcome.status.code();
            output = outcome.stdout + &outcome.stderr;
        }
        if let Some(mut program) = self.program.take() {
            send(program.id(), Signal::USR1);
            match program.wait() {
                Ok(status) if status.success() || self.is_refused => {}
                other => self.trouble.push(format!("the program ended with {other:?}")),
            }
        }
        if output.contains("panicked") || code.is_none_or(|code| code != 0 && code != 3) {
            self.trouble.push(format!("heapbpf exited with {code:?}"));
        }
        let path = self.heapbpf.file("out.json");
        let report = path.exists().then(|| Report::read(&path));
        Recorded { truth: self.truth, report, code, output, is_refused: self.is_refused, trouble: self.trouble }
    }
}

/// Records a program while it runs a script.
pub(super) fn run(plan: &Plan) -> Recorded {
    kernel::require_root();
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let mut runner = Runner::new(plan, folder.path());
    if plan.start == Start::Launched {
        runner.session = Some(runner.heapbpf.spawn());
    }
    runner.follow();
    let mut recorded = runner.end();
    if let Ok(error) = fs::read_to_string(folder.path().join("error"))
        && !error.is_empty()
    {
        recorded.trouble.push(error);
    }
    recorded
}
