//! Parsers of option values: sizes, times, percentages and fixed sets of names.

use std::collections::HashMap;
use std::time::Duration;

use bytesize::ByteSize;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use heapbpf_base::ids::Pid;
use heapbpf_base::units::parse_bytes;
use profiler_common::interval::Interval;
use profiler_common::limits::INTERVAL_BYTES_MAX;
use regex::Regex;

/// Minimum time between dumps: shorter windows cost more than they show.
const PERIOD_MIN: Duration = Duration::from_millis(100);

const PID_MAX: u32 = i32::MAX as u32;

/// Parser of a fixed set of names, which shell completions list too.
pub(super) fn named<T: Clone + Send + Sync + 'static>(
    values: impl Into<Vec<(&'static str, T)>>,
) -> impl TypedValueParser<Value = T> {
    let values: Vec<(&str, T)> = values.into();
    let names = PossibleValuesParser::new(values.iter().map(|(name, _)| *name));
    let by_name: HashMap<&str, T> = values.into_iter().collect();
    names.map(move |name| by_name[name.as_str()].clone())
}

pub(super) fn pid(text: &str) -> Result<Pid, String> {
    match text.parse() {
        Ok(pid @ 1..=PID_MAX) => Ok(Pid(pid)),
        _ if text.is_empty()
            || text.starts_with(['-', '+'])
            || text.starts_with(|first: char| first.is_ascii_digit()) =>
        {
            Err("not a process id; `ps -e` lists them".to_owned())
        }
        _ => Err(format!("not a process id; to select programs by name, use `--cmdline {text}`")),
    }
}

pub(super) fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| {
        // The error shows the pattern before the reason.
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
        format!("not a regular expression: {reason}")
    })
}

/// Limit of the growth between two profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threshold {
    /// Share of the earlier profile's total, in millionths; can be more than all of it.
    Share(u64),
    /// Number of bytes or blocks.
    Amount(u64),
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and it is not negative")]
pub(super) fn threshold(text: &str) -> Result<Threshold, String> {
    let wrong = "not a limit of growth; write it like 5% or 10MiB";
    let Some(percent) = text.trim().strip_suffix('%') else {
        return size(text).map(Threshold::Amount).map_err(|_| wrong.to_owned());
    };
    let number = percent.trim_end();
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share = number.parse::<f64>().ok().filter(|_| is_number).ok_or_else(|| wrong.to_owned())?;
    Ok(Threshold::Share((share * 10_000.0).round() as u64))
}

pub(super) fn interval(text: &str) -> Result<Interval, String> {
    let bytes = size(text)?;
    if bytes == 0 {
        return Err("must be at least 1, which records every allocation".to_owned());
    }
    match u32::try_from(bytes) {
        Ok(interval) if bytes <= INTERVAL_BYTES_MAX => Ok(Interval::nearest(interval)),
        _ => Err(format!("exceeds the limit of {}: samples would be too rare", ByteSize(INTERVAL_BYTES_MAX))),
    }
}

pub(super) fn ring_size(text: &str) -> Result<u32, String> {
    let bytes = u32::try_from(size(text)?).ok().filter(|bytes| bytes.is_power_of_two());
    bytes
        .filter(|bytes| (64 << 10..=1 << 30).contains(bytes))
        .ok_or_else(|| "must be a power of two from 64KiB to 1GiB".to_owned())
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let percent = number.parse::<f64>().ok().filter(|percent| percent.is_finite() && *percent > 0.0);
    percent.ok_or_else(|| "not a percentage above 0; write it like 5% or 0.5%".to_owned())
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text.trim()).ok_or_else(|| "not a size; write it like 4096, 4KiB or 1M".to_owned())
}

pub(super) fn size_from(bytes_min: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| match size(text)? {
        bytes if bytes < bytes_min => Err(format!("must be at least {}", ByteSize(bytes_min))),
        bytes => Ok(bytes),
    }
}

/// Parses a time above 0; a bare number is in seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let time = offset(text)?;
    if time.is_zero() { Err("must be longer than 0".to_owned()) } else { Ok(time) }
}

pub(super) fn period(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < PERIOD_MIN { Err(format!("must be at least {PERIOD_MIN:?}")) } else { Ok(time) }
}

pub(super) fn offset(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let time = text.parse::<jiff::SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    time.ok_or_else(|| "not a time; write it like 10s, 5m or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_accept_units() {
        for (text, bytes) in
            [("1", 1), ("4096", 4096), ("4KiB", 4096), ("512 KiB", 524_288), ("1M", 1_000_000), ("1kB", 1000)]
        {
            assert_eq!(interval(text), Ok(Interval::nearest(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_intervals_are_rejected() {
        for text in ["0", "abc", "-5", "", "4KiBB", "2GiB", "0.1", "99999999999999999999"] {
            assert!(interval(text).is_err(), "`{text}` was parsed as {:?}", interval(text));
        }
    }

    #[test]
    fn times_accept_units() {
        for (text, seconds) in [("30s", 30), ("5m", 300), ("1h30m", 5400), ("10", 10), ("1 min", 60)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
    }

    #[test]
    fn invalid_times_are_rejected() {
        for text in ["0", "0s", "-3s", "soon", ""] {
            assert!(duration(text).is_err(), "`{text}` was accepted");
        }
        assert_eq!(offset("0s"), Ok(Duration::ZERO));
        assert!(offset("-3s").is_err());
    }

    #[test]
    fn dump_triggers_have_minimums() {
        assert_eq!(period("100ms"), Ok(Duration::from_millis(100)));
        assert!(period("99ms").is_err());
        assert_eq!(size_from(1)("1GiB"), Ok(1 << 30));
        assert!(size_from(1)("0").is_err());
    }

    #[test]
    fn percentages_accept_a_percent_sign() {
        for (text, share) in [("5%", 5.0), ("5", 5.0), ("0.5 %", 0.5), ("1000%", 1000.0)] {
            assert_eq!(percent(text), Ok(share), "{text}");
        }
        for text in ["0", "0%", "-1%", "many", "", "%", "inf", "NaN"] {
            assert!(percent(text).is_err(), "`{text}` was accepted");
        }
    }

    #[test]
    fn ring_sizes_are_powers_of_two() {
        assert_eq!(ring_size("1MiB"), Ok(1 << 20));
        for text in ["1MB", "4KiB", "2GiB", "0"] {
            assert!(ring_size(text).is_err(), "`{text}` was accepted");
        }
    }
}
