//! Ranges of addresses, and what is mapped there.

use crate::collect::Span;
use crate::linux::proc::maps::Region;

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
