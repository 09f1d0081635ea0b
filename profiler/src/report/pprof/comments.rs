//! What a reader must know to believe the numbers, in lines of text.

use crate::model::Profile;
use crate::report::{Presentation, View, describe, text, window};

/// A line per fact; the first one has the version.
pub(super) fn of(profile: &Profile, presentation: &Presentation) -> Vec<String> {
    let mut lines = vec![
        format!("heapbpf {}", env!("CARGO_PKG_VERSION")),
        format!("profile of {}{}", describe::subject(profile), window::title(profile)),
    ];
    let looked = describe::looked(profile);
    lines.push(looked.clone().unwrap_or_else(|| format!("interval: {}", describe::interval(profile))));
    let about = describe::about(profile.is_exact());
    lines.extend(View::ALL.map(|view| {
        let amount = view.amount(describe::total(profile, view));
        // What is shown of live blocks can be less than all of them: accuracy is of all.
        format!("all {}: {about}{amount}{}", describe::title(profile, view), describe::accuracy(profile, view))
    }));
    if let Some(age_ns) = profile.older_than_ns {
        lines.push(format!("inuse: blocks older than {} only", text::duration(age_ns)));
    }
    lines.push(format!("losses: {}", describe::losses(profile)));
    let lost = profile.health.lost.iter().filter(|(_, count)| *count > 0);
    lines.extend(lost.map(|(reason, count)| format!("lost: {} {}", text::printable(reason), text::count(*count))));
    let hooks = describe::each_once(profile).into_iter().filter(|(_, hook)| hook.is_missing());
    lines.extend(hooks.map(|(_, hook)| describe::unattached(hook)));
    let changes = describe::interval_changes(&profile.health);
    lines.extend(changes.iter().map(|(heap, changes)| describe::changed_interval(profile, heap, changes)));
    if looked.is_none() {
        lines.push(format!("watched for {}", text::duration(describe::duration_ns(profile))));
    }
    lines.extend(describe::beginnings(profile));
    if !presentation.by.is_empty() {
        let labels: Vec<&str> = presentation.by.iter().map(|group| group.name()).collect();
        lines.push(format!("grouped with -tagroot={}", labels.join(",")));
    }
    lines
}
