//! gperftools' format, read like google-pprof.

use std::collections::BTreeMap;

use heapbpf_ledger::model::{FrameId, MappingProfile, ModuleProfile, Profile};
use profiler_common::stack::StackEnd;
use proptest::prelude::*;

use super::{check_golden, properties, render};
use crate::testing::{self as profiles, Frames, callsite, taken};
use crate::{Format, View};

/// A parsed file.
struct Read {
    /// Unsampled numbers and addresses, leaf first.
    stacks: Vec<([f64; 4], Vec<u64>)>,
    /// Ranges with the offset and the path of the mapped file.
    mapped: Vec<(std::ops::Range<u64>, u64, String)>,
}

impl Read {
    fn new(profile: &Profile) -> Self {
        let text = render(Format::Gperftools, profile, View::LiveBytes);
        let mut lines = text.lines();
        let header = lines.next().expect("a header");
        assert!(header.starts_with("heap profile: ") && header.ends_with(" @ heap_v2/1"), "{header}");
        let stacks: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).map(stack).collect();
        assert_eq!(lines.next(), Some("MAPPED_LIBRARIES:"));
        Self { stacks, mapped: lines.map(mapped).collect() }
    }

    fn sums(&self) -> [f64; 4] {
        self.stacks.iter().fold([0.0; 4], |sums, (values, _)| std::array::from_fn(|i| sums[i] + values[i]))
    }

    /// The file at an address and the offset in it.
    fn file(&self, address: u64) -> Option<(&str, u64)> {
        let (range, offset, path) = self.mapped.iter().find(|(range, ..)| range.contains(&address))?;
        Some((path, address - range.start + offset))
    }
}

fn stack(line: &str) -> ([f64; 4], Vec<u64>) {
    let (numbers, addresses) = line.split_once(" @ ").expect("a stack has addresses");
    let numbers: Vec<f64> = numbers
        .split([':', '[', ']', ' '])
        .filter(|number| !number.is_empty())
        .map(|number| number.parse().expect("a number"))
        .collect();
    let unsampled = |blocks: f64, bytes: f64| {
        assert!(blocks == 0.0 || bytes > 0.0, "the reader would divide by 0: {line}");
        let factor = if blocks == 0.0 { 1.0 } else { 1.0 / (1.0 - (-(bytes / blocks)).exp()) };
        [blocks * factor, bytes * factor]
    };
    let [live_count, live_bytes] = unsampled(numbers[0], numbers[1]);
    let [alloc_count, alloc_bytes] = unsampled(numbers[2], numbers[3]);
    let hex = |address: &str| u64::from_str_radix(address.strip_prefix("0x").expect("0x"), 16).expect("an address");
    ([live_count, live_bytes, alloc_count, alloc_bytes], addresses.split(' ').map(hex).collect())
}

fn mapped(line: &str) -> (std::ops::Range<u64>, u64, String) {
    let mut fields = line.splitn(6, ' ');
    let mut field = || fields.next().expect("a line of maps has six fields");
    let hex = |number: &str| u64::from_str_radix(number, 16).expect("a number");
    let (start, end) = field().split_once('-').expect("a range");
    assert_eq!(field(), "r-xp");
    let offset = hex(field());
    assert_eq!((field(), field()), ("00:00", "0"));
    (hex(start)..hex(end), offset, field().to_owned())
}

#[test]
fn goldens() {
    for (name, profile) in [
        ("exact", profiles::exact()),
        ("sampled", profiles::sampled()),
        ("nameless", profiles::nameless()),
        ("empty", profiles::empty()),
        ("nobody", profiles::nobody()),
    ] {
        check_golden(&format!("gperftools/{name}.heap"), &render(Format::Gperftools, &profile, View::LiveBytes));
    }
}

#[test]
fn the_reader_sees_the_real_amounts() {
    let mut profile = profiles::exact();
    profile.others.folded_totals = taken(1, 100, 11_092, 40);
    let totals = [View::LiveCount, View::LiveBytes, View::AllocCount, View::AllocBytes]
        .map(|view| view.estimate(&profile.targets[0].totals) + view.estimate(&profile.others.folded_totals));
    let sums = Read::new(&profile).sums();
    for (sum, total) in sums.into_iter().zip(totals) {
        assert!((sum - total).abs() < 0.5, "{sums:?} is not {totals:?}");
    }
}

#[test]
fn the_leaf_is_the_call_and_other_addresses_are_returns() {
    let profile = profiles::exact();
    let address = |name: &str| {
        profile.frames.iter().find(|frame| frame.function.as_deref() == Some(name)).expect("it is there").address
    };
    let expected = [address("strdup") - 1, address("cache_insert"), address("handle_request")];
    let read = Read::new(&profile);
    assert!(read.stacks.iter().any(|(_, stack)| stack.starts_with(&expected)), "{expected:x?}");
}

#[test]
fn inlined_calls_have_no_address_of_their_own() {
    let profile = profiles::sampled();
    let read = Read::new(&profile);
    let vec = &profile.targets[0].callsites[1];
    let physical = vec.stack.iter().filter(|&&id| !profile.frame(id).inlined).count();
    assert_eq!((vec.stack.len(), physical), (4, 2));
    assert_eq!(read.stacks[1].1.len(), physical);
}

/// A process with one frame in a file that is mapped at an address.
fn process(
    pid: u32,
    module: usize,
    start: u64,
    frames: &mut Frames,
    paths: &[&str],
) -> heapbpf_ledger::model::TargetProfile {
    let frame = frames.add("f", paths[module]);
    let last = frames.frames.last_mut().expect("one was just added");
    last.address = start + 0x234;
    let callsites = vec![callsite(&[frame], Some(StackEnd::Complete), 0, taken(1, 1, 100, 0))];
    let mut target = profiles::target(pid, "x", "x", vec![profiles::heap("libc", &[])], callsites);
    target.mappings = vec![MappingProfile { start, end: start + 0x2000, offset: 0x3000, bias: None, module }];
    target
}

#[test]
fn processes_are_mapped_into_one_address_space() {
    let paths = ["/bin/a", "/lib/libb.so"];
    let mut frames = Frames::default();
    let targets = vec![
        process(1, 0, 0x40_0000, &mut frames, &paths),
        // Another file at the same address.
        process(2, 1, 0x40_1000, &mut frames, &paths),
        // The same file elsewhere.
        process(3, 0, 0x7000_0000, &mut frames, &paths),
    ];
    let mut profile = profiles::profile(1, vec![], frames, Default::default());
    profile.targets = targets;
    profile.modules = paths.map(|path| ModuleProfile { path: path.into(), build_id: None }).to_vec();
    profile.frames[1].address = 0x40_1234;
    profile.frames[2].address = 0x7000_0234;
    profile.frames[0].address = 0x40_0234;
    let read = Read::new(&profile);
    let stacks: Vec<(f64, Option<(&str, u64)>)> =
        read.stacks.iter().map(|(values, stack)| (values[1], read.file(stack[0]))).collect();
    assert_eq!(stacks, [(200.0, Some(("/bin/a", 0x3233))), (100.0, Some(("/lib/libb.so", 0x3233)))]);
    assert_eq!(read.stacks[0].1, [0x40_0233]);
}

#[test]
fn addresses_without_a_mapping_are_kept() {
    let mut profile = profiles::exact();
    let with = Read::new(&profile);
    profile.targets[0].mappings.clear();
    let without = Read::new(&profile);
    assert!(without.mapped.is_empty());
    assert_eq!(without.stacks, with.stacks);
}

#[test]
fn newlines_in_paths_are_escaped() {
    let mut frames = Frames::default();
    let target = process(1, 0, 0x40_0000, &mut frames, &["/bin/a b\nc"]);
    let mut profile = profiles::profile(1, vec![], frames, Default::default());
    profile.modules = vec![ModuleProfile { path: "/bin/a b\nc".into(), build_id: None }];
    profile.frames[0].address = 0x40_0234;
    profile.targets = vec![target];
    let read = Read::new(&profile);
    assert_eq!(read.file(read.stacks[0].1[0]), Some(("/bin/a b\\012c", 0x3233)));
}

proptest! {
    #[test]
    fn sums_of_any_profile_are_right(mut profile in properties::profile(), beyond in any::<bool>()) {
        if beyond {
            for target in &mut profile.targets {
                let mapping = MappingProfile { start: 9, end: 1, offset: u64::MAX, bias: None, module: 77 };
                target.mappings.insert(0, mapping);
                target.mappings.insert(0, MappingProfile { start: 0, end: u64::MAX, module: 0, ..mapping });
                target.callsites.iter_mut().for_each(|callsite| callsite.stack.push(FrameId(77)));
            }
        }
        let read = Read::new(&profile);
        // Amounts are rounded before merging.
        let mut bytes = BTreeMap::new();
        for (view, at) in [(View::LiveBytes, 1), (View::AllocBytes, 3)] {
            let callsites = profile.targets.iter().flat_map(|target| &target.callsites);
            let wanted: u64 = callsites.map(|callsite| view.of_callsite(callsite)).sum();
            bytes.insert(view.name(), (read.sums()[at], wanted));
        }
        for (sum, wanted) in bytes.values() {
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let over = sum - *wanted as f64;
            prop_assert!((-1e-3..6.0).contains(&over), "{bytes:?}");
        }
    }
}
