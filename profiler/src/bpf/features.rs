//! Features of the kernel that the programs are adapted to, before Linux 6.6.

use std::env;

use heapbpf_linux::bpf_feature::{has_atomics, has_cookies, has_run_time_allocation};
use tracing::debug;

/// Environment variable: a comma-separated list of features that are treated as missing, to test what is used instead.
const WITHOUT_VARIABLE: &str = "HEAPBPF_WITHOUT";

/// A feature that can be missing, by its name in [`WITHOUT_VARIABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Optional {
    /// Links for entries and returns (Linux 6.13).
    Session,
    /// Links for many probes (Linux 6.6).
    Multi,
    /// Links with cookies (Linux 5.15).
    Cookies,
    /// Atomic instructions that return the previous value (Linux 5.12).
    Atomics,
    /// Hash maps of tracing programs that are allocated at run time (Linux 6.1).
    Allocation,
    /// The kernel's type information.
    Btf,
    /// A tracepoint where processes map memory (Linux 5.7), and a helper (5.15).
    Mappings,
    /// Reading the kernel's memory, which a lockdown for confidentiality refuses.
    Reads,
}

impl Optional {
    /// Whether the user has this feature treated as missing.
    pub(crate) fn is_suppressed(self) -> bool {
        env::var(WITHOUT_VARIABLE).is_ok_and(|list| suppresses(&list, self))
    }
}

fn suppresses(list: &str, feature: Optional) -> bool {
    list.split(',').any(|word| word.trim().parse() == Ok(feature))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    /// Whether links carry cookies; otherwise the kernel side searches for probes by process and address.
    pub(crate) cookies: bool,
    /// Whether atomic instructions return a result; otherwise calls between entry and return are in a hash map.
    pub(crate) atomics: bool,
    /// Whether hash maps can be allocated at run time; otherwise all are allocated when they are created.
    pub(crate) allocation: bool,
}

impl Features {
    pub(crate) const ALL: Self = Self { cookies: true, atomics: true, allocation: true };

    pub(crate) fn probe() -> Self {
        // An inconclusive test counts as present: then loading fails with the kernel's reason.
        let has = |feature: Optional, result: std::io::Result<bool>| {
            let tried = result.unwrap_or_else(|error| {
                debug!("cannot determine whether the kernel has {feature:?}: {error}");
                true
            });
            tried && !feature.is_suppressed()
        };
        let features = Self {
            cookies: has(Optional::Cookies, has_cookies()),
            atomics: has(Optional::Atomics, has_atomics()),
            allocation: has(Optional::Allocation, has_run_time_allocation()),
        };
        debug!("{features:?}");
        features
    }

    /// Whether calls between entry and return are in the hash map.
    pub(crate) fn maps_calls(self) -> bool {
        !self.cookies || !self.atomics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_features_are_suppressed() {
        assert!(suppresses("session, btf", Optional::Btf));
        assert!(suppresses("session, btf", Optional::Session));
        assert!(!suppresses("session, btf", Optional::Multi));
        assert!(!suppresses("", Optional::Cookies));
        assert!(!suppresses("no-such-feature", Optional::Cookies));
    }
}
