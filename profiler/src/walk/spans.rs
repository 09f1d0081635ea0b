//! Ranges of addresses, put together and taken apart.

use crate::collect::Span;
use crate::proc::regions::Region;

/// Whether a range is mapped from end to end, and private.
pub(super) fn covered(regions: &[Region], span: &Span) -> bool {
    let first = regions.partition_point(|region| region.end <= span.start);
    let mut end = span.start;
    for region in &regions[first..] {
        if region.start > end || region.shared {
            return false;
        }
        end = region.end;
        if end >= span.end {
            return true;
        }
    }
    false
}

/// Ranges by rising address, those that touch made one.
pub(super) fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.start);
    let mut all: Vec<Span> = Vec::new();
    for span in spans {
        match all.last_mut() {
            Some(last) if last.end >= span.start => last.end = last.end.max(span.end),
            _ => all.push(span),
        }
    }
    all
}

/// Ranges, by rising address and apart, without these holes.
pub(super) fn without(spans: Vec<Span>, holes: Vec<Span>) -> Vec<Span> {
    let holes = joined(holes);
    let mut holes = holes.iter().peekable();
    let mut rest = Vec::new();
    for mut span in spans {
        while let Some(hole) = holes.next_if(|hole| hole.end <= span.end) {
            if hole.start > span.start {
                rest.push(span.start..hole.start);
            }
            span.start = span.start.max(hole.end);
        }
        if let Some(hole) = holes.peek().filter(|hole| hole.start < span.end) {
            // It reaches into the next range.
            span.end = hole.start.max(span.start);
        }
        if span.start < span.end {
            rest.push(span);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::TargetAddr;

    #[test]
    fn holes_are_cut_out_of_ranges() {
        let spans = |all: &[(u64, u64)]| -> Vec<Span> {
            all.iter().map(|&(start, end)| TargetAddr(start)..TargetAddr(end)).collect()
        };
        let check = |of: &[(u64, u64)], holes: &[(u64, u64)], expected: &[(u64, u64)]| {
            assert_eq!(without(joined(spans(of)), spans(holes)), spans(expected), "{of:?} without {holes:?}");
        };
        check(&[(10, 20), (20, 30), (40, 50)], &[], &[(10, 30), (40, 50)]);
        check(&[(40, 50), (10, 30)], &[(12, 14), (20, 22)], &[(10, 12), (14, 20), (22, 30), (40, 50)]);
        check(&[(10, 30), (40, 50)], &[(10, 12), (25, 45)], &[(12, 25), (45, 50)]);
        check(&[(10, 30), (40, 50)], &[(5, 60)], &[]);
        check(&[(10, 30), (40, 50)], &[(30, 40), (50, 60)], &[(10, 30), (40, 50)]);
    }
}
