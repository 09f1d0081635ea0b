//! Functions of interpreters and virtual machines that stacks lack, or that have no names.

use heapbpf_ledger::model::{Health, InterpreterFrames, LanguageFunctions};

use super::text;

const REASONS_MAX: usize = 10;

/// What the verdict lists of them.
pub(super) fn missing(health: &Health) -> Vec<String> {
    let Some(interpreters) = &health.interpreters else { return Vec::new() };
    let unsupported = interpreters.unsupported.iter().max_by_key(|(_, processes)| **processes).map(|(reason, _)| {
        let processes = text::counted(interpreters.unsupported.values().sum(), "process");
        format!("functions of the interpreter in {processes} ({})", text::printable(reason))
    });
    unsupported.into_iter().chain(unnamed_languages(interpreters).map(names)).collect()
}

/// The most frequent reason stands for all.
fn names((language, functions): (&str, &LanguageFunctions)) -> String {
    let reason = functions.unnamed_reasons.iter().max_by_key(|(_, count)| **count);
    let reason = reason.map(|(reason, _)| format!("{}; ", text::printable(reason))).unwrap_or_default();
    let page = language.to_ascii_lowercase();
    format!("names of {} of {language} functions ({reason}see docs/{page}.md)", share(functions))
}

fn unnamed_languages(interpreters: &InterpreterFrames) -> impl Iterator<Item = (&str, &LanguageFunctions)> {
    let unnamed = interpreters.languages.iter().filter(|(_, functions)| functions.unnamed > 0);
    unnamed.map(|(language, functions)| (language.as_str(), functions))
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(functions: &LanguageFunctions) -> String {
    text::share(functions.unnamed as f64, functions.functions as f64)
}

/// Lines of the summary about functions without names.
pub(super) fn lines(interpreters: &InterpreterFrames) -> Vec<String> {
    let mut lines = Vec::new();
    for (language, functions) in unnamed_languages(interpreters) {
        let (unnamed, all) = (text::count(functions.unnamed), text::counted(functions.functions, "function"));
        lines.push(format!("{unnamed} of {all} of {language} without names ({})", share(functions)));
        for (reason, count) in functions.unnamed_reasons.iter().take(REASONS_MAX) {
            lines.push(format!("  {} {}", text::count(*count), text::printable(reason)));
        }
    }
    // A report of an earlier version.
    if interpreters.languages.is_empty() && interpreters.unnamed > 0 {
        lines.push(format!("{} of interpreters without names", text::counted(interpreters.unnamed, "function")));
    }
    lines
}
