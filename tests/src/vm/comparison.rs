//! The comparison of stacks with framehop's in a virtual machine.

use super::{Check, Feature, Outcome, Transcript, exited_with};

/// Stacks and programs that are compared at least, and how many of a thousand are identical.
const STACKS_MIN: u64 = 10_000;
const PROGRAMS_MIN: usize = 3;
const IDENTICAL_MIN: u64 = 999;

/// `None` if it was not requested.
pub(super) fn comparison(transcript: &Transcript) -> Option<Check> {
    transcript.value("comparison.code")?;
    Some(Check::new(Feature::Framehop, "stacks are those that framehop finds", outcome(transcript)))
}

fn outcome(transcript: &Transcript) -> Outcome {
    let text = transcript.text("comparison.text").unwrap_or_default();
    exited_with(transcript, "comparison", "0").map_err(|reason| format!("{}\n{}", reason.trim(), text.trim()))?;
    let rows: Vec<_> = text.lines().filter_map(row).collect();
    let (stacks, identical) = rows.iter().fold((0, 0), |(stacks, identical), row| (stacks + row.1, identical + row.2));
    let names: Vec<_> = rows.iter().map(|row| row.0).collect();
    let words = format!("{identical} of {stacks} of {}", names.join(", "));
    let is_enough = rows.len() >= PROGRAMS_MIN && stacks >= STACKS_MIN;
    if is_enough && identical * 1000 >= stacks * IDENTICAL_MIN { Ok(words) } else { Err(words) }
}

/// Program, stacks, and identical ones: of a row of the test's table (`tests/tests/unwind/main.rs`).
fn row(line: &str) -> Option<(&str, u64, u64)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [name, stacks, _distinct, _mean, _max, _copy, _complete, identical, _differ] = words[..] else { return None };
    Some((name, stacks.parse().ok()?, identical.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: &str, rows: &[&str]) -> Option<Outcome> {
        let head = "program        stacks  distinct  frames: mean   max  copy max KiB  complete  identical  differ\n";
        let text = format!(
            "running 3 tests\n{}\ntest result: ok.\n",
            rows.iter().map(|row| format!("{head}{row}\n")).collect::<String>()
        );
        let value = format!("value comparison.code {code}\nfile comparison.text {}\n{text}\ndone\n", text.len());
        let transcript = Transcript::parse(value.as_bytes());
        assert_eq!(transcript.broken, None);
        comparison(&transcript).map(|check| check.outcome)
    }

    const ROWS: [&str; 3] = [
        "python3         3500      2100          27.4    60            12      3500       3500       0",
        "perl            3500      1100           7.4    30             8      3500       3495       5",
        "sqlite3         3500       100          11.0    22             8      3500       3500       0",
    ];

    #[test]
    fn enough_identical_stacks_of_three_programs() {
        assert_eq!(judged("0", &ROWS), Some(Ok("10495 of 10500 of python3, perl, sqlite3".to_owned())));
        assert!(judged("0", &ROWS[..2]).expect("was requested").is_err());
        assert!(judged("101", &ROWS).expect("was requested").is_err());
        let differing = ROWS[1].replace("3495", "3480");
        assert!(judged("0", &[ROWS[0], &differing, ROWS[2]]).expect("was requested").is_err());
        assert!(comparison(&Transcript::default()).is_none());
    }
}
