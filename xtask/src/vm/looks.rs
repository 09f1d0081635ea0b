//! What must have come of the looks for leaks in `init.sh`: what the program knows that it has lost, and nothing else. Pure.

use std::collections::BTreeSet;

use heapbpf_tests::unreachable::{Check as Found, Known, Sum, Truth};

use super::checks::{Check, Outcome};
use super::transcript::Transcript;

/// A look of `init.sh`: its name, what its program said, how its blocks are known.
const LOOKS: [(&str, &str, Known); 3] = [
    ("leaks-read", "leaking.truth", Known::Walked),
    ("leaks-fork", "leaking.truth", Known::Walked),
    ("leaks-exit", "ended.truth", Known::Watched),
];

/// What `heapbpf leaks` ends with where there are some.
const FOUND: &str = "4";

/// Every check.
pub(super) fn judge(transcript: &Transcript) -> Vec<Check> {
    let check = |&(name, said, known): &(&str, &str, Known)| Check {
        name: format!("{name}: what is lost is found, and nothing else"),
        outcome: look(transcript, name, said, known),
    };
    LOOKS.iter().map(check).collect()
}

fn look(transcript: &Transcript, name: &str, said: &str, known: Known) -> Outcome {
    let code = transcript.value(&format!("{name}.code")).ok_or("it did not come to that")?;
    if code != FOUND {
        let log = transcript.text(&format!("{name}.log")).unwrap_or_default();
        return Err(format!("exit code {code}\n{}", log.trim()));
    }
    let json = transcript.text(&format!("{name}.json")).ok_or("none was written")?;
    let found: Found = serde_json::from_str(json).map_err(|error| format!("it cannot be read: {error}"))?;
    let lines = transcript.text(said).ok_or("the program said nothing")?.lines();
    let truth = Truth::of(lines.filter(|line| line.contains(' ')));
    let (lost, told) = (truth.lost(), found.leaks.iter().map(|leak| leak.address()).collect::<BTreeSet<u64>>());
    if let Some(address) = told.difference(&lost).next() {
        return Err(format!("{address:#x} is told and is not lost"));
    }
    let sums = truth.sums(known);
    if (found.leaked, found.direct) != sums {
        return Err(format!("{:?} are lost, {:?} is told", sums, (found.leaked, found.direct)));
    }
    let Sum { count, bytes } = found.leaked;
    Ok(format!("{count} blocks, {bytes} bytes of {}; stopped for {} ms", found.known.bytes, found.pause_ns / 1_000_000))
}
