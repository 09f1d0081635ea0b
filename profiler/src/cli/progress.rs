//! What is shown on a terminal while recording.

use std::io::{self, Write};
use std::time::Duration;

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};

use super::terminal::{self, say};
use crate::session::Progress;

/// One line on standard error that is written over and over; nothing where that is no terminal.
#[derive(Clone)]
pub(super) struct ProgressLine(Option<ProgressBar>);

impl ProgressLine {
    pub(super) fn new(quiet: bool) -> Self {
        if quiet || !terminal::errors_is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::with_draw_target(None, terminal::progress());
        bar.set_style(
            ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        Self(Some(bar))
    }

    pub(super) fn show(&self, progress: &Progress) {
        if let Some(bar) = &self.0 {
            bar.set_message(line(progress));
            bar.tick();
        }
    }

    /// Says what is being done until it is cleared; turns by itself meanwhile.
    pub(super) fn begin(&self, work: String) {
        if let Some(bar) = &self.0 {
            bar.set_message(work);
            bar.enable_steady_tick(Duration::from_millis(100));
        }
    }

    /// Writes a line of its own to standard error.
    pub(super) fn say(&self, text: &str) {
        match &self.0 {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Standard error for log lines, which know of no progress line: where there may be one, they take its place. It is written anew
/// below.
#[derive(Debug)]
pub(super) struct Log {
    clears: bool,
}

impl Log {
    pub(super) fn new() -> Self {
        Self { clears: terminal::errors_is_terminal() }
    }
}

impl Write for Log {
    /// A line comes as one piece.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.clears {
            terminal::clear_line()?;
        }
        // A name of a target could begin another line.
        let (text, end) = line.split_at(line.len() - usize::from(line.ends_with(b"\n")));
        let one_line: Vec<u8> = text.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect();
        let mut errors = terminal::errors();
        errors.write_all(&one_line)?;
        errors.write_all(end)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn line(progress: &Progress) -> String {
    let elapsed = Duration::from_secs(progress.elapsed.as_secs());
    let time = match progress.duration {
        Some(duration) => format!("{elapsed:?} of {duration:?}"),
        None => format!("{elapsed:?} (Ctrl-C to stop)"),
    };
    let live = ByteSize(progress.live_bytes.rounded());
    let losses = match progress.lost {
        0 => "no losses".to_owned(),
        lost => format!("{lost} LOST"),
    };
    let targets = match progress.targets {
        1 => String::new(),
        0 => " · no process yet".to_owned(),
        targets => format!(" · {targets} processes"),
    };
    format!("{time}{targets} · {:.0} events/s · {live} live · {losses}", progress.events_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::EstimatedBytes;

    #[test]
    fn the_line_says_what_matters() {
        let progress = Progress {
            elapsed: Duration::from_millis(3700),
            duration: Some(Duration::from_secs(10)),
            targets: 1,
            events_per_second: 1234.5,
            live_bytes: EstimatedBytes::exact(3 << 20),
            lost: 2,
        };
        assert_eq!(line(&progress), "3s of 10s · 1234 events/s · 3.0 MiB live · 2 LOST");
        let endless = Progress { duration: None, lost: 0, ..progress };
        assert_eq!(line(&endless), "3s (Ctrl-C to stop) · 1234 events/s · 3.0 MiB live · no losses");
    }
}
