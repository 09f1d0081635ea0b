//! Recordings as `heapbpf convert` reads them: blocks, entries, folds, replay, and reports.

#![no_main]

use heapbpf::internals::{
    Reading, RecordedNames, ReplayedSpan, Resolver, Scope, Span, SpanError, Trim, find_modules, profile,
};
use heapbpf_fuzz::{recording, reports};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(input) = recording::input(bytes) else { return };
    let span = Span { from_ns: input.from_ns, to_ns: input.to_ns };
    let Ok(mut reading) = Reading::new(&*input.file) else { return };
    let mut names = RecordedNames::new(Resolver::in_process());
    let Ok(spanned) = ReplayedSpan::read(&mut reading, span, input.by_thread, &mut names) else { return };
    // Modules are not opened: inputs must not reach the machine's files.
    let found = find_modules(spanned.modules(), false);
    let profile = profile(&spanned.snapshot(found.modules), Scope::Window, &names, Trim::NOTHING);
    reports::write(&profile, input.report);
    if spanned.check_whole().is_ok()
        && let Ok(reading) = Reading::new(&*input.file)
    {
        let _ = ReplayedSpan::flows(reading, span, input.by_thread, |_, _, _| Ok::<(), SpanError>(()));
    }
});
