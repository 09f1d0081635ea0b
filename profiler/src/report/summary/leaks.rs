//! The callsites that grow, in the summary.

use super::grid::Column;
use super::{HEADING, PLAIN, Page};
use crate::model::leaks::{LeakCandidate, Leaks};
use crate::model::{Profile, TargetProfile};
use crate::report::chain::chain;
use crate::report::text;
use crate::units::EstimatedBytes;

/// Rows of the table.
const ROWS_MAX: usize = 5;

impl Page {
    /// Lists the callsites that grow, of all targets together, or says why there are none to list.
    pub(super) fn leaks(&mut self, profile: &Profile) {
        let all: Vec<(&TargetProfile, &Leaks)> =
            profile.targets.iter().filter_map(|target| Some((target, target.leaks.as_ref()?))).collect();
        let looked_at: Vec<_> = all.iter().filter(|(_, leaks)| !leaks.too_short).collect();
        if all.is_empty() {
            return;
        }
        if looked_at.is_empty() {
            let span = all.iter().map(|(_, leaks)| leaks.span_ns).max().unwrap_or(0);
            let line =
                format!("growing callsites: {} are too short to tell (8 seconds at least)", text::duration(span));
            self.line(PLAIN, &line);
            return self.gap();
        }
        let mut rows: Vec<(&TargetProfile, &LeakCandidate)> = looked_at
            .iter()
            .flat_map(|(target, leaks)| leaks.candidates.iter().map(move |candidate| (*target, candidate)))
            .collect();
        rows.sort_by(|(_, a), (_, b)| b.score.total_cmp(&a.score));
        let suppressed_count: u64 =
            looked_at.iter().map(|(_, leaks)| leaks.suppressed_count).fold(0, u64::saturating_add);
        let bytes = looked_at.iter().map(|(_, leaks)| leaks.suppressed_bytes).sum::<EstimatedBytes>();
        let suppressed = match suppressed_count {
            0 => String::new(),
            count => format!(" ({} suppressed, {})", text::count(count), text::size(bytes.rounded())),
        };
        if rows.is_empty() {
            self.line(PLAIN, &format!("growing callsites: none{suppressed}"));
            return self.gap();
        }
        // Of many growing callsites the worst alone are candidates.
        let grow: u64 = looked_at.iter().map(|(_, leaks)| leaks.count as u64).fold(0, u64::saturating_add);
        let count = grow.saturating_sub(suppressed_count).max(rows.len() as u64);
        let shown = rows.len().min(ROWS_MAX);
        let which =
            if count > shown as u64 { format!("first {shown} of {} ", text::count(count)) } else { String::new() };
        self.line(HEADING, &format!("{which}growing callsites, suspected of leaking{suppressed}"));
        let several = profile.targets.len() > 1;
        let mut columns: Vec<Column> = ["grows/s", "±", "live", "oldest", "old", "survive"].map(Column::Right).into();
        columns.extend(several.then_some(Column::Right("pid")));
        columns.push(Column::Left("where"));
        let rows = rows.into_iter().take(ROWS_MAX).filter_map(|(target, candidate)| {
            let callsite = target.callsites.get(candidate.callsite)?;
            let mut cells = vec![
                size(candidate.bytes_per_second),
                size(candidate.margin),
                text::size(callsite.totals.live_bytes().rounded()),
                callsite.details.ages.oldest_ns.map_or_else(|| "-".to_owned(), text::duration),
                text::share(candidate.old_share, 1.0),
                candidate.survival.map_or_else(|| "-".to_owned(), |survival| text::share(survival, 1.0)),
            ];
            cells.extend(several.then(|| target.pid.to_string()));
            cells.push(chain(profile, &callsite.stack, callsite.end));
            Some(cells)
        });
        let rows = rows.collect();
        self.table(&columns, rows);
        self.gap();
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and it is not negative")]
fn size(bytes: f64) -> String {
    text::size(bytes.round() as u64)
}
