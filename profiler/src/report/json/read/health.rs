//! What was lost, as it stands in a report.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::guardrails::GuardrailsFields;
use crate::model::{ChangeReason, Health, IntervalChange, NamesFrom, Symbolization, SymbolizationFailure, UnfoundHook};
use crate::report::text;

#[derive(Deserialize)]
pub(super) struct HealthFields {
    events: u64,
    lost: Reasons,
    unwind: Reasons,
    #[serde(default)]
    frame_pointer_modules: Vec<String>,
    #[serde(default)]
    unfound: Vec<UnfoundFields>,
    resyncs: u64,
    agent_cpu_ns: u64,
    agent_rss_bytes_max: u64,
    #[serde(default)]
    interval_changes: Vec<ChangeFields>,
    #[serde(default)]
    guardrails: GuardrailsFields,
    #[serde(default)]
    symbolization: SymbolizationFields,
}

#[derive(Deserialize)]
struct ChangeFields {
    unix_ns: u64,
    heap: String,
    from_bytes: u64,
    to_bytes: u64,
    reason: String,
}

impl ChangeFields {
    fn into_change(self) -> Result<IntervalChange, String> {
        let Self { unix_ns, heap, from_bytes, to_bytes, reason } = self;
        let reason = ChangeReason::ALL
            .into_iter()
            .find(|known| known.name() == reason)
            .ok_or_else(|| format!("`{}` is no reason for another interval", text::printable(&reason)))?;
        Ok(IntervalChange { unix_ns, heap, from_bytes, to_bytes, reason })
    }
}

#[derive(Default, Deserialize)]
struct SymbolizationFields {
    isolation: Vec<String>,
    isolation_missing: Vec<String>,
    failures: Vec<FailureFields>,
}

#[derive(Deserialize)]
struct FailureFields {
    module: String,
    reason: String,
    names: String,
}

impl SymbolizationFields {
    fn into_symbolization(self) -> Result<Symbolization, String> {
        let failure = |FailureFields { module, reason, names }| {
            let known = NamesFrom::ALL.into_iter().find(|known| known.name() == names);
            let names = known.ok_or_else(|| format!("`{}` is not a source of names", text::printable(&names)))?;
            Ok::<_, String>(SymbolizationFailure { module, reason, names })
        };
        let isolation = self.isolation.into_iter().map(|name| (name, true));
        Ok(Symbolization {
            isolation: isolation.chain(self.isolation_missing.into_iter().map(|name| (name, false))).collect(),
            failures: self.failures.into_iter().map(failure).collect::<Result<_, _>>()?,
        })
    }
}

#[derive(Deserialize)]
struct UnfoundFields {
    heap: String,
    function: String,
    modules: Vec<String>,
    required: bool,
}

impl HealthFields {
    pub(super) fn into_health(self) -> Result<Health, String> {
        let health = self;
        let unfound = |hook: UnfoundFields| UnfoundHook {
            heap: hook.heap,
            function: hook.function,
            modules: hook.modules,
            required: hook.required,
        };
        Ok(Health {
            events: health.events,
            lost: health.lost.0,
            unwind: health.unwind.0,
            frame_pointer_modules: health.frame_pointer_modules,
            unfound: health.unfound.into_iter().map(unfound).collect(),
            resyncs: health.resyncs,
            agent_cpu_ns: health.agent_cpu_ns,
            agent_rss_bytes_max: health.agent_rss_bytes_max,
            interval_changes: health
                .interval_changes
                .into_iter()
                .map(ChangeFields::into_change)
                .collect::<Result<_, _>>()?,
            guardrails: health.guardrails.into_guardrails()?,
            symbolization: health.symbolization.into_symbolization()?,
        })
    }
}

/// Counts by reason, in the order of the report.
struct Reasons(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for Reasons {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Reasons;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("counts by reason")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Reasons, A::Error> {
                let mut reasons: Vec<(String, u64)> = Vec::new();
                let mut sum = 0_u64;
                while let Some((reason, count)) = map.next_entry()? {
                    let more = sum.checked_add(count);
                    sum = more.ok_or_else(|| serde::de::Error::custom("more was lost than can be counted"))?;
                    reasons.push((reason, count));
                }
                Ok(Reasons(reasons))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}
