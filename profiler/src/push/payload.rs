//! Encoded requests with the profiles of a window.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use heapbpf_ledger::model::{Profile, TargetProfile};
use heapbpf_report::series::{Series, SeriesValues};
use heapbpf_report::{View, otlp_series, pprof_series};
use prost::Message;

use super::endpoint::Backend;
use super::labels::{Labeller, Labels};
use super::messages::{Label, RawSample, parca, pyroscope};

/// Number of processes of a window that have series of their own in any case, and maximum number: the largest ones, if they are
/// older than the window. All others share the series of their other labels.
const PIDS_ALWAYS: usize = 16;
const PIDS_MAX: usize = 100;

/// Size up to which series are added to a request: a request that a server refuses should take few others with it.
const REQUEST_BYTES: usize = 256 << 10;
/// Maximum number of targets and of bytes of a request of OTLP, whose tables are of the whole request. The collector accepts 4
/// MiB by default.
const RESOURCES_MAX: usize = 16;
const OTLP_BYTES_MAX: usize = 3 << 20;

/// The body of a request: a protobuf message, for OTLP compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    /// Number of series or resources in the request.
    pub(super) profiles: u32,
    pub(super) body: Vec<u8>,
}

/// Encodes a window. Targets without any samples have no series.
pub(super) fn payloads(backend: Backend, profile: &Profile, labeller: &mut Labeller) -> io::Result<Vec<Payload>> {
    let has_samples = |target: &&TargetProfile| {
        target.callsites.iter().any(|callsite| View::ALL.iter().any(|view| view.of_callsite(callsite) > 0))
    };
    let targets: Vec<&TargetProfile> = profile.targets.iter().filter(has_samples).collect();
    match backend {
        Backend::Pyroscope => batched(groups(profile, targets, labeller), |labels, targets| {
            pyroscope_series(labels, &Series { profile, targets })
        }),
        Backend::Parca => batched(groups(profile, targets, labeller), |labels, targets| {
            parca_series(labels, &Series { profile, targets })
        }),
        Backend::Otlp => {
            let labels: Vec<_> = targets.into_iter().map(|target| (target, labeller.of(target))).collect();
            let mut payloads = Vec::new();
            labels.chunks(RESOURCES_MAX).try_for_each(|part| otlp(profile, part, &mut payloads))?;
            Ok(payloads)
        }
    }
}

type Group<'a> = (Labels, Vec<&'a TargetProfile>);

/// Groups targets by their labels. Bounds the number of series of a window, and keeps processes that exit soon from starting
/// series.
fn groups<'a>(profile: &Profile, mut targets: Vec<&'a TargetProfile>, labeller: &mut Labeller) -> Vec<Group<'a>> {
    let start_ns = profile.window.map_or(profile.started_unix_ns, |window| window.start_unix_ns);
    let is_older = |target: &TargetProfile| profile.unix_ns(target.facts.beginning.time) <= start_ns;
    let bytes =
        |target: &TargetProfile| View::LiveBytes.rounded(&target.totals).max(View::AllocBytes.rounded(&target.totals));
    targets.sort_by_key(|target| (!is_older(target), std::cmp::Reverse(bytes(target))));
    let is_few = targets.len() <= PIDS_ALWAYS;
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (index, target) in targets.into_iter().enumerate() {
        let labels = labeller.of(target);
        if is_few || index < PIDS_MAX && is_older(target) {
            groups.push((labels, vec![target]));
            continue;
        }
        let labels = labels.without_pid();
        match groups.iter_mut().find(|(other, _)| *other == labels) {
            Some((_, targets)) => targets.push(target),
            None => groups.push((labels, vec![target])),
        }
    }
    groups
}

/// Encodes groups, and concatenates small requests: the result is the request of all their series.
fn batched(
    groups: Vec<Group<'_>>,
    encode: impl Fn(&Labels, &[&TargetProfile]) -> io::Result<Vec<u8>>,
) -> io::Result<Vec<Payload>> {
    let mut payloads: Vec<Payload> = Vec::new();
    for (labels, targets) in groups {
        let body = encode(&labels, &targets)?;
        match payloads.last_mut() {
            Some(last) if last.body.len() + body.len() <= REQUEST_BYTES => {
                last.body.extend(body);
                last.profiles += 1;
            }
            _ => payloads.push(Payload { profiles: 1, body }),
        }
    }
    Ok(payloads)
}

/// One profile with all four values. `__delta__` states that allocated amounts are those of the window: otherwise the server
/// subtracts the previous profile's, as it must for Go's heap profiles.
fn pyroscope_series(labels: &Labels, series: &Series<'_>) -> io::Result<Vec<u8>> {
    let samples = vec![RawSample { raw_profile: pprof_series(series, SeriesValues::All)? }];
    let labels = named(labels, &[("__delta__", "false")]);
    Ok(pyroscope::PushRequest { series: vec![pyroscope::RawProfileSeries { labels, samples }] }.encode_to_vec())
}

/// Two profiles: for Parca, a profile with a duration is of that period and is added up, and a profile without one is of a point
/// in time.
fn parca_series(labels: &Labels, series: &Series<'_>) -> io::Result<Vec<u8>> {
    let samples = [SeriesValues::Allocated, SeriesValues::LiveAtEnd].map(|values| pprof_series(series, values));
    let samples =
        samples.into_iter().map(|sample| Ok(RawSample { raw_profile: sample? })).collect::<io::Result<_>>()?;
    let labels = Some(parca::LabelSet { labels: named(labels, &[]) });
    Ok(parca::WriteRawRequest { series: vec![parca::RawProfileSeries { labels, samples }] }.encode_to_vec())
}

/// Labels with the name `memory`, which heap profiles have in both systems.
fn named(labels: &Labels, more: &[(&str, &str)]) -> Vec<Label> {
    let more = more.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let name = [("__name__".to_owned(), "memory".to_owned())];
    let labels = more.chain(name).chain(labels.prometheus());
    labels.map(|(name, value)| Label { name, value }).collect()
}

/// Encodes targets for OTLP. Halves the list until a request is small enough.
fn otlp(profile: &Profile, part: &[(&TargetProfile, Labels)], payloads: &mut Vec<Payload>) -> io::Result<()> {
    let targets: Vec<&TargetProfile> = part.iter().map(|(target, _)| *target).collect();
    let attributes = |target: &TargetProfile| {
        let labels = part.iter().find(|(other, _)| std::ptr::eq(*other, target));
        labels.map(|(_, labels)| labels.otlp()).unwrap_or_default()
    };
    let message = otlp_series(&Series { profile, targets: &targets }, &attributes);
    if message.len() > OTLP_BYTES_MAX && part.len() > 1 {
        let (first, second) = part.split_at(part.len() / 2);
        otlp(profile, first, payloads)?;
        return otlp(profile, second, payloads);
    }
    let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
    compressed.write_all(&message)?;
    payloads.push(Payload { profiles: u32::try_from(part.len()).unwrap_or(u32::MAX), body: compressed.finish()? });
    Ok(())
}
