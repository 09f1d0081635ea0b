//! Filters text for standard error and terminals, which receive no control characters except line ends and tabs: names and paths
//! of targets could move a terminal's cursor or type into it, even from a log file printed later. Colours pass only in text that
//! [`Page`](heapbpf_report::page::Page) and the log have coloured.

#![expect(clippy::disallowed_methods, reason = "the only file that writes there")]

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use heapbpf_base::shown;
use heapbpf_report::text;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use terminal_size::terminal_size;

use super::status;
use crate::session::Progress;

/// Writes a message to standard error, whatever names are in it. Ignores errors: reports are written even if messages cannot be.
pub(super) fn say(message: &str) {
    say_coloured(&text::plain(message));
}

/// The message of an error. Its further lines are indented: a name of others in it must not begin a line.
pub(super) fn error_message(error: impl fmt::Display) -> String {
    format!("heapbpf: error: {error:#}").replace('\n', "\n  ")
}

/// Writes a message that may have colours of heapbpf's own.
pub(super) fn say_coloured(message: &str) {
    if !keep(message) {
        let mut out = errors();
        let _ = writeln!(out, "{message}").and_then(|()| out.flush());
    }
}

/// Writes a line instead of a status, from a signal handler: async-signal-safe.
pub(super) fn say_in_handler(line: &'static str) {
    let errors = rustix::stdio::stderr();
    let erased = if rustix::termios::isatty(errors) { "\r\x1b[K" } else { "" };
    for part in [erased, line, "\n"] {
        let _ = rustix::io::write(errors, part.as_bytes());
    }
}

/// Maximum number of messages that are kept while a full screen is shown.
const MESSAGES_MAX: usize = 100;

/// Messages since a full screen was opened; `None` without one.
static MESSAGES: Mutex<Option<VecDeque<String>>> = Mutex::new(None);

fn messages() -> MutexGuard<'static, Option<VecDeque<String>>> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps later messages, which would overwrite a full screen.
pub(super) fn keep_messages() {
    *messages() = Some(VecDeque::new());
}

/// Stops keeping messages. Returns the kept ones; `None` if messages were not kept.
pub(super) fn kept_messages() -> Option<VecDeque<String>> {
    messages().take()
}

/// Keeps a message while a full screen is shown. Returns whether it is kept.
fn keep(message: &str) -> bool {
    let mut messages = messages();
    let Some(kept) = messages.as_mut().filter(|_| errors_are_terminal()) else { return false };
    if kept.len() == MESSAGES_MAX {
        kept.pop_front();
    }
    kept.push_back(message.to_owned());
    true
}

/// Standard output, for reports and other text.
pub(super) fn output() -> Lines<io::Stdout> {
    Lines::new(io::stdout(), output_is_terminal().then_some(text::plain))
}

/// Standard output, for text that may have colours of heapbpf's own.
pub(super) fn coloured_output() -> Lines<io::Stdout> {
    Lines::new(io::stdout(), output_is_terminal().then_some(text::coloured))
}

/// Standard error, for text that may have colours of heapbpf's own.
pub(super) fn errors() -> Lines<io::Stderr> {
    Lines::new(io::stderr(), Some(text::coloured))
}

pub(super) fn output_is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(super) fn errors_are_terminal() -> bool {
    io::stderr().is_terminal()
}

pub(super) fn layout() -> (Option<usize>, bool) {
    if !output_is_terminal() {
        return (None, false);
    }
    let width = terminal_size().map(|(width, _)| usize::from(width.0));
    (width, wants_colour())
}

pub(super) fn errors_have_colour() -> bool {
    errors_are_terminal() && wants_colour()
}

/// Standard output for a screen, whose texts contain no control characters.
pub(super) fn unfiltered_output() -> io::Stdout {
    io::stdout()
}

pub(super) fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn columns() -> usize {
    const DEFAULT: usize = 80;
    terminal_size::terminal_size_of(io::stderr()).map_or(DEFAULT, |(width, _)| usize::from(width.0))
}

/// Prints a command's tables, on standard error if standard output has a report (`redirected`).
pub(super) fn print(text: &str, redirected: bool) -> io::Result<()> {
    if redirected {
        say_coloured(text);
        return Ok(());
    }
    writeln!(coloured_output(), "{text}")
}

type Filter = fn(&str) -> Cow<'_, str>;

/// Writer that filters whole lines for terminals, and passes bytes on unchanged elsewhere.
pub(super) struct Lines<W: Write> {
    inner: W,
    /// Filter for terminals, and the line that has no end yet.
    filtered: Option<(Filter, Vec<u8>)>,
}

impl<W: Write> Lines<W> {
    fn new(inner: W, filter: Option<Filter>) -> Self {
        Self { inner, filtered: filter.map(|filter| (filter, Vec::new())) }
    }
}

/// Converts an error: a terminal whose session has ended returns `EIO`, which is treated as a closed pipe.
fn hung_up(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::EIO) { io::ErrorKind::BrokenPipe.into() } else { error }
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((filter, line)) = &mut self.filtered else { return self.inner.write(bytes) };
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(end);
        line.extend(lines);
        if !lines.is_empty() {
            let safe = filter(&shown::text(line)).into_owned();
            line.clear();
            self.inner.write_all(safe.as_bytes()).map_err(hung_up)?;
        }
        line.extend(rest);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some((filter, line)) = &mut self.filtered {
            let line = std::mem::take(line);
            self.inner.write_all(filter(&shown::text(&line)).as_bytes()).map_err(hung_up)?;
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

/// The status of a recording, at the bottom of a terminal.
#[derive(Clone)]
pub(super) struct ProgressLine {
    bar: ProgressBar,
    /// The callsite that grows most, once it has a name.
    grower: Arc<Mutex<Option<String>>>,
}

impl ProgressLine {
    pub(super) fn new(quiet: bool) -> Self {
        let is_shown = !quiet && Self::is_possible();
        let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::with_draw_target(None, target).with_style(style);
        if is_shown {
            set_shown(Some(bar.clone()));
        }
        Self { bar, grower: Arc::default() }
    }

    pub(super) fn is_possible() -> bool {
        errors_are_terminal()
    }

    /// Draws the status once.
    pub(super) fn show(&self, progress: &Progress, stop: &str) {
        if self.bar.is_hidden() {
            return;
        }
        let grower = self.grower.lock().ok().and_then(|grower| grower.clone());
        self.set_message(&status::text(progress, grower.as_deref(), stop, columns()));
    }

    /// Sets the text, from which control characters are removed: names of others may be in it.
    fn set_message(&self, text: &str) {
        self.bar.set_message(text::plain(text).into_owned());
    }

    pub(super) fn set_grower(&self, text: String) {
        if let Ok(mut grower) = self.grower.lock() {
            *grower = Some(text);
        }
    }

    pub(super) fn begin(&self, activity: &str) {
        // The tick is a thread, which a hidden status does not need.
        if !self.bar.is_hidden() {
            self.bar.set_style(ProgressStyle::default_spinner());
            self.set_message(activity);
            self.bar.enable_steady_tick(Duration::from_millis(100));
        }
    }

    pub(super) fn say(&self, text: &str) {
        self.bar.suspend(|| say(text));
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
        set_shown(None);
    }
}

/// The status that is shown, which messages must not overwrite.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn set_shown(bar: Option<ProgressBar>) {
    if let Ok(mut shown) = SHOWN.lock() {
        *shown = bar;
    }
}

#[derive(Debug)]
pub(super) struct Log;

impl Write for Log {
    /// Receives one whole log line per call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A target's name may contain line ends.
        let (text, end) = line.split_at(line.len() - usize::from(line.ends_with(b"\n")));
        let one_line: Vec<u8> = text.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect();
        if keep(&shown::text(&one_line)) {
            return Ok(line.len());
        }
        let write = || {
            let mut errors = errors();
            errors.write_all(&one_line)?;
            errors.write_all(end)
        };
        let shown = SHOWN.lock().ok().and_then(|shown| shown.clone());
        match shown {
            Some(bar) => bar.suspend(write)?,
            None => write()?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(filter: Option<Filter>, pieces: &[&str]) -> String {
        let mut out = Vec::new();
        let mut lines = Lines::new(&mut out, filter);
        pieces.iter().for_each(|piece| lines.write_all(piece.as_bytes()).expect("vectors accept all bytes"));
        drop(lines);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn terminal_output_has_no_control_characters() {
        let red = ["\x1b[3", "1mred\x1b[0m\n"];
        for filter in [text::plain as Filter, text::coloured] {
            assert_eq!(written(Some(filter), &["a\x1b[2Jb\nc", "d\x07\n", "e"]), "a\u{fffd}[2Jb\ncd\u{fffd}\ne");
            assert_eq!(written(Some(filter), &["\u{e9}".repeat(3).as_str(), "\n"]), "ééé\n");
        }
        // An escape sequence may span two writes.
        assert_eq!(written(Some(text::coloured), &red), "\x1b[31mred\x1b[0m\n");
        assert_eq!(written(Some(text::plain), &red), "\u{fffd}[31mred\u{fffd}[0m\n");
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
        let error = |filter| Lines::new(Failing, filter).write_all(b"line\n").expect_err("it fails");
        assert_eq!(error(Some(text::plain)).kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(error(None).raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn files_and_pipes_receive_unchanged_bytes() {
        assert_eq!(written(None, &["a\x1b[2Jb\n", "c\x07"]), "a\x1b[2Jb\nc\x07");
    }
}
