//! Sizes and times as users write them.

use std::time::Duration;

use bytesize::ByteSize;
use profiler_common::limits::INTERVAL_BYTES_MAX;

use crate::recording::write::SIZE_BYTES_MIN;
use crate::units::parse_bytes;

/// A sampling interval: at least 1 byte.
pub(super) fn interval(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    if bytes == 0 {
        return Err("an interval of 0 bytes would sample nothing; use 1 for every allocation".to_owned());
    }
    u32::try_from(bytes).ok().filter(|_| bytes <= INTERVAL_BYTES_MAX).ok_or_else(|| {
        format!("larger than {}, where samples become too rare to tell anything", ByteSize(INTERVAL_BYTES_MAX))
    })
}

/// A ring buffer's size: a power of two, at least a page.
pub(super) fn ring_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    let fitting = u32::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two());
    fitting
        .filter(|bytes| (64 << 10..=1 << 30).contains(bytes))
        .ok_or_else(|| "must be a power of two from 64KiB to 1GiB".to_owned())
}

/// An amount of memory: at least a mebibyte.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < 1 << 20 { Err("must be at least 1MiB".to_owned()) } else { Ok(bytes) }
}

/// A share, more than nothing: `5%`, or `5`.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let percent = number.parse::<f64>().ok().filter(|percent| percent.is_finite() && *percent > 0.0);
    percent.ok_or_else(|| "not a share above 0; write it like 5% or 0.5%".to_owned())
}

/// A number of bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text.trim()).ok_or_else(|| "not a size; write it like 4096, 4KiB or 1M".to_owned())
}

/// What a recording may take.
pub(super) fn recording_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < SIZE_BYTES_MIN { Err(format!("must be at least {}", ByteSize(SIZE_BYTES_MIN))) } else { Ok(bytes) }
}

/// A point in time since something began; a bare number is seconds.
pub(super) fn moment(text: &str) -> Result<Duration, String> {
    if matches!(text.trim(), "0" | "0s") { Ok(Duration::ZERO) } else { duration(text) }
}

/// A number of bytes that is not 0.
pub(super) fn amount(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes == 0 { Err("0 bytes would be reached all the time".to_owned()) } else { Ok(bytes) }
}

/// A time between dumps.
pub(super) fn period(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < PERIOD_MIN { Err(format!("must be at least {PERIOD_MIN:?}")) } else { Ok(time) }
}

/// What is dumped more often says less than it costs.
const PERIOD_MIN: Duration = Duration::from_millis(100);

/// A time longer than none; a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let bad = || "not a time; write it like 10s, 5m or 1h30m".to_owned();
    let duration = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => text.parse::<jiff::SignedDuration>().map_err(|_| bad())?.try_into().map_err(|_| bad())?,
    };
    if duration.is_zero() { Err("a time of 0 leaves nothing to see".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_units() {
        for (text, bytes) in
            [("1", 1), ("4096", 4096), ("4KiB", 4096), ("512 KiB", 524_288), ("1M", 1_000_000), ("1kB", 1000)]
        {
            assert_eq!(interval(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_interval_is_refused() {
        for text in ["0", "abc", "-5", "", "4KiBB", "2GiB", "0.1", "99999999999999999999"] {
            assert!(interval(text).is_err(), "`{text}` was taken as {:?}", interval(text));
        }
    }

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("30s", 30), ("5m", 300), ("1h30m", 5400), ("10", 10), ("1 min", 60)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["0", "0s", "-3s", "soon", ""] {
            assert!(duration(text).is_err(), "`{text}` was taken");
        }
    }

    #[test]
    fn dumps_have_a_shortest_period_and_a_least_amount() {
        assert_eq!(period("100ms"), Ok(Duration::from_millis(100)));
        assert!(period("99ms").is_err());
        assert_eq!(amount("1GiB"), Ok(1 << 30));
        assert!(amount("0").is_err());
    }

    #[test]
    fn shares_are_in_percent() {
        for (text, share) in [("5%", 5.0), ("5", 5.0), ("0.5 %", 0.5), ("1000%", 1000.0)] {
            assert_eq!(percent(text), Ok(share), "{text}");
        }
        for text in ["0", "0%", "-1%", "many", "", "%", "inf", "NaN"] {
            assert!(percent(text).is_err(), "`{text}` was taken");
        }
    }

    #[test]
    fn rings_are_powers_of_two() {
        assert_eq!(ring_size("1MiB"), Ok(1 << 20));
        for text in ["1MB", "4KiB", "2GiB", "0"] {
            assert!(ring_size(text).is_err(), "`{text}` was taken");
        }
    }
}
