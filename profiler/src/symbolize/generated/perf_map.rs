//! `/tmp/perf-PID.map`: a line per piece of code, `START SIZE NAME`, numbers in hexadecimal; see jit-interface.txt of Linux's
//! tools/perf/Documentation. Later lines replace earlier ones.

use std::io::{BufRead, BufReader, Read};

use super::pieces::{Found, NAME_BYTES_MAX, Piece, Span, range};

/// Two numbers with spaces, and a name.
const LINE_BYTES_MAX: usize = NAME_BYTES_MAX + 64;

/// Skips malformed lines. A last line without an end is still being written.
pub(super) fn parse(file: impl Read) -> Found {
    let mut found = Found::default();
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut offset, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
        let Ok(mut length) = read.map(|count| count as u64) else { return found };
        if line.last() != Some(&b'\n') {
            // The rest of a line that is too long; at the end of the file there is none.
            match skip_line(&mut reader) {
                Some(rest) => length += rest,
                None => return found,
            }
        }
        match piece(&line, offset, offset + length) {
            Line::Piece(piece) => {
                if !found.add(piece) {
                    return found;
                }
            }
            Line::Empty => {}
            Line::Malformed => found.malformed += 1,
        }
        offset += length;
    }
}

/// Returns the number of bytes up to the end of the line; `None` if it has no end.
fn skip_line(reader: &mut impl BufRead) -> Option<u64> {
    let mut length = 0;
    loop {
        let bytes = reader.fill_buf().ok().filter(|bytes| !bytes.is_empty())?;
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let count = end.map_or(bytes.len(), |end| end + 1);
        reader.consume(count);
        length += count as u64;
        if end.is_some() {
            return Some(length);
        }
    }
}

enum Line {
    Piece(Piece),
    /// Of no bytes of code.
    Empty,
    Malformed,
}

fn piece(line: &[u8], offset: u64, end_of_line: u64) -> Line {
    let parse = || {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let mut fields = text.splitn(3, |&byte| byte == b' ');
        let (start, size_bytes, name) = (number(fields.next()?)?, number(fields.next()?)?, fields.next()?);
        let (start, end) = range(start, size_bytes)?;
        let name_offset = offset + (text.len() - name.len()) as u64;
        let length = u32::try_from(name.len().min(NAME_BYTES_MAX)).ok().filter(|&length| length > 0)?;
        let name = Span { offset: name_offset, length };
        Some(Piece { start, end, written: end_of_line, name, lines: None })
    };
    match parse() {
        Some(piece) if piece.start < piece.end => Line::Piece(piece),
        Some(_) => Line::Empty,
        None => Line::Malformed,
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    let text = text.strip_prefix("0x").unwrap_or(text);
    // `from_str_radix` would accept a sign.
    text.starts_with(|digit: char| digit.is_ascii_hexdigit()).then(|| u64::from_str_radix(text, 16).ok())?
}
