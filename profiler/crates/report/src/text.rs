//! Formatting for people: sizes, counts, times, shares, and untrusted names. Machine formats (JSON) do not use it.

use std::borrow::Cow;

use bytesize::ByteSize;
use jiff::fmt::friendly::{FractionalUnit, SpanPrinter};
use jiff::{SignedDuration, Timestamp};
use num_format::{Buffer, Locale};

const SECOND_NS: u64 = 1_000_000_000;

pub fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// With its sign.
pub fn change(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

/// Sizes that the user chose are mostly round: `4 KiB` rather than `4.0 KiB`.
pub fn round_size(bytes: u64) -> String {
    let size = size(bytes);
    let exact = size.parse::<ByteSize>().is_ok_and(|parsed| parsed.as_u64() == bytes);
    if exact { size.replace(".0 ", " ") } else { size }
}

pub fn count(number: u64) -> String {
    let mut buffer = Buffer::new();
    buffer.write_formatted(&number, &Locale::en);
    buffer.as_str().to_owned()
}

pub fn counted(number: u64, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", count(number))
}

/// To about three digits: `250µs`, `120ms`, `30.5s`, `2m 5s`.
pub fn duration(nanos: u64) -> String {
    let step = match nanos {
        0..1_000_000 => 1_000,
        1_000_000..SECOND_NS => 1_000_000,
        SECOND_NS..60_000_000_000 => SECOND_NS / 10,
        _ => SECOND_NS,
    };
    let rounded = nanos.saturating_add(step / 2) / step * step;
    if rounded == 0 {
        return "0s".to_owned();
    }
    let has_fraction = (SECOND_NS..60 * SECOND_NS).contains(&rounded);
    let printer = SpanPrinter::new().fractional(has_fraction.then_some(FractionalUnit::Second));
    printer.duration_to_string(&SignedDuration::from_nanos(i64::try_from(rounded).unwrap_or(i64::MAX)))
}

pub fn moment(unix_ns: u64) -> String {
    let seconds = i64::try_from(unix_ns / SECOND_NS).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| "an unknown time".to_owned(), |time| time.to_string())
}

/// Formats a share: `12.3%`, or `–` if the whole is 0. Only all of it reads `100.0%`, and only nothing `0.0%`.
pub fn share(part: f64, whole: f64) -> String {
    if whole <= 0.0 {
        return "–".to_owned();
    }
    let percent = part / whole * 100.0;
    match percent {
        _ if percent > 0.0 && percent < 0.05 => "<0.1%".to_owned(),
        _ if (99.95..100.0).contains(&percent) => ">99.9%".to_owned(),
        _ => format!("{percent:.1}%"),
    }
}

/// For terminals and XML: control characters, which can break lines, move the cursor, or are not allowed in XML,
/// become spaces, bidirectional and invisible ones `\u{fffd}`. Trims white space.
pub fn printable(name: &str) -> Cow<'_, str> {
    let name = name.trim_matches(is_blank);
    // Nearly all names, and reports contain millions.
    if name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(name);
    }
    if !name.contains(|c| is_blank(c) && c != ' ' || is_deceptive(c)) {
        return Cow::Borrowed(name);
    }
    name.chars()
        .map(|c| match c {
            _ if is_deceptive(c) => char::REPLACEMENT_CHARACTER,
            _ if is_blank(c) => ' ',
            _ => c,
        })
        .collect::<String>()
        .into()
}

/// For terminals: text in which names and paths of others may be. Keeps line ends and tabs; other control, and all bidirectional and
/// invisible, characters become `\u{fffd}`.
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if is_plain(c) { c } else { char::REPLACEMENT_CHARACTER }).collect::<String>().into()
}

fn is_plain(c: char) -> bool {
    matches!(c, '\n' | '\t') || !is_harmful(c)
}

/// Whether a terminal may obey a character, or hide it.
pub fn is_harmful(c: char) -> bool {
    c.is_control() || is_deceptive(c) || matches!(c, '\u{2028}' | '\u{2029}')
}

/// For terminals: lines that heapbpf has coloured after it has removed colours from their texts. As [`plain`], but keeps colours
/// (`ESC [ … m`).
pub fn coloured(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = colour_length(rest);
        let (piece, after) = rest.split_at(colour.unwrap_or(c.len_utf8()));
        safe.push_str(if colour.is_some() || is_plain(c) { piece } else { "\u{fffd}" });
        rest = after;
    }
    safe.into()
}

/// Returns the length of the colour sequence at the start of a text (ECMA-48, SGR).
fn colour_length(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters[end..].starts_with('m').then_some(2 + end + 1)
}

fn is_blank(c: char) -> bool {
    c.is_control() || c.is_whitespace()
}

/// Unicode's bidirectional controls and the other characters that are not shown (`Default_Ignorable_Code_Point`), without those that
/// choose a form of the character before them, as in emoji; annotations; and two code points that XML 1.0 excludes.
fn is_deceptive(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{fffe}'
            | '\u{ffff}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e00ff}'
            | '\u{e01f0}'..='\u{e0fff}'
    )
}

pub fn cut(text: &str, chars_max: usize) -> Cow<'_, str> {
    if text.chars().nth(chars_max).is_none() {
        return Cow::Borrowed(text);
    }
    text.chars().take(chars_max.saturating_sub(1)).chain(std::iter::once('…')).collect::<String>().into()
}

/// Longer commands are shortened: a program chooses its arguments, and may have 2 MiB of them.
const COMMAND_CHARS_MAX: usize = 200;

/// A process's command for lines of text.
pub fn command(command: &str) -> String {
    cut(&printable(command), COMMAND_CHARS_MAX).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coloured_text_keeps_colours_and_no_other_sequence() {
        assert_eq!(coloured("plain\tté\n"), "plain\tté\n");
        assert_eq!(coloured("\x1b[1;31mred\x1b[0m"), "\x1b[1;31mred\x1b[0m");
        assert_eq!(coloured("\x1b[1;31"), "\u{fffd}[1;31");
        assert_eq!(
            coloured("a\x1b]0;title\x07b\r\x1b[2K\u{9b}2J"),
            "a\u{fffd}]0;title\u{fffd}b\u{fffd}\u{fffd}[2K\u{fffd}2J"
        );
        assert_eq!(coloured("a\u{202e}b"), "a\u{fffd}b");
        assert_eq!(plain("\x1b[1;31mred\x1b[0m\té\n"), "\u{fffd}[1;31mred\u{fffd}[0m\té\n");
    }

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, expected) in [(0, "0 B"), (1023, "1023 B"), (4096, "4.0 KiB"), (18_140_365, "17.3 MiB")] {
            assert_eq!(size(bytes), expected);
        }
        for (bytes, expected) in [(1, "1 B"), (4096, "4 KiB"), (4097, "4.0 KiB"), (6 << 18, "1.5 MiB")] {
            assert_eq!(round_size(bytes), expected);
        }
    }

    #[test]
    fn counts_have_separators() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(counted(0, "block"), "0 blocks");
        assert_eq!(counted(u64::MAX, "block"), "18,446,744,073,709,551,615 blocks");
    }

    #[test]
    fn durations_have_three_digits() {
        for (nanos, expected) in [
            (0, "0s"),
            (250_000, "250µs"),
            (120_400_000, "120ms"),
            (999_999_999, "1s"),
            (30_000_000_000, "30s"),
            (30_460_000_000, "30.5s"),
            (59_960_000_000, "1m"),
            (125_300_000_000, "2m 5s"),
            (7_384_000_000_000, "2h 3m 4s"),
        ] {
            assert_eq!(duration(nanos), expected, "{nanos}");
        }
        assert!(duration(u64::MAX).ends_with('s'), "{}", duration(u64::MAX));
    }

    #[test]
    fn times_are_in_utc() {
        assert_eq!(moment(1_795_255_200_123_456_789), "2026-11-21T10:00:00Z");
        assert!(!moment(u64::MAX).is_empty());
    }

    #[test]
    fn shares_never_round_to_all_or_nothing() {
        for (part, whole, expected) in [
            (1.0, 3.0, "33.3%"),
            (0.0, 3.0, "0.0%"),
            (3.0, 3.0, "100.0%"),
            (1.0, 1e6, "<0.1%"),
            (999_999.0, 1e6, ">99.9%"),
            (0.0, 0.0, "–"),
        ] {
            assert_eq!(share(part, whole), expected);
        }
    }

    #[test]
    fn printable_removes_harmful_characters() {
        for (name, expected) in [
            ("cache_insert", "cache_insert"),
            (" a\nb\tc ", "a b c"),
            ("\u{1b}[31mred\0", "[31mred"),
            ("a\u{202e}b\u{ffff}", "a\u{fffd}b\u{fffd}"),
            ("größe", "größe"),
            ("\r\n", ""),
        ] {
            assert_eq!(printable(name), expected);
        }
    }

    #[test]
    fn characters_that_are_not_shown_are_replaced() {
        let bidirectional = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}'];
        let invisible = [
            '\u{ad}',
            '\u{200b}',
            '\u{200c}',
            '\u{200d}',
            '\u{2060}',
            '\u{feff}',
            '\u{3164}',
            '\u{e0041}',
            '\u{e007f}',
        ];
        for c in bidirectional.into_iter().chain(invisible) {
            let name = format!("a{c}b");
            assert_eq!(printable(&name), "a\u{fffd}b", "{name:?}");
            assert_eq!(plain(&name), "a\u{fffd}b", "{name:?}");
            assert_eq!(coloured(&name), "a\u{fffd}b", "{name:?}");
        }
        for c in ['\u{2028}', '\u{2029}'] {
            let name = format!("a{c}b");
            assert_eq!(printable(&name), "a b", "{name:?}");
            assert_eq!(plain(&name), "a\u{fffd}b", "{name:?}");
        }
        let shown = "größe 内存 ❤\u{fe0f} नमस्ते \u{fffd}";
        assert_eq!((&*printable(shown), &*plain(shown)), (shown, shown));
    }

    #[test]
    fn truncation_adds_an_ellipsis() {
        assert_eq!(cut("abcde", 5), "abcde");
        assert_eq!(cut("abcdef", 5), "abcd…");
        assert_eq!(cut("äöüß", 3), "äö…");
    }

    #[test]
    fn long_commands_are_shortened() {
        assert_eq!(command("redis-server *:6379 "), "redis-server *:6379");
        let long = command(&"a\u{202e}".repeat(1 << 16));
        assert_eq!(long.chars().count(), 200);
        assert!(long.starts_with("a\u{fffd}a") && long.ends_with('…'), "{long}");
    }
}
