//! Facts about targets as recordings have them: the layout of a fold is fixed.

use std::sync::Arc;

use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Beginning, End, Overhead, Rights, TargetFacts};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use heapbpf_ledger::model::Program;

#[derive(Serialize, Deserialize)]
struct RecordedFacts {
    pid: Pid,
    command: String,
    comm: String,
    #[serde(default)]
    cgroup: Option<Arc<str>>,
    #[serde(default, with = "in_json")]
    program: Option<Program>,
    #[serde(default, with = "in_json")]
    rights: Option<Rights>,
    beginning: Beginning,
    exited: bool,
    replaced: bool,
    exit_code: Option<i32>,
    detached: Option<MonotonicNanos>,
    overhead: Option<Overhead>,
}

impl From<&TargetFacts> for RecordedFacts {
    fn from(facts: &TargetFacts) -> Self {
        Self {
            pid: facts.pid,
            command: facts.command.clone(),
            comm: facts.comm.clone(),
            cgroup: facts.cgroup.clone(),
            program: facts.program.clone(),
            rights: facts.rights.clone(),
            beginning: facts.beginning,
            exited: facts.has_exited(),
            replaced: facts.is_replaced(),
            exit_code: facts.exit_code(),
            detached: facts.detached(),
            overhead: facts.overhead,
        }
    }
}

impl From<RecordedFacts> for TargetFacts {
    fn from(recorded: RecordedFacts) -> Self {
        let RecordedFacts { exited, exit_code, replaced, detached, .. } = recorded;
        Self {
            pid: recorded.pid,
            command: recorded.command,
            comm: recorded.comm,
            cgroup: recorded.cgroup,
            program: recorded.program,
            rights: recorded.rights,
            files: None,
            beginning: recorded.beginning,
            end: End::of_fields(exited, exit_code, replaced, detached),
            overhead: recorded.overhead,
        }
    }
}

pub(super) fn serialize<S: Serializer>(facts: &TargetFacts, serializer: S) -> Result<S::Ok, S::Error> {
    RecordedFacts::from(facts).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TargetFacts, D::Error> {
    RecordedFacts::deserialize(deserializer).map(TargetFacts::from)
}

/// Serialization of a field that is in facts, which are JSON, and which folds have elsewhere.
mod in_json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(fact: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { fact.serialize(serializer) } else { serializer.serialize_unit() }
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        if deserializer.is_human_readable() {
            Option::deserialize(deserializer)
        } else {
            <()>::deserialize(deserializer).map(|()| None)
        }
    }
}
