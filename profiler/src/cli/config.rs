//! Session configuration from command line options.

use std::path::PathBuf;

use anyhow::Result;

use super::args::{CommonArgs, KernelArgs, LeaksArgs, RecordArgs};
use super::exit::usage;
use super::output::is_recording;
use crate::allocator::hook_set::HookSet;
use crate::allocator::selection::HeapSelection;
use crate::guardrail::Limits;
use crate::ids::Pid;
use crate::linux::files;
use crate::probe::attach::BackendChoice;
use crate::probe::place::PlacementMode;
use crate::process::selection::Selection;
use crate::report::suppressions::Suppressions;
use crate::session::{DumpPlan, Hold, OverloadPolicy, ScopeChoice, SessionConfig, UnwindMode};

/// Maximum size of a suppressions file. Chromium's has 10 KiB.
const SUPPRESSIONS_BYTES_MAX: u64 = 16 << 20;

pub(super) fn of_record(args: &RecordArgs) -> Result<SessionConfig> {
    Ok(SessionConfig {
        selection: selection(args),
        follow_forks: !args.no_follow_fork,
        functions: custom_hooks(args)?,
        heaps: HeapSelection {
            only: args.heap.clone(),
            excluded: args.exclude_heap.clone(),
            intervals: args.heap_interval.clone(),
        },
        hold: args.hold,
        duration: args.duration,
        dumps: DumpPlan {
            every: args.dumps.dump_every,
            growth_bytes: args.dumps.dump_on_growth,
            alloc_bytes: args.dumps.dump_on_alloc,
            mark_after: args.dumps.mark,
        },
        on_overload: (args.on_overload)(args.interval_max),
        placement: args.placement,
        unwind: args.unwind,
        backend: args.backend,
        scope: args.scope,
        unwind_bytes_max: args.unwind_memory,
        by_thread: args.presentation.by_thread(),
        recording: recording_path(args).map(|path| (path.clone(), args.max_size)),
        older_than: args.older_than,
        limits: Limits {
            memory_bytes_max: args.max_memory,
            cpu_percent_max: args.max_cpu,
            overhead_percent_max: args.max_overhead,
        },
        ..defaults(&args.common, &args.kernel)
    })
}

pub(super) fn of_leaks(args: &LeaksArgs) -> SessionConfig {
    let defaults = defaults(&args.common, &args.kernel);
    SessionConfig {
        selection: Selection { pids: args.pid.into_iter().collect(), ..defaults.selection },
        duration: args.watch,
        checks: Some(args.snapshot),
        ..defaults
    }
}

/// Configuration without targets.
fn defaults(common: &CommonArgs, kernel: &KernelArgs) -> SessionConfig {
    SessionConfig {
        selection: Selection {
            pids: Vec::new(),
            patterns: Vec::new(),
            cgroups: Vec::new(),
            all: false,
            exclude: Vec::new(),
            min_rss_bytes: 0,
        },
        follow_forks: false,
        functions: HookSet::default(),
        heaps: HeapSelection { only: Vec::new(), excluded: Vec::new(), intervals: Vec::new() },
        hold: Hold::Execs,
        interval: common.interval,
        duration: None,
        dumps: DumpPlan { every: None, growth_bytes: None, alloc_bytes: None, mark_after: None },
        ring_bytes: kernel.ring_size,
        live_blocks_max: kernel.live_blocks,
        // For leaks: at a higher interval, more blocks would have no stack.
        on_overload: OverloadPolicy::Drop,
        placement: PlacementMode::Auto,
        unwind: UnwindMode::Auto,
        backend: BackendChoice::Auto,
        scope: ScopeChoice::Auto,
        unwind_bytes_max: 256 << 20,
        by_thread: false,
        recording: None,
        older_than: None,
        limits: Limits { memory_bytes_max: None, cpu_percent_max: None, overhead_percent_max: None },
        checks: None,
        raw_stacks_max: 0,
    }
}

/// Duplicate PIDs are removed; the order is kept.
fn selection(args: &RecordArgs) -> Selection {
    let mut pids: Vec<Pid> = Vec::new();
    for &pid in &args.pid {
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    Selection {
        pids,
        patterns: args.cmdline.clone(),
        cgroups: args.cgroup.clone(),
        all: args.all,
        exclude: args.exclude.clone(),
        min_rss_bytes: args.min_rss,
    }
}

/// Hooks of `--hook` take precedence over those of `--hooks`.
fn custom_hooks(args: &RecordArgs) -> Result<HookSet> {
    let mut hooks = HookSet::default();
    args.hook.iter().for_each(|hook| hooks.add(hook.clone()));
    for file in &args.hooks {
        hooks.load(file).map_err(|error| usage(error.to_string()))?;
    }
    Ok(hooks)
}

pub(super) fn recording_path(args: &RecordArgs) -> Option<&PathBuf> {
    args.common.output.output.iter().find(|path| is_recording(path))
}

pub(super) fn suppressions(common: &CommonArgs) -> Result<Suppressions> {
    let mut suppressions = Suppressions::default();
    for path in &common.suppressions {
        let shown = path.display();
        let text = files::read_text(path, SUPPRESSIONS_BYTES_MAX)
            .map_err(|error| usage(format!("cannot read suppressions from `{shown}`: {error}")))?;
        suppressions.extend(Suppressions::parse(&text).map_err(|error| usage(format!("`{shown}`, {error}")))?);
    }
    Ok(suppressions)
}
