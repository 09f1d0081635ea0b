//! Removes operations that a failure does not need.

use super::check::Failure;
use super::plan::{Operation, Plan};

/// Returns a smaller plan that fails in the same way, after at most `attempts_max` attempts. `fails` runs a plan, and returns its failures.
pub fn reduced(
    plan: &Plan,
    failure: &Failure,
    attempts_max: u32,
    mut fails: impl FnMut(&Plan) -> Vec<Failure>,
) -> (Plan, Failure) {
    let (mut smallest, mut seen, mut attempts) = (plan.clone(), failure.clone(), 0);
    let mut size = smallest.operations.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut has_changed = false;
        while at < smallest.operations.len() {
            let mut candidates = without(&smallest.operations, at, size);
            candidates.retain(|candidate| *candidate != smallest.operations);
            let mut is_smaller = false;
            for operations in candidates {
                if attempts == attempts_max {
                    return (smallest, seen);
                }
                attempts += 1;
                let candidate = smallest.with(operations);
                if let Some(again) = fails(&candidate).into_iter().find(|it| it.kind == failure.kind) {
                    (smallest, seen, is_smaller) = (candidate, again, true);
                    break;
                }
            }
            has_changed |= is_smaller;
            if !is_smaller {
                at += size;
            }
        }
        size = if size > 1 { size / 2 } else { usize::from(has_changed) };
    }
    (smallest, seen)
}

/// Lists without these operations. A single fork also stays without some of what its child does.
fn without(operations: &[Operation], at: usize, size: usize) -> Vec<Vec<Operation>> {
    let end = (at + size).min(operations.len());
    let replaced = |by: Vec<Operation>| [&operations[..at], &by, &operations[end..]].concat();
    // The recording begins there.
    let is_fixed = operations[at..end].contains(&Operation::Line("sync attach".to_owned()));
    let mut candidates = if is_fixed { Vec::new() } else { vec![replaced(Vec::new())] };
    if let (1, Operation::Fork(line, body)) = (size, &operations[at]) {
        let shorter = (0..body.len()).flat_map(|index| without(body, index, 1));
        candidates.extend(shorter.map(|body| replaced(vec![Operation::Fork(line.clone(), body)])));
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::features;

    #[test]
    fn what_a_failure_does_not_need_is_removed() {
        let line = |text: &str| Operation::Line(text.to_owned());
        let fork = |body| Operation::Fork("fork held 0".to_owned(), body);
        let operations = vec![line("a"), line("b"), fork(vec![line("c"), line("bad"), line("d")]), line("e")];
        let plan = Plan::draw(1, &features("fork")).with(operations);
        let failure = Failure { kind: "kind", text: String::new() };
        let fails = |plan: &Plan| {
            let is_bad = plan.script().contains("bad");
            if is_bad { vec![failure.clone()] } else { Vec::new() }
        };
        let (smallest, _) = reduced(&plan, &failure, 1000, fails);
        assert_eq!(smallest.operations, [fork(vec![line("bad")])]);
        // Nothing is lost where attempts are few.
        assert!(reduced(&plan, &failure, 1, fails).0.script().contains("bad"));
    }
}
