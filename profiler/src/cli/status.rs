//! Text of the status of a recording, in two lines.

use std::time::Duration;

use heapbpf_base::units::EstimatedBytes;
use heapbpf_report::text;

use crate::session::Progress;

/// Lines of the parts that fit into the columns, in the order of their importance.
pub(super) fn text(progress: &Progress, grower: Option<&str>, stop: &str, columns: usize) -> String {
    let mut parts = vec![time(progress)];
    match progress.targets {
        0 => parts.push("no process yet".to_owned()),
        1 => {}
        targets => parts.push(format!("{targets} processes")),
    }
    let growth = progress.growth_bytes;
    let sign = if growth < EstimatedBytes::ZERO { '-' } else { '+' };
    let growth = text::size((if sign == '-' { EstimatedBytes::ZERO - growth } else { growth }).rounded());
    parts.push(format!("live {} ({sign}{growth})", text::size(progress.live_bytes.rounded())));
    parts.push(format!("alloc {}/s", text::size(rounded(progress.allocated_bytes_per_second))));
    parts.push(match progress.lost {
        0 => "no drops".to_owned(),
        lost => format!("{} DROPPED", text::count(lost)),
    });
    parts.push(format!("Ctrl-C {stop}"));
    let overhead = progress.overhead_percent.map(|percent| format!("overhead {:.1}%", percent.min(100.0)));
    let sampled = progress.sampled_share.map(|share| format!("sampled {}", text::share(share, 1.0)));
    let grower = grower.map(|grower| format!("top grower {grower}"));
    let details: Vec<String> = [overhead, sampled, grower].into_iter().flatten().collect();
    let [first, second] = [parts, details].map(|parts| fitted(parts, columns));
    if second.is_empty() { first } else { format!("{first}\n{second}") }
}

/// Joins the parts that fit. The last part may be truncated; others are left out whole.
fn fitted(parts: Vec<String>, columns: usize) -> String {
    const SEPARATOR: &str = " · ";
    const TRUNCATED_MIN: usize = 24;
    let mut line = String::new();
    let last = parts.len().saturating_sub(1);
    for (at, part) in parts.into_iter().enumerate() {
        let separator = if line.is_empty() { "" } else { SEPARATOR };
        let left = columns.saturating_sub(line.chars().count() + separator.chars().count());
        if part.chars().count() <= left {
            line.push_str(separator);
            line.push_str(&part);
        } else if at == last && left >= TRUNCATED_MIN {
            line.push_str(separator);
            line.push_str(&text::cut(&part, left));
        }
    }
    line
}

fn time(progress: &Progress) -> String {
    let elapsed = whole_seconds(progress.elapsed);
    match progress.duration {
        Some(duration) => format!("{elapsed} / {}", text::duration(nanos(duration))),
        None => elapsed,
    }
}

fn whole_seconds(time: Duration) -> String {
    text::duration(nanos(Duration::from_secs(time.as_secs())))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and it is not negative")]
fn rounded(bytes: f64) -> u64 {
    bytes.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress {
            elapsed: Duration::from_millis(3700),
            duration: Some(Duration::from_secs(10)),
            targets: 1,
            live_bytes: EstimatedBytes::exact(3 << 20),
            growth_bytes: EstimatedBytes::exact(1 << 20),
            allocated_bytes_per_second: 5e6,
            sampled_share: Some(0.012),
            lost: 0,
            overhead_percent: Some(2.345),
            top_grower: None,
        }
    }

    #[test]
    fn all_parts_fit_into_a_terminal_of_80_columns() {
        assert_eq!(
            text(&progress(), Some("+1.0 MiB cache_insert ← main"), "stops", 80),
            "3s / 10s · live 3.0 MiB (+1.0 MiB) · alloc 4.8 MiB/s · no drops · Ctrl-C stops\n\
             overhead 2.3% · sampled 1.2% · top grower +1.0 MiB cache_insert ← main"
        );
    }

    #[test]
    fn narrow_lines_leave_parts_out() {
        for columns in 0..200 {
            let both = text(&progress(), Some("+1.0 MiB cache_insert ← main"), "stops", columns);
            assert!(both.lines().all(|line| line.chars().count() <= columns), "{both}");
        }
        let both = text(&progress(), Some("+1.0 MiB cache_insert ← main ← start_thread"), "stops", 70);
        let last = both.lines().last().expect("there are two");
        assert!(last.ends_with('…') && last.chars().count() == 70, "{last}");
    }

    #[test]
    fn the_line_starts_at_zero_seconds() {
        let none = Progress { targets: 0, duration: None, ..Progress::default() };
        assert_eq!(
            text(&none, None, "stops", 200),
            "0s · no process yet · live 0 B (+0 B) · alloc 0 B/s · no drops · Ctrl-C stops"
        );
    }

    #[test]
    fn shrinkage_and_drops_are_shown() {
        let shrinking =
            Progress { growth_bytes: EstimatedBytes::ZERO - EstimatedBytes::exact(2048), lost: 1234, ..progress() };
        let line = text(&shrinking, None, "stops", 200);
        assert!(line.contains("live 3.0 MiB (-2.0 KiB)") && line.contains("1,234 DROPPED"), "{line}");
    }
}
