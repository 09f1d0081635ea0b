//! Mappings, threads and histories of synthetic profiles.

use std::sync::Arc;

use heapbpf_base::ids::Tid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{
    CallsiteProfile, Change, CurvePoint, HeapUsage, History, MappingProfile, ModuleProfile, Profile, SampleTrigger,
    TargetProfile, ThreadProfile, TimelinePoint,
};

use super::STARTED_MONOTONIC_NS;

/// Size of each module's only mapping.
const MODULE_BYTES: u64 = 0x1000_0000;

/// Maps every module of the frames at its own address, the same in all targets.
pub(super) fn place(profile: &mut Profile) {
    let Profile { frames, modules, targets, .. } = profile;
    for frame in frames.iter_mut() {
        let Some(path) = &frame.module else { continue };
        let known = modules.iter().position(|module| module.path == *path);
        let module = known.unwrap_or_else(|| {
            // The build id of a vDSO is as long as a file's; one module has none.
            let build_id =
                (!path.contains("stdc++")).then(|| vec![u8::try_from(modules.len()).expect("few") + 0xa0; 20]);
            modules.push(ModuleProfile { path: Arc::clone(path), build_id });
            modules.len() - 1
        });
        if let Some(offset) = frame.module_offset {
            frame.address = base(module) + offset;
        }
    }
    for target in targets {
        target.mappings = (0..modules.len())
            .map(|module| MappingProfile {
                start: base(module) + 0x1000,
                end: base(module) + MODULE_BYTES,
                offset: 0x1000,
                bias: Some(base(module)),
                module,
            })
            .collect();
    }
}

fn base(module: usize) -> u64 {
    0x5555_0000_0000 + MODULE_BYTES * module as u64
}

/// Gives each callsite of a target one of two threads, and the target a control group.
pub(super) fn group(target: &mut TargetProfile) {
    target.facts.cgroup = Some("/system.slice/cached.service".into());
    target.threads = vec![
        ThreadProfile { tid: Tid(target.facts.pid.0), name: Some(target.facts.comm.as_str().into()) },
        ThreadProfile { tid: Tid(target.facts.pid.0 + 1), name: None },
    ];
    for (at, callsite) in target.callsites.iter_mut().enumerate() {
        callsite.thread = Some(at % 2);
    }
}

/// Adds a history to a target: half of its heap was allocated in the first 10 s, up to a dump, the rest by 20 s.
pub(super) fn grow(target: &mut TargetProfile) {
    let time = |seconds: u64| MonotonicNanos(STARTED_MONOTONIC_NS + seconds * 1_000_000_000);
    target.history = History {
        curve: (0..=30_u32)
            .map(|second| CurvePoint { time: time(second.into()), held: share(&target_held(target), second) })
            .collect(),
        instants: vec![
            TimelinePoint { time: time(0), trigger: None },
            TimelinePoint { time: time(10), trigger: Some(SampleTrigger::Dump(1)) },
            TimelinePoint { time: time(20), trigger: Some(SampleTrigger::Mark) },
        ],
    };
    for callsite in &mut target.callsites {
        let held = held(callsite);
        let change = |instant, second| Change { instant, held: share(&held, second) };
        callsite.history = vec![change(1, 10), change(2, 20)];
    }
}

fn held(callsite: &CallsiteProfile) -> HeapUsage {
    let totals = &callsite.totals;
    HeapUsage {
        live_bytes: totals.live_bytes().to_f64(),
        live_count: totals.live_count().to_f64(),
        alloc_bytes: totals.alloc_bytes.to_f64(),
        alloc_count: totals.alloc_count.to_f64(),
    }
}

fn target_held(target: &TargetProfile) -> HeapUsage {
    target.callsites.iter().map(held).fold(HeapUsage::default(), |sum, held| HeapUsage {
        live_bytes: sum.live_bytes + held.live_bytes,
        live_count: sum.live_count + held.live_count,
        alloc_bytes: sum.alloc_bytes + held.alloc_bytes,
        alloc_count: sum.alloc_count + held.alloc_count,
    })
}

/// The state after some seconds: a twentieth of the total for each second.
fn share(held: &HeapUsage, seconds: u32) -> HeapUsage {
    let share = |amount: f64| (amount * f64::from(seconds.min(20)) / 20.0).floor();
    HeapUsage {
        live_bytes: share(held.live_bytes),
        live_count: share(held.live_count),
        alloc_bytes: share(held.alloc_bytes),
        alloc_count: share(held.alloc_count),
    }
}
