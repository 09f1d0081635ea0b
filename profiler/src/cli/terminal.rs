//! Standard error and terminals receive no control characters except line ends, tabs and colours: names and paths of
//! targets could move a terminal's cursor or type into it, even from a log file printed later.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use terminal_size::terminal_size;

use crate::report::text::on_terminal;
use crate::session::Progress;

/// Writes a line to standard error. Ignores errors: reports are written even if nobody reads messages.
pub(super) fn say(line: &str) {
    let mut out = errors();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

pub(super) fn output() -> Lines<io::Stdout> {
    Lines::new(io::stdout(), output_is_terminal())
}

pub(super) fn errors() -> Lines<io::Stderr> {
    Lines::new(io::stderr(), true)
}

pub(super) fn output_is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(super) fn layout() -> (Option<usize>, bool) {
    if !output_is_terminal() {
        return (None, false);
    }
    let width = terminal_size().map(|(width, _)| usize::from(width.0));
    (width, std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
}

/// Prints a command's tables, on standard error if standard output has a report (`redirected`).
pub(super) fn print(text: &str, redirected: bool) -> io::Result<()> {
    if redirected {
        say(text);
        return Ok(());
    }
    writeln!(output(), "{text}")
}

/// Writer that filters whole lines for terminals, and passes bytes on unchanged elsewhere.
pub(super) struct Lines<W: Write> {
    inner: W,
    line: Option<Vec<u8>>,
}

impl<W: Write> Lines<W> {
    fn new(inner: W, filters: bool) -> Self {
        Self { inner, line: filters.then(Vec::new) }
    }
}

/// A terminal whose session has ended returns `EIO`, which is treated as a closed pipe.
fn hung_up(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::EIO) { io::ErrorKind::BrokenPipe.into() } else { error }
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(line) = &mut self.line else { return self.inner.write(bytes) };
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(end);
        line.extend(lines);
        if !lines.is_empty() {
            let safe = on_terminal(&String::from_utf8_lossy(line)).into_owned();
            line.clear();
            self.inner.write_all(safe.as_bytes()).map_err(hung_up)?;
        }
        line.extend(rest);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(line) = &mut self.line {
            let line = std::mem::take(line);
            self.inner.write_all(on_terminal(&String::from_utf8_lossy(&line)).as_bytes()).map_err(hung_up)?;
            return self.inner.flush().map_err(hung_up);
        }
        self.inner.flush()
    }
}

impl<W: Write> Drop for Lines<W> {
    fn drop(&mut self) {
        // There is no other place to report the error to.
        let _ = self.flush();
    }
}

#[derive(Clone)]
pub(super) struct ProgressLine(ProgressBar);

impl ProgressLine {
    pub(super) fn new(quiet: bool) -> Self {
        let is_shown = !quiet && io::stderr().is_terminal();
        let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{spinner} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        Self(ProgressBar::with_draw_target(None, target).with_style(style))
    }

    pub(super) fn show(&self, progress: &Progress) {
        self.0.set_message(progress_text(progress));
        self.0.tick();
    }

    pub(super) fn begin(&self, activity: String) {
        // The tick is a thread.
        if !self.0.is_hidden() {
            self.0.set_message(activity);
            self.0.enable_steady_tick(Duration::from_millis(100));
        }
    }

    pub(super) fn say(&self, text: &str) {
        self.0.suspend(|| say(text));
    }

    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

#[derive(Debug)]
pub(super) struct Log {
    clears: bool,
}

impl Log {
    pub(super) fn new() -> Self {
        Self { clears: io::stderr().is_terminal() }
    }
}

impl Write for Log {
    /// Receives one whole log line per call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.clears {
            io::stderr().write_all(b"\r\x1b[2K")?;
        }
        // A target's name may contain line ends.
        let (text, end) = line.split_at(line.len() - usize::from(line.ends_with(b"\n")));
        let one_line: Vec<u8> = text.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect();
        let mut errors = errors();
        errors.write_all(&one_line)?;
        errors.write_all(end)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn progress_text(progress: &Progress) -> String {
    let elapsed = Duration::from_secs(progress.elapsed.as_secs());
    let time = match progress.duration {
        Some(duration) => format!("{elapsed:?} of {duration:?}"),
        None => format!("{elapsed:?} (Ctrl-C to stop)"),
    };
    let live = ByteSize(progress.live_bytes.rounded());
    let drops = match progress.lost {
        0 => "no drops".to_owned(),
        lost => format!("{lost} DROPPED"),
    };
    let targets = match progress.targets {
        1 => String::new(),
        0 => " · no process yet".to_owned(),
        targets => format!(" · {targets} processes"),
    };
    format!("{time}{targets} · {:.0} events/s · {live} live · {drops}", progress.events_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::EstimatedBytes;

    fn written(filters: bool, pieces: &[&str]) -> String {
        let mut out = Vec::new();
        let mut lines = Lines::new(&mut out, filters);
        pieces.iter().for_each(|piece| lines.write_all(piece.as_bytes()).expect("vectors accept all bytes"));
        drop(lines);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn terminal_output_has_no_control_characters() {
        assert_eq!(written(true, &["a\x1b[2Jb\nc", "d\x07\n", "e"]), "a\u{fffd}[2Jb\ncd\u{fffd}\ne");
        // An escape sequence may span two writes.
        assert_eq!(written(true, &["\x1b[3", "1mred\x1b[0m\n"]), "\x1b[31mred\x1b[0m\n");
        assert_eq!(written(true, &["\u{e9}".repeat(3).as_str(), "\n"]), "ééé\n");
    }

    #[test]
    fn a_terminal_hangup_is_a_broken_pipe() {
        struct Failing;
        impl Write for Failing {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = |filters| Lines::new(Failing, filters).write_all(b"line\n").expect_err("it fails");
        assert_eq!(error(true).kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(error(false).raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn files_and_pipes_receive_unchanged_bytes() {
        assert_eq!(written(false, &["a\x1b[2Jb\n", "c\x07"]), "a\x1b[2Jb\nc\x07");
    }

    #[test]
    fn the_progress_line_shows_time_rate_live_bytes_and_drops() {
        let progress = Progress {
            elapsed: Duration::from_millis(3700),
            duration: Some(Duration::from_secs(10)),
            targets: 1,
            events_per_second: 1234.5,
            live_bytes: EstimatedBytes::exact(3 << 20),
            lost: 2,
        };
        assert_eq!(progress_text(&progress), "3s of 10s · 1234 events/s · 3.0 MiB live · 2 DROPPED");
        let endless = Progress { duration: None, lost: 0, ..progress };
        assert_eq!(progress_text(&endless), "3s (Ctrl-C to stop) · 1234 events/s · 3.0 MiB live · no drops");
    }
}
