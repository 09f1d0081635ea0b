//! Integration tests of Java and JavaScript in a virtual machine.

use super::{Check, Feature, Outcome, Transcript, exited_with};

/// Programs of tests.
const TESTS: [(&str, &str); 2] = [("java", "Java"), ("javascript", "JavaScript")];

/// None if they were not requested.
pub(super) fn languages(transcript: &Transcript) -> Vec<Check> {
    let requested = TESTS.into_iter().filter(|(name, _)| transcript.value(&format!("{name}.code")).is_some());
    let check = |(name, language)| {
        let what = format!("{name}: stacks are those that virtual machines of {language} describe");
        Check::new(Feature::Languages, what, outcome(transcript, name))
    };
    requested.map(check).collect()
}

fn outcome(transcript: &Transcript, name: &str) -> Outcome {
    let text = transcript.text(&format!("{name}.text")).unwrap_or_default();
    exited_with(transcript, name, "0").map_err(|reason| format!("{}\n{}", reason.trim(), text.trim()))?;
    let passed = text.lines().find_map(|line| line.strip_prefix("test result: ok. ")?.split_once(" passed"));
    match passed {
        Some((count, _)) if count != "0" => Ok(format!("{count} tests")),
        _ => Err(format!("no test has passed:\n{}", text.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: &str, result: &str) -> Vec<Outcome> {
        let text = format!("running 4 tests\n{result}\n");
        let sent = format!("value java.code {code}\nfile java.text {}\n{text}\ndone\n", text.len());
        let transcript = Transcript::parse(sent.as_bytes());
        assert_eq!(transcript.broken, None);
        languages(&transcript).into_iter().map(|check| check.outcome).collect()
    }

    #[test]
    fn tests_must_pass_and_be_some() {
        assert_eq!(judged("0", "test result: ok. 4 passed; 0 failed; 0 ignored"), [Ok("4 tests".to_owned())]);
        assert!(matches!(judged("0", "test result: ok. 0 passed; 0 failed").as_slice(), [Err(_)]));
        assert!(matches!(judged("101", "test result: FAILED. 3 passed; 1 failed").as_slice(), [Err(_)]));
        assert!(languages(&Transcript::default()).is_empty());
    }
}
