//! Programs that are started continuously while heapbpf waits for programs of their name: each is stopped at its exec until its
//! probes are attached, so that kills hit heapbpf during that.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::aftermath::{Harm, Harms};
use super::processes::{children, held_threads};
use super::subject::Subject;

/// Runs the first argument until it fails, or until the file of the second argument exists.
const SCRIPT: &str = r#"while [ ! -e "$2" ]; do "$1" once || exit 1; sleep 0.02; done"#;
/// Timeout of the exit of the last program.
const EXITS_WITHIN: Duration = Duration::from_secs(20);
const POLL_PERIOD: Duration = Duration::from_millis(5);

/// A shell that starts one program after the other. Killed when dropped.
#[derive(Debug)]
pub(super) struct Companion {
    shell: Child,
    stop: PathBuf,
    errors: PathBuf,
}

impl Companion {
    /// Starts runs of the target's program, which verify their memory and exit.
    pub(super) fn start(subject: &Subject) -> Self {
        let (stop, errors) = (subject.directory().join("stop"), subject.directory().join("companion"));
        // From the previous kill.
        let _ = std::fs::remove_file(&stop);
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(&subject.command_line()[0]).arg(&stop);
        command.stdin(Stdio::null()).stderr(File::create(&errors).expect("the directory is ours"));
        let shell = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { shell, stop, errors }
    }

    pub(super) fn pid(&self) -> u32 {
        self.shell.id()
    }

    /// Waits for the exit of the last program. None may fail or remain stopped.
    pub(super) fn finish(mut self) -> Harms {
        File::create(&self.stop).expect("the directory is ours");
        let deadline = Instant::now() + EXITS_WITHIN;
        while Instant::now() < deadline {
            match self.shell.try_wait().expect("it is our child") {
                Some(status) if status.success() => return Vec::new(),
                Some(status) => return vec![(Harm::Died, self.failure(status))],
                None => thread::sleep(POLL_PERIOD),
            }
        }
        let programs = children(self.shell.id());
        let held: Vec<String> = programs.iter().flat_map(|&pid| held_threads(pid)).collect();
        programs.iter().for_each(|&pid| super::agent::send(pid, rustix::process::Signal::KILL));
        let harm = if held.is_empty() { Harm::Stalled } else { Harm::Held };
        vec![(harm, format!("a started program does not exit: {}", held.join(", ")))]
    }

    fn failure(&self, status: ExitStatus) -> String {
        let errors = std::fs::read_to_string(&self.errors).unwrap_or_default();
        format!("a started program has failed ({status}): {}", errors.trim())
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // It has usually exited.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
