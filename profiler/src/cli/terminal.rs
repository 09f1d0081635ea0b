//! The only access to standard output and standard error. Standard error, and standard output where it is a terminal, have no
//! control characters but line ends, tabs and colours: names, arguments and paths of targets could otherwise move a terminal's
//! cursor or type into it, also from a log file that is printed later.

use std::io::{self, IsTerminal, Write};

use indicatif::ProgressDrawTarget;
use terminal_size::terminal_size;

use crate::report::text::on_terminal;

/// Writes a line to standard error. Nobody has to read it: reports are written all the same.
pub(super) fn say(line: &str) {
    let mut out = errors();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Standard output.
pub(super) fn output() -> Lines<io::Stdout> {
    Lines::new(io::stdout(), output_is_terminal())
}

/// Standard error.
pub(super) fn errors() -> Lines<io::Stderr> {
    Lines::new(io::stderr(), true)
}

/// Where progress is drawn.
pub(super) fn progress() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr()
}

pub(super) fn output_is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(super) fn errors_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Clears the line on standard error that progress is drawn in.
pub(super) fn clear_line() -> io::Result<()> {
    io::stderr().write_all(b"\r\x1b[2K")
}

/// The columns of the terminal that standard output is, if it is one, and whether it is to be coloured.
pub(super) fn layout() -> (Option<usize>, bool) {
    if !output_is_terminal() {
        return (None, false);
    }
    let width = terminal_size().map(|(width, _)| usize::from(width.0));
    (width, std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
}

/// A stream that filters whole lines where it is a terminal, and passes bytes on elsewhere.
pub(super) struct Lines<W: Write> {
    inner: W,
    /// What has come of a line, where lines are filtered.
    line: Option<Vec<u8>>,
}

impl<W: Write> Lines<W> {
    fn new(inner: W, filters: bool) -> Self {
        Self { inner, line: filters.then(Vec::new) }
    }
}

/// A terminal whose session has ended answers with `EIO`: nobody reads any more, as with a closed pipe.
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
        // What cannot be written cannot be complained of either.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(filters: bool, pieces: &[&str]) -> String {
        let mut out = Vec::new();
        let mut lines = Lines::new(&mut out, filters);
        pieces.iter().for_each(|piece| lines.write_all(piece.as_bytes()).expect("memory takes it"));
        drop(lines);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn terminals_get_whole_lines_without_control_characters() {
        assert_eq!(written(true, &["a\x1b[2Jb\nc", "d\x07\n", "e"]), "a\u{fffd}[2Jb\ncd\u{fffd}\ne");
        // A sequence that is cut between two pieces is one sequence.
        assert_eq!(written(true, &["\x1b[3", "1mred\x1b[0m\n"]), "\x1b[31mred\x1b[0m\n");
        assert_eq!(written(true, &["\u{e9}".repeat(3).as_str(), "\n"]), "ééé\n");
    }

    #[test]
    fn a_terminal_that_hung_up_has_no_reader_and_a_file_that_fails_has_failed() {
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
    fn files_and_pipes_get_bytes_as_they_are() {
        assert_eq!(written(false, &["a\x1b[2Jb\n", "c\x07"]), "a\x1b[2Jb\nc\x07");
    }
}
