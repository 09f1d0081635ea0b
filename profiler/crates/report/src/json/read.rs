//! Reads JSON reports. Unknown fields are ignored; invalid numbers, other JSON and other versions are refused.

use std::borrow::Cow;
use std::sync::Arc;

use heapbpf_base::ids::Pid;
use heapbpf_base::units::{
    Amounts, Cubes, EstimatedBytes, EstimatedCount, EstimatedCube, EstimatedMicros, EstimatedVariance, MonotonicNanos,
    Rounding, Variance,
};
use heapbpf_ledger::details::{Ages, Details, Histogram};
use heapbpf_ledger::model::{
    Beginning, CallsiteProfile, CurvePoint, End, Frame, FrameId, HeapProfile, HeapUsage, History, LeakCandidate, Leaks,
    MappingProfile, ModuleProfile, Origin, Others, Profile, TargetFacts, TargetProfile,
};
use heapbpf_ledger::totals::Totals;
use profiler_common::stack::StackEnd;
use serde::Deserialize;

use super::schema::{self, VERSION};
use super::values::{Amount, Hex};
use crate::tables::{Intern, Interner};
use crate::text;

/// Limit for bytes and blocks: beyond any heap, and small enough for sums over a report not to overflow.
const AMOUNT_MAX: f64 = 18_446_744_073_709_551_616.0;
const NANOS_MAX: f64 = AMOUNT_MAX * (1_u64 << 20) as f64;

/// Limit for variances: a standard deviation of 4 TiB. A million of these can be summed.
const VARIANCE_MAX: f64 = AMOUNT_MAX * (1_u64 << 20) as f64;
/// Limit for third cumulants: 2^15 samples at an interval of 1 GiB. A million of these can be summed.
const CUBE_MAX: f64 = VARIANCE_MAX * (1_u64 << 22) as f64;

const TEMPORARY_COUNT_MAX: u64 = 1 << 43;

/// Limit for points of a curve. Sessions keep fewer.
const CURVE_POINTS_MAX: usize = 4096;
const COMM_BYTES_MAX: usize = 15;

#[derive(Deserialize)]
struct Opening {
    version: Option<u64>,
    kind: Option<String>,
}

/// Times of the ledger are on the Unix clock; sums of estimates beyond 2^53 / 2^20 (8 GiB) have 53 significant bits.
pub fn read(text: &[u8]) -> Result<Profile, String> {
    let foreign = |reason: &str| format!("it is not a report of heapbpf: {reason}");
    let refused = |error: serde_json::Error| match error.classify() {
        serde_json::error::Category::Data => foreign(&error.to_string()),
        _ => format!("it is not JSON, or truncated: {error}"),
    };
    let opening: Opening = serde_json::from_slice(text).map_err(refused)?;
    let reason = match (opening.version, opening.kind.as_deref()) {
        (Some(version), None) if version == u64::from(VERSION) => {
            let report: schema::Report<'_> = serde_json::from_slice(text).map_err(refused)?;
            return profile(report).map_err(|reason| foreign(&reason));
        }
        (Some(_), Some("diff")) => {
            "it is the difference of two profiles; specify one of these profiles instead".to_owned()
        }
        (Some(_), Some("leaks")) => {
            "it is a report of `heapbpf leaks`, which cannot be converted; write another format directly: `heapbpf leaks -o leaks.svg`".to_owned()
        }
        (Some(version), None) => format!("it has version {version} of the report, and this heapbpf reads version {VERSION}; use the heapbpf that wrote it"),
        _ => foreign("it has no version"),
    };
    Err(reason)
}

fn profile(report: schema::Report<'_>) -> Result<Profile, String> {
    let mut names = Names::default();
    let modules = report.modules.into_iter().map(|module| self::module(module, &mut names));
    let modules = modules.collect::<Result<Vec<_>, _>>()?;
    let targets = report.targets.into_iter().map(|target| self::target(target, modules.len(), &mut names));
    let mut profile = Profile {
        interval_bytes: report.interval_bytes,
        started_unix_ns: report.started_unix_ns,
        ended_unix_ns: report.ended_unix_ns,
        started_monotonic_ns: report.started_unix_ns,
        older_than_ns: report.older_than_ns,
        filter: report.filter.map(Cow::into_owned),
        // Leak reports have a shape of their own, which is not read back.
        unreachable: false,
        strict: false,
        window: report.window,
        targets: targets.collect::<Result<_, _>>()?,
        others: Others {
            skipped: report.others.skipped.into_owned(),
            skipped_count: report.others.skipped_count,
            short_lived_count: report.others.short_lived_count,
            not_inherited_count: report.others.not_inherited_count,
            folded_count: report.others.folded_count,
            folded_totals: totals(&report.others.folded_totals)?,
            folded_interval_bytes: report.others.folded_interval_bytes,
        },
        health: report.health.health,
        frames: names.frames.into_iter().collect(),
        modules,
        sources: Vec::new(),
    };
    profile.round_sums();
    Ok(profile)
}

fn target(target: schema::Target<'_>, modules: usize, names: &mut Names) -> Result<TargetProfile, String> {
    let heaps = target.heaps.into_iter().map(heap).collect::<Result<Vec<_>, _>>()?;
    let mappings = target.mappings.iter().map(|mapping| self::mapping(mapping, modules));
    let threads = target.threads.len();
    let callsites = (0..).zip(target.callsites);
    let callsites = callsites.map(|(index, callsite)| self::callsite(index, callsite, &heaps, threads, names));
    let callsites = callsites.collect::<Result<Vec<_>, _>>()?;
    let leaks = target.leak_candidates.map(|leaks| self::leaks(leaks, &heaps, &callsites, names));
    let detached = target.detached_unix_ns.map(MonotonicNanos);
    Ok(TargetProfile {
        facts: TargetFacts {
            pid: Pid(target.pid),
            comm: target.comm.map_or_else(|| comm_of(&target.command), Cow::into_owned),
            command: target.command.into_owned(),
            cgroup: target.cgroup.as_deref().map(Into::into),
            // The names are in the frames.
            program: None,
            rights: target.rights.map(Cow::into_owned),
            files: None,
            beginning: beginning(&target.beginning)?,
            end: End::of_fields(target.exited, target.exit_code, target.replaced, detached),
            overhead: target.overhead,
        },
        mappings: mappings.collect::<Result<_, _>>()?,
        threads: target.threads.into_owned(),
        history: history(&target.curve)?,
        memory: Arc::new(super::memory::read(target.memory, target.inventory.map(Cow::into_owned))),
        totals: totals(&target.totals.totals)?,
        leaks: leaks.transpose()?,
        callsites,
        heaps,
    })
}

fn comm_of(command: &str) -> String {
    let name = heapbpf_ledger::model::base_name(command);
    name[..name.floor_char_boundary(COMM_BYTES_MAX)].to_owned()
}

fn beginning(beginning: &schema::Beginning) -> Result<Beginning, String> {
    let origin = match (&beginning.origin, beginning.parent) {
        (schema::Origin::Running, _) => Origin::Running,
        (schema::Origin::Fork, Some(parent)) => Origin::Forked(Pid(parent)),
        (schema::Origin::Fork, None) => return Err("the parent of a forked process is missing".to_owned()),
        (schema::Origin::Exec, _) => Origin::Executed,
        (schema::Origin::Launch, _) => Origin::Launched,
    };
    Ok(Beginning {
        origin,
        time: MonotonicNanos(beginning.unix_ns),
        delay_ns: beginning.delay_ns,
        from_first_call: beginning.from_first_call,
    })
}

fn heap(heap: schema::Heap<'_>) -> Result<HeapProfile, String> {
    let hook = |schema::Hook { status, attached }: schema::Hook<'_>| {
        let mut hook = status.into_owned();
        if !attached && hook.error.is_none() {
            hook.error = Some("unknown reason".to_owned());
        }
        hook
    };
    Ok(HeapProfile {
        name: heap.name.into_owned(),
        interval_bytes: heap.interval_bytes,
        interval_bytes_max: heap.interval_bytes_max.max(heap.interval_bytes),
        hooks: heap.hooks.into_iter().map(hook).collect(),
        totals: totals(&heap.amounts.totals)?,
    })
}

/// What callsites held over time is not in a report.
fn history(curve: &[schema::CurvePoint]) -> Result<History, String> {
    if curve.len() > CURVE_POINTS_MAX {
        return Err(format!("a curve has `{}` points, which exceeds the limit of {CURVE_POINTS_MAX}", curve.len()));
    }
    let moment = |&schema::CurvePoint(time, live_bytes, live_count, alloc_bytes, alloc_count): &schema::CurvePoint| {
        let held = HeapUsage {
            live_bytes: bytes(live_bytes)?.to_f64(),
            live_count: count(live_count)?.to_f64(),
            alloc_bytes: bytes(alloc_bytes)?.to_f64(),
            alloc_count: count(alloc_count)?.to_f64(),
        };
        Ok(CurvePoint { time: MonotonicNanos(time), held })
    };
    let curve = curve.iter().map(moment).collect::<Result<Vec<_>, String>>()?;
    match curve.windows(2).find(|pair| pair[0].time > pair[1].time) {
        Some(pair) => Err(format!("the points of a curve are not in the order of time: `{}`", pair[1].time.0)),
        None => Ok(History { curve, instants: Vec::new() }),
    }
}

fn module(module: schema::Module<'_>, names: &mut Names) -> Result<ModuleProfile, String> {
    Ok(ModuleProfile {
        path: names.name(&module.path),
        build_id: module.build_id.as_deref().map(build_id).transpose()?,
    })
}

fn build_id(digits: &str) -> Result<Vec<u8>, String> {
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    // `from_str_radix` accepts signs.
    let is_hex = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let bytes = bytes.filter(|_| is_hex);
    bytes.ok_or_else(|| format!("`{}` is not a build id", text::printable(digits)))
}

fn mapping(mapping: &schema::Mapping, modules: usize) -> Result<MappingProfile, String> {
    let schema::Mapping { start: Hex(start), end: Hex(end), offset: Hex(offset), bias, module } = *mapping;
    if module >= modules {
        return Err(format!("a mapping refers to module `{module}` of {modules}"));
    }
    if start > end {
        return Err(format!("a mapping starts at `{start:#x}`, after its end `{end:#x}`"));
    }
    Ok(MappingProfile { start, end, offset, bias: bias.map(|Hex(bias)| bias), module })
}

fn callsite(
    index: u32,
    callsite: schema::Callsite<'_>,
    heaps: &[HeapProfile],
    threads: usize,
    names: &mut Names,
) -> Result<CallsiteProfile, String> {
    let end = callsite.end.map(|name| {
        let end = StackEnd::ALL.iter().copied().find(|end| end.counter().name() == name);
        end.ok_or_else(|| format!("`{}` is not a valid end of a stack", text::printable(&name)))
    });
    if let Some(thread) = callsite.thread.filter(|&thread| thread >= threads) {
        return Err(format!("a callsite refers to thread `{thread}` of {threads}"));
    }
    let older = callsite.older_count.zip(callsite.older_bytes).map(|(count, bytes)| amounts(count, bytes));
    Ok(CallsiteProfile {
        index,
        stack: names.stack(callsite.stack)?,
        end: end.transpose()?,
        heap: heaps.iter().position(|heap| Some(&*heap.name) == callsite.heap.as_deref()).unwrap_or(heaps.len()),
        thread: callsite.thread,
        history: Vec::new(),
        inherited: callsite.inherited,
        totals: totals(&callsite.amounts.totals)?,
        older: older.transpose()?,
        details: details(callsite.amounts.details)?,
        rounding: Rounding::default(),
    })
}

/// A candidate is the callsite at its index. Without an index, it is the first callsite with its stack and heap.
fn leaks(
    leaks: schema::LeakCandidates<'_>,
    heaps: &[HeapProfile],
    callsites: &[CallsiteProfile],
    names: &mut Names,
) -> Result<Leaks, String> {
    let candidate = |candidate: schema::LeakCandidate<'_>| {
        let stack = names.stack(candidate.stack)?;
        let matches = |callsite: &CallsiteProfile| {
            let heap = heaps.get(callsite.heap).map(|heap| heap.name.as_str());
            callsite.stack == stack && heap == candidate.heap.as_deref()
        };
        let callsite = match candidate.callsite {
            Some(at) => callsites.get(at).is_some_and(matches).then_some(at),
            None => callsites.iter().position(matches),
        };
        Ok(LeakCandidate {
            callsite: callsite.ok_or_else(|| "a growing callsite is not among the callsites".to_owned())?,
            bytes_per_second: candidate.bytes_per_second,
            margin: candidate.bytes_per_second_margin_95,
            old_share: candidate.old_share,
            survival: candidate.survival,
            score: candidate.score,
        })
    };
    Ok(Leaks {
        span_ns: leaks.span_ns,
        too_short: leaks.too_short,
        candidates: leaks.candidates.into_iter().map(candidate).collect::<Result<_, String>>()?,
        count: leaks.growing_count,
        suppressed_count: leaks.suppressed_count,
        suppressed_bytes: bytes(leaks.suppressed_bytes)?,
    })
}

/// Freed amounts follow from the live ones, which stay exact where floats were rounded.
fn totals(totals: &schema::Totals) -> Result<Totals, String> {
    let (alloc_count, alloc_bytes) = (count(totals.alloc_count)?, bytes(totals.alloc_bytes)?);
    let (live_count, live_bytes) = (count(totals.live_count)?, bytes(totals.live_bytes)?);
    let (opening_count, opening_bytes) = (count(totals.inherited_count)?, bytes(totals.inherited_bytes)?);
    Ok(Totals {
        opening_count,
        opening_bytes,
        alloc_count,
        alloc_bytes,
        free_count: opening_count + alloc_count - live_count,
        free_bytes: opening_bytes + alloc_bytes - live_bytes,
        alloc_samples: totals.alloc_samples,
        live_samples: totals.live_samples,
        alloc_variance: Variance {
            bytes: variance(totals.alloc_bytes_variance, alloc_bytes.to_f64(), totals.alloc_bytes_95)?,
            count: variance(totals.alloc_count_variance, alloc_count.to_f64(), totals.alloc_count_95)?,
            cubes: Cubes {
                bytes: cube(totals.alloc_bytes_third_cumulant),
                count: cube(totals.alloc_count_third_cumulant),
            },
        },
        live_variance: Variance {
            bytes: variance(totals.live_bytes_variance, live_bytes.to_f64(), totals.live_bytes_95)?,
            count: variance(totals.live_count_variance, live_count.to_f64(), totals.live_count_95)?,
            cubes: Cubes {
                bytes: cube(totals.live_bytes_third_cumulant),
                count: cube(totals.live_count_third_cumulant),
            },
        },
        peak_bytes: bytes(totals.peak_bytes)?,
        peak_count: count(totals.peak_count)?,
        peak_time: totals.peak_unix_ns.map(MonotonicNanos),
        at_peak: amounts(totals.at_peak_count, totals.at_peak_bytes)?,
    })
}

/// The report's variance. Reports without one have a confidence interval that it can be computed from.
fn variance(variance: Option<f64>, estimate: f64, interval: Option<[f64; 2]>) -> Result<EstimatedVariance, String> {
    let variance = match (variance, interval) {
        (Some(variance), _) => variance,
        (None, Some([low, high])) => Totals::variance_of(estimate, [low, high]),
        (None, None) => 0.0,
    };
    Ok(EstimatedVariance::from_f64(bounded(variance, VARIANCE_MAX)?))
}

fn cube(cube: Option<f64>) -> EstimatedCube {
    EstimatedCube::of(cube.unwrap_or_default().clamp(-CUBE_MAX, CUBE_MAX))
}

fn details(details: schema::Details) -> Result<Details, String> {
    // The ledger's histograms of times are in microseconds.
    Ok(Details {
        sizes: histogram(details.size_histogram, 1)?,
        lifetimes: histogram(details.lifetime_histogram, 1000)?,
        lifetime_total: nanos(details.lifetime_ns_total)?,
        ages: Ages {
            oldest_ns: details.age_ns_oldest,
            histogram: histogram(details.age_histogram, 1000)?,
            total: nanos(details.age_ns_total)?,
        },
        temporary_count: details.temporary_count.map(|count| count.min(TEMPORARY_COUNT_MAX)),
    })
}

/// `unit`: value in the report of 1 in the histogram.
fn histogram(buckets: Vec<schema::Bucket>, unit: u64) -> Result<Histogram, String> {
    let mut histogram = Histogram::default();
    for schema::Bucket(value, blocks) in buckets {
        histogram.add(value.div_ceil(unit), count(blocks)?);
    }
    Ok(histogram)
}

/// Exact reports have whole microseconds.
fn nanos(amount: Amount) -> Result<EstimatedMicros, String> {
    Ok(match amount {
        Amount::Exact(nanos) => EstimatedMicros::exact(nanos / 1000),
        amount => EstimatedMicros::from_f64(bounded(amount.to_f64(), NANOS_MAX)? / 1000.0),
    })
}

fn amounts(blocks: Amount, size: Amount) -> Result<Amounts, String> {
    Ok(Amounts { count: count(blocks)?, bytes: bytes(size)?, ..Amounts::default() })
}

fn bytes(amount: Amount) -> Result<EstimatedBytes, String> {
    estimate(amount, EstimatedBytes::exact, EstimatedBytes::from_f64)
}

fn count(amount: Amount) -> Result<EstimatedCount, String> {
    estimate(amount, EstimatedCount::exact, EstimatedCount::from_f64)
}

fn estimate<T>(amount: Amount, exact: fn(u64) -> T, from_f64: fn(f64) -> T) -> Result<T, String> {
    match amount {
        Amount::Exact(amount) => Ok(exact(amount)),
        amount => bounded(amount.to_f64(), AMOUNT_MAX).map(from_f64),
    }
}

fn bounded(amount: f64, max: f64) -> Result<f64, String> {
    (amount.abs() <= max).then_some(amount).ok_or_else(|| format!("`{amount:e}` exceeds the limit of {max:e}"))
}

#[derive(Default)]
struct Names {
    names: Interner<Arc<str>>,
    frames: Interner<Frame>,
}

impl Names {
    fn name(&mut self, name: &str) -> Arc<str> {
        let index = self.names.intern_ref(name);
        Arc::clone(&self.names[index as usize])
    }

    fn stack(&mut self, stack: Vec<schema::Frame<'_>>) -> Result<Vec<FrameId>, String> {
        stack.into_iter().map(|frame| self.frame(frame)).collect()
    }

    fn frame(&mut self, frame: schema::Frame<'_>) -> Result<FrameId, String> {
        let Hex(address) = frame.address.ok_or_else(|| "a frame has no address".to_owned())?;
        let frame = Frame {
            function: frame.function.map(|name| self.name(&name)),
            module: frame.module.map(|name| self.name(&name)),
            file: frame.file.map(|name| self.name(&name)),
            line: frame.line,
            inlined: frame.inlined,
            address,
            module_offset: frame.module_offset.map(|Hex(offset)| offset),
            function_start: frame.function_start.map(|Hex(start)| start),
            kind: frame.kind,
        };
        Ok(FrameId(self.frames.intern(frame)))
    }
}
