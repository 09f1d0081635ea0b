//! A server that decodes what it receives with published schemas: `tests/push/receiver.py`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::viewers;
use serde::Deserialize;

const WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Request {
    pub(crate) headers: BTreeMap<String, String>,
    /// What the server did: `ok`, `status`, ….
    pub(crate) answer: String,
    pub(crate) series: Vec<Series>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Series {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) duplicates: u64,
    pub(crate) profiles: Vec<Profile>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Profile {
    pub(crate) time: u64,
    pub(crate) duration: u64,
    pub(crate) period: u64,
    /// As in `alloc_space/bytes`.
    pub(crate) types: Vec<String>,
    pub(crate) sums: Vec<u64>,
    /// Values by functions, leaf first, separated by `;`.
    pub(crate) stacks: BTreeMap<String, Vec<u64>>,
    pub(crate) sample_labels: Vec<String>,
    pub(crate) build_ids: Vec<String>,
    pub(crate) problems: Vec<String>,
}

#[derive(Deserialize)]
struct Port {
    port: u16,
}

/// Killed when dropped.
pub(crate) struct Receiver {
    child: Child,
    commands: ChildStdin,
    lines: mpsc::Receiver<String>,
    pub(crate) port: u16,
    received: Vec<Request>,
}

impl Receiver {
    /// `kind` is an argument of the script; port 0 is a free one.
    #[track_caller]
    pub(crate) fn start(kind: &str, port: u16) -> Self {
        Self::start_with(kind, port, None)
    }

    /// With a certificate and its key.
    #[track_caller]
    pub(crate) fn start_tls(kind: &str, port: u16, files: [&Path; 2]) -> Self {
        Self::start_with(kind, port, Some(files))
    }

    #[track_caller]
    fn start_with(kind: &str, port: u16, files: Option<[&Path; 2]>) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("push/receiver.py");
        let mut command = viewers::program("python");
        command.arg(script).args([kind, &port.to_string()]).args(files.into_iter().flatten());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the viewers have python");
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let first = lines.recv_timeout(WITHIN).expect("the receiver starts");
        let Port { port } = serde_json::from_str(&first).expect("the first line is the port");
        let commands = child.stdin.take().expect("stdin is piped");
        Self { child, commands, lines, port, received: Vec::new() }
    }

    /// How later requests are answered.
    #[track_caller]
    pub(crate) fn answer(&mut self, answer: &str) {
        writeln!(self.commands, "{answer}").expect("the receiver runs");
        // It is read by another thread of the receiver.
        thread::sleep(Duration::from_millis(100));
    }

    /// Waits until that many requests more were answered in this way.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, count: usize, answer: &str) {
        let deadline = Instant::now() + WITHIN;
        let mut missing = count;
        while missing > 0 {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => missing -= usize::from(self.keep(&line) == answer),
                Err(RecvTimeoutError::Timeout) => panic!("{missing} requests are missing; have {:#?}", self.received),
                Err(RecvTimeoutError::Disconnected) => panic!("the receiver has ended"),
            }
        }
    }

    fn keep(&mut self, line: &str) -> String {
        let request: Request = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let answer = request.answer.clone();
        self.received.push(request);
        answer
    }

    /// All requests so far, and forgets them.
    pub(crate) fn take(&mut self) -> Vec<Request> {
        while let Ok(line) = self.lines.try_recv() {
            self.keep(&line);
        }
        std::mem::take(&mut self.received)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // `timeout` is the parent of python, and passes only SIGTERM on.
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
