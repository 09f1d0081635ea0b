//! A track of live bytes per process, from the beginning of the recording to its end.

use super::messages::{CounterDescriptor, Data, ProcessDescriptor, TrackDescriptor, TrackEvent};
use super::{Sequence, signed};
use crate::model::{Profile, TargetProfile};
use crate::report::dumps::{end, rounded};
use crate::report::{ReportError, View, describe};

/// `TrackEvent.Type.TYPE_COUNTER`.
const COUNTER: i32 = 4;

/// `CounterDescriptor.Unit.UNIT_SIZE_BYTES`.
const BYTES: i32 = 3;

/// Writes the process's track (`uuid`), the counter's (the next number), and its values. Numbers of 0 mean another thing, so
/// `uuid` is above.
pub(super) fn write(
    profile: &Profile,
    target: &TargetProfile,
    pid: u32,
    uuid: u64,
    sequence: &mut Sequence<'_>,
) -> Result<(), ReportError> {
    let process = ProcessDescriptor {
        pid: Some(signed(pid)),
        cmdline: vec![target.command.clone()],
        process_name: Some(target.comm.clone()),
        process_labels: target.cgroup.iter().map(|cgroup| cgroup.as_ref().to_owned()).collect(),
    };
    let track = TrackDescriptor { uuid: Some(uuid), process: Some(process), ..TrackDescriptor::default() };
    sequence.write(None, Data::TrackDescriptor(track))?;
    let counter = TrackDescriptor {
        uuid: Some(uuid + 1),
        parent_uuid: Some(uuid),
        name: Some(View::LiveBytes.title().to_owned()),
        counter: Some(CounterDescriptor { unit: Some(BYTES) }),
        description: Some(description(profile)),
        ..TrackDescriptor::default()
    };
    sequence.write(None, Data::TrackDescriptor(counter))?;

    let end = end(profile);
    let curve = target.history.curve.iter().filter(|moment| moment.time < end);
    let curve = curve.map(|moment| (moment.time, rounded(moment.held.live_bytes)));
    for (time, live_bytes) in curve.chain([(end, target.totals.live_bytes().rounded())]) {
        let value = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid: Some(uuid + 1),
            counter_value: Some(i64::try_from(live_bytes).unwrap_or(i64::MAX)),
        };
        sequence.write(Some(time), Data::TrackEvent(value))?;
    }
    Ok(())
}

/// What a trace has no other place for: how much was looked at, how exact that is, and what is missing.
fn description(profile: &Profile) -> String {
    let interval = describe::interval(profile);
    let accuracy = describe::accuracy(profile, View::LiveBytes);
    let older = describe::older(profile).map(|older| format!("; in the heap profile, {older}"));
    format!("heapbpf: {interval}{accuracy}; {}{}", describe::losses(profile), older.unwrap_or_default())
}
