//! Hooks that are not attached: all reports and the exit code agree on whether the profile is incomplete.

use heapbpf_ledger::model::Profile;

use super::render;
use crate::summary::summary;
use crate::testing as profiles;
use crate::{Format, View};

/// Two processes with the same hook, which is attached in neither and required by those that are marked so.
fn unattached(required: [bool; 2]) -> Profile {
    let mut profile = profiles::empty();
    profile.targets.push(profile.targets[0].clone());
    for (target, required) in profile.targets.iter_mut().zip(required) {
        let hook = &mut target.heaps[0].hooks[0];
        (hook.required, hook.error) = (required, Some("the entry is patched".to_owned()));
    }
    profile
}

#[test]
fn all_reports_agree_on_missing_hooks() {
    for (required, missing) in
        [([false, false], false), ([true, true], true), ([true, false], true), ([false, true], true)]
    {
        let profile = unattached(required);
        assert_eq!(profile.incomplete(), missing, "{required:?}");
        let image = render(Format::Flamegraph, &profile, View::LiveBytes);
        let verdict = if missing { "incomplete: 1 hook not attached" } else { "complete" };
        assert!(image.contains(&format!(" · {verdict}<")), "{required:?}: {image}");
        let reason = "`malloc` in `/usr/lib/x86_64-linux-gnu/libc.so.6` is not attached: the entry is patched";
        // Without a graph, optional hooks are listed too.
        assert_eq!(image.matches(reason).count(), 1, "{required:?}: {image}");
        let text = summary(&profile, View::LiveBytes, 10, None, false);
        assert_eq!(text.contains("health: incomplete: 1 hook not attached"), missing, "{required:?}: {text}");
        assert!(text.contains("  hooks: 1 of 2 functions of heap libc\n"), "{required:?}: {text}");
        let need = if missing { "" } else { " (few programs call it)" };
        assert_eq!(text.matches(&format!("    libc: {reason}{need}\n")).count(), 1, "{required:?}: {text}");
    }
}
