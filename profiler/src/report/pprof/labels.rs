//! What samples belong to: process, program, control group, heap, thread, and how large their blocks are.

use rustc_hash::FxHashMap;

use super::messages::Label;
use super::strings::Strings;
use super::{SAMPLE_TYPES, signed};
use crate::model::{CallsiteProfile, TargetProfile};
use crate::report::View;
use crate::report::roots;

/// The labels that tell samples apart. Texts are numbers of the string table; 0 for what is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Set {
    pid: Option<u32>,
    process: i64,
    command: i64,
    cgroup: i64,
    heap: i64,
    thread: i64,
    thread_id: Option<u32>,
}

/// Sets by number.
#[derive(Default)]
pub(super) struct Labels {
    numbers: FxHashMap<Set, u32>,
    sets: Vec<Set>,
}

impl Labels {
    /// The set's number.
    pub(super) fn number(&mut self, set: Set) -> u32 {
        let next = u32::try_from(self.sets.len()).expect("there are as many sets as callsites at most");
        *self.numbers.entry(set).or_insert_with(|| {
            self.sets.push(set);
            next
        })
    }

    /// The labels of a sample with these values. Text labels that would be empty are left out: readers take them for the number 0.
    pub(super) fn messages(&self, number: u32, values: [u64; 4], strings: &mut Strings<'_>) -> Vec<Label> {
        let set = self.sets[number as usize];
        let mut labels = Vec::new();
        let texts = [
            ("process", set.process),
            ("command", set.command),
            ("cgroup", set.cgroup),
            ("heap", set.heap),
            ("thread", set.thread),
        ];
        for (key, text) in texts.into_iter().filter(|&(_, text)| text != 0) {
            labels.push(Label { key: strings.number(key.into()), text, ..Label::default() });
        }
        let block_bytes =
            mean(values, View::AllocBytes, View::AllocCount).or_else(|| mean(values, View::LiveBytes, View::LiveCount));
        // Numbers of this unit are shown as they are; without one, their key is taken for it.
        let numbers = [
            ("pid", set.pid.map(u64::from), "count"),
            ("thread_id", set.thread_id.map(u64::from), "count"),
            ("bytes", block_bytes, "bytes"),
        ];
        for (key, number, unit) in numbers {
            let Some(number) = number else { continue };
            labels.push(Label {
                key: strings.number(key.into()),
                number: signed(number),
                number_unit: strings.number(unit.into()),
                ..Label::default()
            });
        }
        labels
    }
}

/// The mean size of blocks; `None` where there are none.
fn mean(values: [u64; 4], bytes: View, count: View) -> Option<u64> {
    let value = |wanted: View| SAMPLE_TYPES.iter().zip(values).find(|((view, ..), _)| *view == wanted);
    let [(_, bytes), (_, count)] = [value(bytes)?, value(count)?];
    bytes.checked_div(count)
}

/// What a target's samples have in common.
pub(super) struct Scope<'a> {
    target: &'a TargetProfile,
    set: Set,
}

impl<'a> Scope<'a> {
    pub(super) fn new(target: &'a TargetProfile, strings: &mut Strings<'a>) -> Self {
        let set = Set {
            pid: Some(target.pid.0),
            process: strings.number(roots::process(target).into()),
            command: strings.number(target.command.as_str().into()),
            cgroup: target.cgroup.as_deref().map_or(0, |cgroup| strings.number(cgroup.into())),
            ..Set::default()
        };
        Self { target, set }
    }

    pub(super) fn of_callsite(&mut self, callsite: &CallsiteProfile, strings: &mut Strings<'a>) -> Set {
        let heap = self.target.heaps.get(callsite.heap);
        let thread = callsite.thread.and_then(|thread| self.target.threads.get(thread));
        let name = thread.and_then(|thread| thread.name.as_deref());
        Set {
            heap: heap.map_or(0, |heap| strings.number(heap.name.as_str().into())),
            thread: name.map_or(0, |name| strings.number(name.into())),
            thread_id: thread.map(|thread| thread.tid.0),
            ..self.set
        }
    }
}
