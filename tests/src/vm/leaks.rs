//! Checks of `heapbpf leaks` in a virtual machine.

use std::collections::BTreeSet;

use super::{Check, Feature, Outcome, Transcript};
use crate::unreachable::{self, Known, Sum, Truth};

/// Names of leak checks, the output of the program, and how blocks are known.
const LEAK_CHECKS: [(&str, &str, Known); 3] = [
    ("leaks-read", "leaking.truth", Known::Walked),
    ("leaks-fork", "leaking.truth", Known::Walked),
    ("leaks-exit", "ended.truth", Known::Watched),
];

const LEAKS_FOUND: &str = "4";

pub(super) fn leaks(transcript: &Transcript) -> Vec<Check> {
    let check = |&(name, output, known): &(&str, &str, Known)| {
        let outcome = leak_check(transcript, name, output, known);
        Check::new(Feature::Leaks, format!("{name}: leaked blocks are found, and no others"), outcome)
    };
    LEAK_CHECKS.iter().map(check).collect()
}

fn leak_check(transcript: &Transcript, name: &str, output: &str, known: Known) -> Outcome {
    let code = transcript.value(&format!("{name}.code")).ok_or("it was not reached")?;
    if code != LEAKS_FOUND {
        let log = transcript.text(&format!("{name}.log")).unwrap_or_default();
        return Err(format!("exit code {code}\n{}", log.trim()));
    }
    let json = transcript.text(&format!("{name}.json")).ok_or("no report was written")?;
    let found: unreachable::Check =
        serde_json::from_str(json).map_err(|error| format!("the report cannot be read: {error}"))?;
    let lines = transcript.text(output).ok_or("the program printed nothing")?.lines();
    let truth = Truth::of(lines.filter(|line| line.contains(' ')));
    let (leaked, reported) = (truth.lost(), found.leaks.iter().map(|leak| leak.address()).collect::<BTreeSet<u64>>());
    if let Some(address) = reported.difference(&leaked).next() {
        return Err(format!("{address:#x} is reported and has not leaked"));
    }
    let sums = truth.sums(known);
    if (found.leaked, found.direct) != sums {
        return Err(format!("{:?} have leaked, {:?} is reported", sums, (found.leaked, found.direct)));
    }
    let Sum { count, bytes } = found.leaked;
    Ok(format!("{count} blocks, {bytes} bytes of {}; stopped for {} ms", found.known.bytes, found.pause_ns / 1_000_000))
}
