//! Describes callsites that are counted together.

use heapbpf_ledger::limit;
use heapbpf_ledger::model::{CallsiteProfile, Profile};
use heapbpf_ledger::totals::Totals;

use super::text;

/// What callsites beyond the limit have allocated.
pub(crate) fn callsites(profile: &Profile) -> Option<String> {
    let is_others = |callsite: &&CallsiteProfile| match *callsite.stack {
        // A report that is read may refer to frames that it lacks.
        [only] => profile.frames.get(only.0 as usize).and_then(|it| it.function.as_deref()) == Some(limit::NAME),
        _ => false,
    };
    let others: Vec<_> = profile.callsites().map(|(_, callsite)| callsite).filter(is_others).collect();
    let sum = |part: fn(&Totals) -> u64| others.iter().map(|it| part(&it.totals)).fold(0, u64::saturating_add);
    let [bytes, count] = [sum(|it| it.alloc_bytes.rounded()), sum(|it| it.alloc_count.rounded())];
    (!others.is_empty()).then(|| {
        format!(
            "`{}` allocated {} in {}: more than `--callsites-max`, or left out because writing was interrupted",
            limit::NAME,
            text::size(bytes),
            text::counted(count, "block")
        )
    })
}
