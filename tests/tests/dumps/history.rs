//! Live memory over time, in the JSON report and in the recording.

use heapbpf::internals::{
    Found, Modules, RecordedNames, ReplayedSpan, Resolver, Scope, Span, Trim, find_modules, profile, read_recording,
};
use heapbpf_ledger::model::{CurvePoint, HeapUsage, Profile, SampleTrigger, TargetProfile};
use heapbpf_tests::heapbpf::Heapbpf;
use serde_json::Value;

use super::{chain, dump, flow, record};

/// Replays the recording.
fn replayed(heapbpf: &Heapbpf, span: Span) -> Profile {
    let mut reading = read_recording(&heapbpf.file("x.heapbpf")).expect("a recording");
    let mut names = RecordedNames::new(Resolver::in_process());
    let spanned = ReplayedSpan::read(&mut reading, span, false, &mut names).expect("it has it");
    let Found { modules, .. }: Found = find_modules(spanned.modules(), names.is_empty());
    let modules: Modules = modules;
    profile(&spanned.snapshot(modules), Scope::Window, &names, Trim::NOTHING)
}

/// Returns the live bytes of all callsites at a point of the timeline.
fn live_at(target: &TargetProfile, place: usize) -> HeapUsage {
    let mut sum = HeapUsage::default();
    for callsite in &target.callsites {
        let before = callsite.history.iter().rev().find(|change| change.instant as usize <= place);
        let held = before.map(|change| change.held).unwrap_or_default();
        sum.live_bytes += held.live_bytes;
        sum.live_count += held.live_count;
        sum.alloc_bytes += held.alloc_bytes;
        sum.alloc_count += held.alloc_count;
    }
    sum
}

fn curve_of(target: &Value) -> Vec<[u64; 5]> {
    serde_json::from_value(target["curve"].clone()).expect("whole numbers, since every allocation was taken")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers")]
fn moment_fields(profile: &Profile, CurvePoint { time, held }: &CurvePoint) -> [u64; 5] {
    let [live_bytes, live_count, alloc_bytes, alloc_count] =
        [held.live_bytes, held.live_count, held.alloc_bytes, held.alloc_count].map(|amount| amount as u64);
    [profile.unix_ns(*time), live_bytes, live_count, alloc_bytes, alloc_count]
}

/// The event clock and the clock since the epoch are read at different times and run at different rates.
fn is_near(one_ns: u64, other_ns: u64) -> bool {
    one_ns.abs_diff(other_ns) < 1_000_000
}

#[test]
fn a_heap_that_grows_in_steps_has_a_curve_with_its_dumps() {
    let (mut target, heapbpf, mut session) = record("-o x.heapbpf");
    for step in 1..=4_u32 {
        target.work(&format!("+{step}:{} +{}:70 -{}", 1000 * step, 10 + step, 10 + step));
        dump(&mut session, step);
    }
    target.work("+5:9000 -1 -5");
    let _ = session.interrupt().expect_code(0);
    let windows = chain(&heapbpf);

    let text = std::fs::read(heapbpf.file("out.json")).expect("readable");
    let report: Value = serde_json::from_slice(&text).expect("JSON");
    let (json, totals) = (curve_of(&report["targets"][0]), &report["targets"][0]["totals"]);
    assert!(json.is_sorted_by_key(|moment| moment[0]));
    assert_eq!(json.first().map(|moment| moment[1..].to_vec()), Some(vec![0; 4]));
    let last = json.last().expect("the end is one");
    let fields = ["live_bytes", "live_count", "alloc_bytes", "alloc_count"];
    assert_eq!(last[1..].to_vec(), fields.map(|field| totals[field].as_u64().expect("whole")));
    assert_eq!(last[1], 9000);
    assert!(is_near(last[0], report["ended_unix_ns"].as_u64().expect("a time")), "{last:?}");
    assert_eq!(json.iter().map(|moment| moment[1]).max(), totals["peak_bytes"].as_u64());

    let whole = replayed(&heapbpf, Span::default());
    let [replay] = &whole.targets[..] else { panic!("one target") };
    assert_eq!(replay.history.curve.iter().map(|moment| moment_fields(&whole, moment)).collect::<Vec<_>>(), json);
    let instants = &replay.history.instants;
    let dumps: Vec<usize> = (0..instants.len()).filter(|&place| instants[place].trigger.is_some()).collect();
    let occasions: Vec<_> = dumps.iter().filter_map(|&place| instants[place].trigger).collect();
    assert_eq!(occasions, (1..=5).map(SampleTrigger::Dump).collect::<Vec<_>>());
    let mut before = HeapUsage::default();
    for (window, &place) in windows.iter().zip(&dumps) {
        let [_, allocated, _, live] = flow(window.process(target.pid()));
        let held = live_at(replay, place);
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let expected = (live as f64, allocated as f64);
        assert_eq!((held.live_bytes, held.alloc_bytes - before.alloc_bytes), expected);
        assert!(is_near(whole.unix_ns(instants[place].time), window.ended_unix_ns));
        before = held;
    }
}

#[test]
fn a_part_of_a_recording_starts_with_the_live_blocks() {
    let (mut target, heapbpf, mut session) = record("-o x.heapbpf");
    target.work("+1:1000");
    dump(&mut session, 1);
    target.work("+2:200 -1");
    let _ = session.interrupt().expect_code(0);
    let [first, ..] = &chain(&heapbpf)[..] else { panic!("there was a dump") };
    let from_ns = first.ended_unix_ns - first.started_unix_ns;
    let part = replayed(&heapbpf, Span { from_ns: Some(from_ns), to_ns: None });
    let [replay] = &part.targets[..] else { panic!("one target") };
    let (instants, curve) = (&replay.history.instants, &replay.history.curve);
    assert_eq!(instants[0].time, curve[0].time);
    assert_eq!((live_at(replay, 0), curve[0].held.live_bytes), (curve[0].held, 1000.0));
    let last = curve.last().expect("there is an end").held;
    assert_eq!((live_at(replay, instants.len() - 1), last.live_bytes), (last, 200.0));
    assert_eq!((last.alloc_bytes, last.alloc_count), (1200.0, 2.0), "since the recording began");
}
