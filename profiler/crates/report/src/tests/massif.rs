//! massif's format, read like ms_print.

use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Change, CurvePoint, FrameId, HeapUsage, Profile, SampleTrigger, TimelinePoint};
use proptest::prelude::*;

use super::{check_golden, properties, render};
use crate::testing as profiles;
use crate::{Format, View};

#[test]
fn goldens() {
    for (name, profile) in [
        ("exact", profiles::exact()),
        ("sampled", profiles::sampled()),
        ("nameless", profiles::nameless()),
        ("empty", profiles::empty()),
    ] {
        check_golden(&format!("massif/{name}.out"), &render(Format::Massif, &profile, View::LiveBytes));
    }
}

/// A parsed snapshot.
#[derive(Debug, PartialEq)]
struct Read {
    time_ms: u64,
    bytes: u64,
    kind: String,
    /// Depth, children, bytes and text of each node.
    tree: Vec<(usize, u64, u64, String)>,
}

fn field(line: Option<&str>, name: &str) -> String {
    let line = line.expect("there is another line");
    line.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')).unwrap_or_else(|| panic!("{line}")).to_owned()
}

/// Parses a file, and checks that trees are complete.
fn parse(text: &str) -> Vec<Read> {
    let mut lines = text
        .lines()
        .map(|line| line.split('#').next().expect("one part"))
        .filter(|line| !line.trim().is_empty())
        .peekable();
    while lines.next_if(|line| line.starts_with("desc:")).is_some() {}
    assert!(lines.next().is_some_and(|line| line.starts_with("cmd:")));
    assert_eq!(lines.next(), Some("time_unit: ms"));
    let mut snapshots = Vec::new();
    while lines.peek().is_some() {
        assert_eq!(field(lines.next(), "snapshot"), snapshots.len().to_string());
        let number = |text: String| text.parse().expect("a number");
        let (time_ms, bytes) = (number(field(lines.next(), "time")), number(field(lines.next(), "mem_heap_B")));
        assert_eq!(field(lines.next(), "mem_heap_extra_B"), "0");
        assert_eq!(field(lines.next(), "mem_stacks_B"), "0");
        let kind = field(lines.next(), "heap_tree");
        let (mut tree, mut missing) = (Vec::new(), u64::from(kind != "empty"));
        while missing > 0 {
            let line = lines.next().expect("the tree goes on");
            let node = line.trim_start().strip_prefix('n').expect("it is a node");
            let (children, rest) = node.split_once(": ").expect("it has children");
            let (bytes, text) = rest.split_once(' ').expect("it has bytes");
            let children: u64 = number(children.to_owned());
            missing = missing - 1 + children;
            tree.push((line.len() - line.trim_start().len(), children, number(bytes.to_owned()), text.to_owned()));
        }
        snapshots.push(Read { time_ms, bytes, kind, tree });
    }
    snapshots
}

fn read(profile: &Profile) -> Vec<Read> {
    parse(&render(Format::Massif, profile, View::AllocCount))
}

/// Checks that trees add up, times do not go back, and the end equals the live bytes.
fn check(profile: &Profile) -> Vec<Read> {
    let snapshots = read(profile);
    assert!(snapshots.is_sorted_by_key(|snapshot| snapshot.time_ms));
    for snapshot in &snapshots {
        let Some(top) = snapshot.tree.first() else { continue };
        assert_eq!(top.2, snapshot.bytes);
        for (at, (depth, children, bytes, _)) in snapshot.tree.iter().enumerate() {
            let below = snapshot.tree[at + 1..].iter().take_while(|(below, ..)| below > depth);
            let own: Vec<_> = below.filter(|(below, ..)| *below == depth + 1).collect();
            assert_eq!(own.len() as u64, *children);
            assert!(own.iter().map(|(_, _, bytes, _)| bytes).sum::<u64>() <= *bytes);
        }
    }
    let callsites = profile.targets.iter().flat_map(|target| &target.callsites);
    let live: u64 = callsites.map(|callsite| View::LiveBytes.of_callsite(callsite)).sum();
    let last = snapshots.last().expect("there is an end");
    assert_eq!((last.bytes, last.kind.as_str()), (live, "detailed"));
    assert!(snapshots.iter().filter(|snapshot| snapshot.kind == "peak").count() <= 1);
    snapshots
}

fn peak(snapshots: &[Read]) -> Option<&Read> {
    snapshots.iter().find(|snapshot| snapshot.kind == "peak")
}

#[test]
fn the_peak_has_its_stacks_and_its_time() {
    let profile = profiles::exact();
    let snapshots = check(&profile);
    let peak = peak(&snapshots).expect("one process has a peak");
    assert_eq!((peak.time_ms, peak.bytes), (1000, profile.targets[0].totals.peak_bytes.rounded()));
    assert_eq!(
        peak.tree[1].3,
        "0x555555550020: handle_request (/src/server.c:88)"
            .replace("555555550020", &format!("{:X}", profile.frames[1].address))
    );
    // A curve of 31 points, two dumps or marks, the start, the peak and the end.
    assert_eq!(snapshots.len(), 31 + 2 + 3);
    let details: Vec<u64> = snapshots.iter().filter(|it| it.kind == "detailed").map(|it| it.time_ms).collect();
    assert_eq!(details, [10_000, 20_000, 30_500]);
}

#[test]
fn small_frames_are_merged() {
    let mut profile = profiles::exact();
    // 0.9 % and 0.8 % of the other live bytes.
    profile.targets[0].callsites[0].totals = profiles::taken(1, 1, 9_000, 0);
    profile.targets[0].callsites[1].totals = profiles::taken(1, 1, 8_000, 0);
    profile.targets[0].callsites[2].totals = profiles::taken(1, 1, 983_000, 0);
    profile.targets[0].callsites.truncate(3);
    let snapshots = check(&profile);
    let last = &snapshots.last().expect("there is an end").tree;
    assert_eq!(last.last().expect("it has nodes").3, "in 2 places, all below massif's threshold (1.00%)");
    assert_eq!(last.last().expect("it has nodes").2, 17_000);
}

#[test]
fn without_a_history_there_are_start_peak_and_end() {
    let mut profile = profiles::exact();
    profile.targets[0].history = Default::default();
    let kinds: Vec<String> = check(&profile).into_iter().map(|snapshot| snapshot.kind).collect();
    assert_eq!(kinds, ["empty", "peak", "detailed"]);
    assert_eq!(check(&profiles::nobody()).len(), 2);
}

#[test]
fn processes_are_added_up_by_time() {
    let mut profile = profiles::sampled();
    let began = profile.started_monotonic_ns;
    let moment = |seconds: u64, live_bytes: f64| CurvePoint {
        time: MonotonicNanos(began + seconds * 1_000_000_000),
        held: HeapUsage { live_bytes, ..HeapUsage::default() },
    };
    profile.targets[0].history.curve = vec![moment(1, 100.0), moment(3, 50.0), moment(5, 60.0)];
    profile.targets[1].history.curve = vec![moment(2, 1000.0), moment(3, 1040.0), moment(4, 10.0)];
    let snapshots = check(&profile);
    let curve: Vec<_> = snapshots.iter().filter(|it| it.kind == "empty").map(|it| (it.time_ms, it.bytes)).collect();
    assert_eq!(curve, [(0, 0), (1000, 100), (2000, 1100), (3000, 1090), (4000, 60), (5000, 70)]);
    let peak = peak(&snapshots).expect("the sum has a peak");
    assert_eq!((peak.time_ms, peak.bytes, peak.tree.len()), (2000, 1100, 3));
    assert_eq!(peak.tree[2].3, "app (900)");
}

#[test]
fn a_long_history_is_downsampled_and_keeps_its_peaks() {
    let mut profile = profiles::exact();
    let began = profile.started_monotonic_ns;
    profile.targets[0].history.curve = (0..30_000_u32)
        .map(|at| CurvePoint {
            time: MonotonicNanos(began + u64::from(at) * 1_000_000),
            held: HeapUsage { live_bytes: if at == 17_345 { 5e9 } else { f64::from(at % 7) }, ..HeapUsage::default() },
        })
        .collect();
    let snapshots = check(&profile);
    assert!(snapshots.len() < 1010, "{}", snapshots.len());
    assert!(snapshots.iter().any(|snapshot| (snapshot.time_ms, snapshot.bytes) == (17_345, 5_000_000_000)));
}

#[test]
fn names_cannot_change_the_structure() {
    let mut profile = profiles::exact();
    profile.targets[0].facts.command = "a\nsnapshot=7 # b".to_owned();
    for name in ["f\nn3: 5 g", "{closure#0}", "", &"x".repeat(10_000)] {
        profile.frames[1].function = Some(name.into());
        check(&profile);
    }
    assert!(render(Format::Massif, &profile, View::LiveBytes).contains("cmd: a snapshot=7 _ b\n"));
}

#[test]
fn invalid_indices_are_harmless() {
    let mut profile = profiles::exact();
    let target = &mut profile.targets[0];
    target.callsites[0].stack.push(FrameId(u32::MAX));
    target.callsites[0].history =
        vec![Change { instant: u32::MAX, held: HeapUsage { live_bytes: f64::NAN, ..HeapUsage::default() } }];
    target.history.instants.push(TimelinePoint { time: MonotonicNanos(u64::MAX), trigger: Some(SampleTrigger::Mark) });
    for live_bytes in [f64::NAN, -5.0, f64::INFINITY, f64::MAX] {
        target
            .history
            .curve
            .push(CurvePoint { time: MonotonicNanos(0), held: HeapUsage { live_bytes, ..HeapUsage::default() } });
    }
    check(&profile);
}

proptest! {
    #[test]
    fn any_profile_can_be_read(profile in properties::profile()) {
        check(&profile);
    }
}
