//! Selects the leak candidates that reports list.

use super::suppressions::Suppressions;
use crate::model::LeakCandidate;
use crate::model::{CallsiteProfile, Profile};

/// Maximum number of candidates per target.
pub(crate) const CANDIDATES_MAX: usize = 100;

impl Profile {
    /// Removes and counts the candidates that a suppression matches, and truncates the rest to [`CANDIDATES_MAX`].
    pub fn suppress(&mut self, suppressions: &Suppressions) {
        let Self { targets, frames, .. } = self;
        for target in targets {
            let Some(leaks) = &mut target.leaks else { continue };
            let callsites: &[CallsiteProfile] = &target.callsites;
            let is_suppressed = |candidate: &LeakCandidate| {
                let stack = callsites.get(candidate.callsite).map_or(&[][..], |callsite| &callsite.stack);
                suppressions.matches_stack(stack, frames)
            };
            let (suppressed, kept) = leaks.candidates.iter().copied().partition(is_suppressed);
            leaks.candidates = kept;
            leaks.candidates.truncate(CANDIDATES_MAX);
            let suppressed: Vec<LeakCandidate> = suppressed;
            leaks.suppressed_count += suppressed.len() as u64;
            let live = |candidate: &LeakCandidate| callsites[candidate.callsite].totals.live_bytes();
            leaks.suppressed_bytes += suppressed.iter().map(live).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Leaks;
    use crate::report::View;
    use crate::report::summary::summary;
    use crate::report::tests::profiles;

    fn growing(candidates: usize, count: usize) -> Profile {
        let mut profile = profiles::exact();
        let candidate = |at: usize| LeakCandidate {
            // The first four are of one callsite, the others of another.
            callsite: usize::from(at >= 4),
            bytes_per_second: 1.0,
            margin: 0.5,
            old_share: 0.5,
            survival: None,
            score: 1.0,
        };
        let candidates = (0..candidates).map(candidate).collect();
        profile.targets[0].leaks = Some(Leaks { candidates, count, ..Leaks::default() });
        profile
    }

    fn suppressed(mut profile: Profile, suppressions: &str) -> (Leaks, String) {
        profile.suppress(&Suppressions::parse(suppressions).expect("good lines"));
        let text = summary(&profile, View::LiveBytes, 10, None, false);
        (profile.targets.swap_remove(0).leaks.expect("growth was computed"), text)
    }

    #[test]
    fn suppressed_candidates_are_not_listed() {
        let (leaks, text) = suppressed(growing(104, 120), "leak:^strdup$");
        assert_eq!((leaks.candidates.len(), leaks.suppressed_count), (4, 100));
        assert!(text.contains("first 4 of 20 growing callsites"), "{text}");
        let (leaks, text) = suppressed(growing(104, 120), "");
        assert_eq!((leaks.candidates.len(), leaks.suppressed_count), (CANDIDATES_MAX, 0));
        assert!(text.contains("first 5 of 120 growing callsites"), "{text}");
        let (leaks, _) = suppressed(growing(104, 104), "leak:main.c");
        assert_eq!((leaks.candidates.len(), leaks.suppressed_count), (0, 104));
    }
}
