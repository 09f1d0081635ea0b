//! A terminal for tests: a shell in a tmux server of its own, which receives keys and whose screen is read.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Timeout for what a screen shows, on a busy machine too.
const SHOWN_WITHIN: Duration = Duration::from_secs(90);
const POLL_PERIOD: Duration = Duration::from_millis(50);
const PROMPT: &str = "ready> ";

/// A terminal with a shell. Its programs are killed when it is dropped.
#[derive(Debug)]
pub struct Tmux {
    directory: TempDir,
}

impl Tmux {
    /// Starts a shell in a terminal of this size, in columns and lines, and in a directory of its own.
    #[track_caller]
    pub fn start(width: u16, height: u16) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        let tmux = Self { directory };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let [width, height] = [width, height].map(|size| size.to_string());
        let shell = "exec env -u NO_COLOR HEAPBPF_CONFIG= bash --norc --noprofile";
        let session = format!("test{number}");
        tmux.tmux(&["-f", "/dev/null", "new-session", "-d", "-s", &session, "-x", &width, "-y", &height, shell]);
        tmux.tmux(&["set-option", "-g", "status", "off"]);
        // Without a status line, the terminal has another line.
        tmux.resize_to(&width, &height);
        tmux.enter(&format!("PS1='{PROMPT}'; clear"));
        tmux.wait_for_prompt();
        tmux
    }

    /// A path in its directory.
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    #[track_caller]
    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.directory.path().join("socket")).args(arguments);
        command.current_dir(self.directory.path()).env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; apt-get install tmux"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Presses keys, by tmux's names: `Enter`, `C-z`, `Down`; others are text.
    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a command line.
    pub fn enter(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    /// Changes the size, in columns and lines.
    pub fn resize(&self, width: u16, height: u16) {
        self.resize_to(&width.to_string(), &height.to_string());
    }

    fn resize_to(&self, width: &str, height: &str) {
        self.tmux(&["resize-window", "-x", width, "-y", height]);
    }

    /// What the terminal shows, without the blanks at the ends of lines.
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// The same with its escape sequences of colours.
    pub fn coloured(&self) -> String {
        self.tmux(&["capture-pane", "-e", "-p"])
    }

    /// Waits until the screen is as wanted, and returns it.
    #[track_caller]
    pub fn wait_until(&self, wanted: &str, is_wanted: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let screen = self.screen();
            if is_wanted(&screen) {
                return screen;
            }
            assert!(started.elapsed() < SHOWN_WITHIN, "the screen does not show {wanted}:\n{screen}");
            thread::sleep(POLL_PERIOD);
        }
    }

    /// Waits until the screen contains a text, and returns it.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        self.wait_until(&format!("`{text}`"), |screen| screen.contains(text))
    }

    /// Waits until the shell accepts the next command.
    #[track_caller]
    pub fn wait_for_prompt(&self) -> String {
        self.wait_until("the prompt alone in the last line", |screen| {
            screen.lines().rfind(|line| !line.is_empty()).is_some_and(|line| line == PROMPT.trim_end())
        })
    }

    /// Modes of the terminal.
    #[track_caller]
    pub fn modes(&self, name: &str) -> String {
        let path = self.file(name);
        self.enter(&format!("stty -a > {}; clear", path.display()));
        self.wait_until("the modes", |_| path.metadata().is_ok_and(|metadata| metadata.len() > 0));
        self.wait_for_prompt();
        read(&path)
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        let _ = command.arg("-S").arg(self.directory.path().join("socket")).arg("kill-server").output();
    }
}

#[track_caller]
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
}
