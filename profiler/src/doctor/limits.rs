//! Settings of this machine that bear on profiling. Reads them and says what they mean; changes none.

use std::fs;

use profiler_common::limits::STACK_FRAMES_MAX;
use rustix::process::{Resource, getrlimit};

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Its name.
    pub name: &'static str,
    /// Its value; `None` where it cannot be read.
    pub value: Option<String>,
    /// What it means for heapbpf.
    pub meaning: &'static str,
}

/// All of them.
pub(super) fn read() -> Vec<Limit> {
    let file = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let limit = |name, value, meaning| Limit { name, value, meaning };
    vec![
        limit(
            "RLIMIT_MEMLOCK",
            Some(
                getrlimit(Resource::Memlock).current.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string()),
            ),
            "counts for BPF maps before Linux 5.11 only; heapbpf raises it",
        ),
        limit(
            "kernel.perf_event_paranoid",
            file("/proc/sys/kernel/perf_event_paranoid"),
            "does not hold for who has CAP_PERFMON",
        ),
        limit(
            "kernel.unprivileged_bpf_disabled",
            file("/proc/sys/kernel/unprivileged_bpf_disabled"),
            "does not hold for who has CAP_BPF",
        ),
        limit(
            "kernel lockdown",
            file("/sys/kernel/security/lockdown").map(|text| chosen(&text)),
            "`confidentiality` forbids BPF programs to read the kernel's memory; heapbpf's read that of processes",
        ),
        limit(
            "frames in a stack",
            Some(STACK_FRAMES_MAX.to_string()),
            "heapbpf's own limit; kernel.perf_event_max_stack does not hold for it",
        ),
    ]
}

/// Of words like `none [integrity] confidentiality`, the one in brackets.
fn chosen(text: &str) -> String {
    let bracketed = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    bracketed.unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_told() {
        assert_eq!(chosen("none [integrity] confidentiality"), "integrity");
        assert_eq!(chosen("[none] integrity confidentiality"), "none");
        assert_eq!(chosen("whatever"), "whatever");
    }
}
