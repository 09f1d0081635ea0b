//! heaptrack's format, read like its own reader: line by line, keeping sums only.

use std::collections::BTreeMap;
use std::io;

use heapbpf_ledger::model::Profile;
use proptest::prelude::*;

use super::{check_golden, out_of_range, properties};
use crate::heaptrack::Events;
use crate::testing as profiles;
use crate::{Format, Group, Presentation, ReportError, View};

/// Every callsite allocates twice its live bytes, and frees half of them.
fn write(profile: &Profile, presentation: &Presentation) -> String {
    let mut events = Events::new(Vec::new(), profile, presentation).expect("a vector takes all bytes");
    let mut tell = || {
        for (at, target) in profile.targets.iter().enumerate() {
            for (i, callsite) in target.callsites.iter().enumerate() {
                let bytes = View::LiveBytes.of_callsite(callsite);
                events.at(i as u64 * 1_500_000)?;
                events.allocate(at, i, bytes)?;
                events.allocate(at, i, bytes)?;
                events.free(at, i, bytes)?;
            }
        }
        events.allocate(0, 99, 5)?;
        events.allocate(99, 0, 5)
    };
    tell().expect("a vector takes all bytes");
    String::from_utf8(events.finish(50_000_000).expect("a vector takes all bytes")).expect("it is text")
}

/// State of a reader at the end.
#[derive(Debug, Default)]
struct Read {
    strings: Vec<String>,
    /// Frames of each instruction, the innermost first.
    instructions: Vec<Vec<String>>,
    traces: Vec<(usize, usize)>,
    infos: Vec<(u64, usize)>,
    /// Number of ids that were allocated. heaptrack_gui writes beyond a vector's end where these are not in order.
    allocated: usize,
    latest: usize,
    allocations: u64,
    temporary: u64,
    leaked: BTreeMap<usize, u64>,
    peak: u64,
    time_ms: u64,
}

impl Read {
    fn of(text: &str) -> Self {
        let mut read = Self::default();
        assert!(text.starts_with("v 10400 3\n"));
        text.lines().for_each(|line| read.line(line));
        read
    }

    fn line(&mut self, line: &str) {
        let (kind, rest) = line.split_once(' ').expect("a line has a kind");
        if kind == "s" {
            let (bytes, string) = rest.split_once(' ').expect("a string has a length");
            assert_eq!(usize::from_str_radix(bytes, 16), Ok(string.len()));
            return self.strings.push(string.to_owned());
        }
        if matches!(kind, "v" | "X" | "#" | "I") {
            return;
        }
        let numbers: Vec<u64> =
            rest.split(' ').map(|number| u64::from_str_radix(number, 16).expect("a hexadecimal number")).collect();
        let at = |i: usize| usize::try_from(numbers[i]).expect("small");
        match kind {
            "i" => {
                assert!(at(1) <= self.strings.len());
                let frame = |frame: &[u64]| match usize::try_from(frame[0]).expect("small") {
                    0 => "?".to_owned(),
                    string => self.strings[string - 1].clone(),
                };
                self.instructions.push(numbers[2..].chunks_exact(3).map(frame).collect());
            }
            "t" => {
                assert!((1..=self.instructions.len()).contains(&at(0)) && at(1) <= self.traces.len());
                self.traces.push((at(0), at(1)));
            }
            "a" => {
                assert!(at(1) <= self.traces.len());
                self.infos.push((numbers[0], at(1)));
            }
            "+" => {
                let (bytes, trace) = self.infos[at(0)];
                assert!(at(0) <= self.allocated, "{line}: {} is first", self.allocated);
                self.allocated = self.allocated.max(at(0) + 1);
                self.latest = at(0);
                self.allocations += 1;
                let leaked = self.leaked.entry(trace).or_default();
                *leaked = leaked.wrapping_add(bytes);
                self.peak = self.peak.max(self.total());
            }
            "-" => {
                let (bytes, trace) = self.infos[at(0)];
                self.temporary += u64::from(self.latest == at(0));
                self.latest = 0;
                let leaked = self.leaked.entry(trace).or_default();
                *leaked = leaked.wrapping_sub(bytes);
            }
            "c" => {
                assert!(numbers[0] > self.time_ms);
                self.time_ms = numbers[0];
            }
            _ => panic!("{line}"),
        }
    }

    fn total(&self) -> u64 {
        self.leaked.values().copied().fold(0, u64::wrapping_add)
    }

    /// The functions of a trace, the innermost first.
    fn stack(&self, trace: usize) -> Vec<String> {
        let (mut stack, mut trace) = (Vec::new(), trace);
        while trace > 0 {
            let (instruction, outer) = self.traces[trace - 1];
            stack.extend(self.instructions[instruction - 1].iter().cloned());
            trace = outer;
        }
        stack
    }
}

#[test]
fn goldens() {
    for (name, profile) in
        [("exact", profiles::exact()), ("sampled", profiles::sampled()), ("nameless", profiles::nameless())]
    {
        check_golden(&format!("heaptrack/{name}.txt"), &write(&profile, &Presentation::default()));
    }
}

#[test]
fn a_profile_without_events_is_rejected() {
    let error = Format::Heaptrack.write(&profiles::exact(), &Presentation::default(), &mut Vec::new());
    let error = error.expect_err("it takes a recording");
    assert!(matches!(error, ReportError::NeedsRecording(Format::Heaptrack)));
    assert!(error.to_string().contains("heapbpf convert x.heapbpf -o x.heaptrack.zst"), "{error}");
}

#[test]
fn stacks_have_synthetic_frames_above_their_own() {
    let profile = profiles::sampled();
    let read = Read::of(&write(&profile, &Presentation { by: vec![Group::Heap], ..Presentation::default() }));
    let stacks: Vec<Vec<String>> = read.leaked.keys().map(|&trace| read.stack(trace)).collect();
    let last = stacks[0].len() - 1;
    assert_eq!(stacks[0][0], "operator new(unsigned long)");
    assert_eq!(stacks[0][last - 2..], ["main", "app (900)", "libc"]);
    // An instruction without any name has a module only.
    assert!(
        stacks
            .iter()
            .any(|stack| *stack == ["two lines [31m", "[unwind stopped: more than 1024 frames]", "app (900)", "libc"])
    );
    assert!(stacks.iter().any(|stack| *stack == ["[stack lost]", "app (900)", "libc"]));
}

#[test]
fn inlined_calls_share_an_instruction() {
    let mut profile = profiles::exact();
    profile.frames[1].inlined = true;
    let read = Read::of(&write(&profile, &Presentation::default()));
    assert!(read.instructions.contains(&vec!["handle_request".to_owned(), "main".to_owned()]));
}

/// Reads what `make` writes.
fn read(make: impl Fn(&mut Events<'_, Vec<u8>>) -> io::Result<()>) -> Read {
    let profile = profiles::exact();
    let presentation = Presentation::default();
    let mut events = Events::new(Vec::new(), &profile, &presentation).expect("a vector takes all bytes");
    make(&mut events).expect("a vector takes all bytes");
    Read::of(&String::from_utf8(events.finish(0).expect("a vector takes all bytes")).expect("it is text"))
}

#[test]
fn parts_are_freed_without_a_peak() {
    let read = read(|events| {
        events.allocate(0, 0, 100)?;
        events.free(0, 0, 30)?;
        events.allocate(0, 1, 20)?;
        events.free(0, 1, 20)?;
        events.free(0, 0, 30)
    });
    // The size of the parts counts as one more allocation.
    assert_eq!((read.allocations, read.temporary), (3, 1));
    assert_eq!((read.total(), read.peak), (40, 100));
}

#[test]
fn blocks_of_the_first_size_are_not_temporary() {
    let read = read(|events| {
        (0..5).try_for_each(|_| events.allocate(0, 0, 100))?;
        events.allocate(0, 1, 100)?;
        (0..4).try_for_each(|_| events.free(0, 0, 100))
    });
    assert_eq!((read.allocations, read.temporary, read.total()), (6, 0, 200));
}

fn check(profile: &Profile) {
    let read = Read::of(&write(profile, &Presentation::default()));
    let live = |callsite| View::LiveBytes.of_callsite(callsite);
    let callsites = || profile.targets.iter().flat_map(|target| &target.callsites);
    assert_eq!(read.allocations, 2 * callsites().count() as u64);
    assert_eq!(read.total(), callsites().map(live).sum::<u64>());
    assert_eq!(read.time_ms, 50);
}

#[test]
fn invalid_indices_are_harmless() {
    check(&out_of_range::profile());
    check(&profiles::nobody());
}

proptest! {
    #[test]
    fn any_profile_can_be_read(profile in properties::profile()) {
        check(&profile);
    }
}
