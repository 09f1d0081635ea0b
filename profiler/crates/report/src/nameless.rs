//! Generated code without names: in which processes, and how their compilers write names.

use heapbpf_ledger::model::{FrameKind, Profile, TargetProfile};

use super::text;

/// Share of a process's sampled allocations below which its nameless code is not mentioned.
const SHARE_MIN: f64 = 0.05;
const OTHER: &str = "its compiler may have an option to write a perf map (docs/jit.md)";

/// A line per process.
pub(super) fn lines(profile: &Profile) -> impl Iterator<Item = String> {
    profile.targets.iter().filter_map(|target| {
        let [nameless, whole] = counts(profile, target);
        if nameless == 0.0 || nameless < SHARE_MIN * whole {
            return None;
        }
        let process = format!("{} ({})", text::printable(&target.facts.comm), target.facts.pid);
        let percent = text::share(nameless, whole);
        Some(format!("generated code without names is in {percent} of the stacks of {process}: {}", advice(target)))
    })
}

/// Sampled allocations whose stacks contain nameless generated code, and all.
fn counts(profile: &Profile, target: &TargetProfile) -> [f64; 2] {
    let mut counts = [0_u64; 2];
    for callsite in &target.callsites {
        let mut frames = callsite.stack.iter().filter_map(|id| profile.frames.get(id.0 as usize));
        let is_nameless = frames.any(|frame| frame.kind == FrameKind::Jitted && frame.function.is_none());
        let count = &mut counts[usize::from(is_nameless)];
        *count = count.saturating_add(callsite.totals.alloc_samples);
    }
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let [named, nameless] = counts.map(|count| count as f64);
    [nameless, named + nameless]
}

/// Runtimes that are known by their files come first: a program can contain several.
fn advice(target: &TargetProfile) -> &'static str {
    let of_runtime = target.memory.runtimes().iter().find_map(|language| language.facts().perf_map);
    let of_program = match target.facts.comm.as_str() {
        comm if comm.starts_with("beam") => {
            Some("start it with `+JPperf true`, as in `ERL_FLAGS='+JPperf true'` (Erlang/OTP 25 or later)")
        }
        "sbcl" => {
            Some("call `(sb-perf:write-perfmap)` in it, after `(require :sb-perf)`, which new versions of SBCL have")
        }
        "julia" => Some("start it with `ENABLE_JITPROFILING=1`"),
        comm if comm.starts_with("luajit") => Some("build LuaJIT with `-DLUAJIT_USE_PERFTOOLS`"),
        _ => None,
    };
    of_program.or(of_runtime).unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use heapbpf_base::language::Language;
    use heapbpf_ledger::model::{MemoryAccount, MemoryFacts};

    use super::*;
    use crate::testing as profiles;

    #[test]
    fn runtimes_have_their_option() {
        let mut profile = profiles::kinds();
        let all = |profile: &Profile| lines(profile).collect::<Vec<_>>();
        assert_eq!(all(&profile), Vec::<String>::new(), "all is named");
        for frame in profile.frames.iter_mut().filter(|frame| frame.kind == FrameKind::Jitted) {
            frame.function = None;
        }
        let [line] = all(&profile).try_into().expect("one process");
        assert!(line.ends_with("stacks of cached (4711): start it with `--perf-basic-prof`"), "{line}");
        let mut advice_of = |runtimes: &[Language], comm: &str| {
            let target = &mut profile.targets[0];
            let mut account = MemoryAccount::default();
            account.extend(MemoryFacts { runtimes: runtimes.to_vec(), ..MemoryFacts::default() });
            (target.memory, target.facts.comm) = (Arc::new(account), comm.to_owned());
            advice(target)
        };
        assert!(advice_of(&[Language::Java], "java").contains("--jvm-perfmap"));
        assert!(advice_of(&[], "julia").contains("ENABLE_JITPROFILING"));
        assert!(advice_of(&[], "beam.smp").contains("+JPperf true"));
        assert!(advice_of(&[], "sbcl").contains("(sb-perf:write-perfmap)"));
        assert_eq!(advice_of(&[], "qemu"), OTHER);
    }
}
