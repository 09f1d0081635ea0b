//! Tests of the series that a window has, and of the requests that are made of them.

use std::io::Read;

use flate2::read::GzDecoder;
use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Profile, TargetProfile};
use heapbpf_report::testing as test_profiles;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use prost::Message;

use crate::push::endpoint::Backend;
use crate::push::labels::Labeller;
use crate::push::messages::{Label, parca, pyroscope};
use crate::push::payload::{Payload, payloads};

/// Returns a window with processes: pid, name, and whether each is older than the window.
fn window(processes: impl IntoIterator<Item = (u32, &'static str, bool)>) -> Profile {
    let mut profile = test_profiles::exact();
    let target = profile.targets[0].clone();
    let start = profile.started_monotonic_ns;
    let of = |(pid, comm, is_older): (u32, &str, bool)| {
        let mut target: TargetProfile = target.clone();
        (target.facts.pid, target.facts.comm) = (Pid(pid), comm.to_owned());
        target.facts.beginning.time = MonotonicNanos(if is_older { start } else { start + 1 });
        target
    };
    profile.targets = processes.into_iter().map(of).collect();
    profile
}

fn encoded(backend: Backend, profile: &Profile) -> Vec<Payload> {
    payloads(backend, profile, &mut Labeller::new(vec!["env=test".parse().expect("a label")])).expect("encoded")
}

fn label<'a>(labels: &'a [Label], name: &str) -> Option<&'a str> {
    labels.iter().find(|label| label.name == name).map(|label| label.value.as_str())
}

#[test]
fn small_requests_are_concatenated() {
    let profile = window((1..=3).map(|pid| (pid, "a", true)));
    let payloads = encoded(Backend::Pyroscope, &profile);
    let [Payload { profiles: 3, body }] = payloads.as_slice() else { panic!("one request") };
    let request = pyroscope::PushRequest::decode(body.as_slice()).expect("valid");
    let pids: Vec<_> = request.series.iter().map(|series| label(&series.labels, "pid")).collect();
    assert_eq!(pids, [Some("1"), Some("2"), Some("3")]);
    let labels = &request.series[0].labels;
    assert_eq!((label(labels, "__name__"), label(labels, "__delta__")), (Some("memory"), Some("false")));
    assert_eq!((label(labels, "env"), label(labels, "service_name")), (Some("test"), Some("cached")));
    assert_eq!(request.series[0].samples.len(), 1);

    let payloads = encoded(Backend::Parca, &profile);
    let request = parca::WriteRawRequest::decode(payloads[0].body.as_slice()).expect("valid");
    assert_eq!((payloads.len(), request.series.len(), request.series[0].samples.len()), (1, 3, 2));
    assert_eq!(label(&request.series[0].labels.as_ref().expect("labels").labels, "__delta__"), None);
}

#[test]
fn the_number_of_series_is_bounded() {
    // 300 workers, of which the last hundred started in the window.
    let profile = window((1..=300).map(|pid| (pid, if pid % 2 == 0 { "even" } else { "odd" }, pid <= 200)));
    let payloads = encoded(Backend::Pyroscope, &profile);
    let mut series = Vec::new();
    for payload in &payloads {
        let request = pyroscope::PushRequest::decode(payload.body.as_slice()).expect("valid");
        assert_eq!(request.series.len(), payload.profiles as usize);
        series.extend(request.series);
    }
    let with_pid = series.iter().filter(|series| label(&series.labels, "pid").is_some()).count();
    assert_eq!((with_pid, series.len()), (100, 102), "the others share the series of their names");
    let few = window((1..=16).map(|pid| (pid, "a", false)));
    let request = encoded(Backend::Pyroscope, &few);
    assert_eq!(request.iter().map(|payload| payload.profiles).sum::<u32>(), 16);
}

#[test]
fn requests_of_collectors_have_a_resource_per_process() {
    let profile = window((1..=40).map(|pid| (pid, "a", true)));
    let mut pids = Vec::new();
    let payloads = encoded(Backend::Otlp, &profile);
    assert_eq!(payloads.iter().map(|payload| payload.profiles).collect::<Vec<_>>(), [16, 16, 8]);
    for payload in payloads {
        let mut message = Vec::new();
        GzDecoder::new(payload.body.as_slice()).read_to_end(&mut message).expect("compressed");
        let request = ExportProfilesServiceRequest::decode(message.as_slice()).expect("valid");
        for resource in request.resource_profiles.iter().flat_map(|profiles| &profiles.resource) {
            let mut names: Vec<_> = resource.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
            assert!(["service.name", "host.name", "process.pid", "env"].iter().all(|name| names.contains(name)));
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
            pids.push(resource.clone());
        }
    }
    assert_eq!(pids.len(), 40);
}

#[test]
fn processes_without_samples_have_no_series() {
    let mut profile = window([(1, "a", true)]);
    profile.targets[0].callsites.clear();
    for backend in [Backend::Pyroscope, Backend::Parca, Backend::Otlp] {
        assert_eq!(encoded(backend, &profile), []);
    }
}
