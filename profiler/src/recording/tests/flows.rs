//! Tests of the changes in a span, one by one, against the ledger at its end.

use heapbpf_base::units::{Amounts, EstimatedBytes};
use heapbpf_ledger::totals::Movement;

use super::*;
use crate::recording::names::RecordedNames;
use crate::recording::span::{ReplayedSpan, Span, SpanError};

/// Returns of target 1, by the flows of a span, the bytes that are live at the end, the number of blocks that came, and the
/// times.
fn told(bytes: &[u8], span: Span) -> (EstimatedBytes, usize, Vec<u64>) {
    let (mut live, mut came, mut times) = (EstimatedBytes::ZERO, 0, Vec::new());
    let entries = Reading::new(bytes).expect("whole");
    let length_ns = ReplayedSpan::flows(entries, span, false, |at_ns, ledger, flow| {
        assert_eq!(ledger, LedgerId(1));
        times.push(at_ns);
        let (more, less) = match flow.movement {
            Movement::In(weight) | Movement::Opening(weight) => (weight, Amounts::default()),
            Movement::Passed(_) => (Amounts::default(), Amounts::default()),
            Movement::Out(weight) => (Amounts::default(), weight),
            Movement::Back(weight) => (weight, Amounts::default()),
            Movement::Reweighed { from, to } => (to, from),
            Movement::FreedReweighed { .. } => Default::default(),
        };
        came += usize::from(matches!(flow.movement, Movement::In(_)));
        live += more.bytes - less.bytes;
        Ok::<(), SpanError>(())
    })
    .expect("it has the span");
    assert!(times.is_sorted() && times.iter().all(|&at_ns| at_ns <= length_ns));
    (live, came, times)
}

/// A recording of ten blocks, one a microsecond, of which the first five are freed afterwards.
fn blocks() -> Vec<u8> {
    let made = (0..10).map(|i| Event::Alloc(allocation(100 + i, 5000, 1000 * (i + 1))));
    let freed = (0..5).map(|i| free(100 + i, 11_000 + 1000 * i));
    recording(&[made.collect(), freed.collect()])
}

#[test]
fn a_span_begins_with_the_live_blocks() {
    let ns = |at| Some(at);
    for (from_ns, to_ns, live, came) in
        [(None, None, 5, 10), (None, ns(3_500), 3, 3), (ns(6_500), None, 5, 10), (ns(11_500), ns(13_500), 7, 9)]
    {
        let (bytes, blocks, _) = told(&blocks(), Span { from_ns, to_ns });
        assert_eq!((bytes, blocks), (EstimatedBytes::exact(live * 5000), came), "{from_ns:?} {to_ns:?}");
    }
}

#[test]
fn times_count_from_the_spans_beginning() {
    let (_, _, times) = told(&blocks(), Span { from_ns: Some(9_500), to_ns: None });
    // Blocks that were live at the beginning came with the first event. The session began at 1 ns.
    assert_eq!(times, [vec![499; 10], vec![1499, 2499, 3499, 4499, 5499]].concat());
}

proptest! {
    #[test]
    fn flows_add_up_to_the_ledger(
        calls in prop::collection::vec((1u64..20, 1u64..9000, any::<bool>()), 1..60),
        from in 0u64..70,
        length in 0u64..70,
    ) {
        let event = |(i, (address, size, is_free)): (u64, (u64, u64, bool))| {
            let time = 1000 * (i + 1);
            if is_free { free(address, time) } else { Event::Alloc(allocation(address, size, time)) }
        };
        let bytes = recording(&[(0..).zip(calls).map(event).collect()]);
        let span = Span { from_ns: (from > 0).then_some(from * 1000), to_ns: Some((from + length) * 1000) };
        let Ok(spanned) = ReplayedSpan::read(Reading::new(&*bytes).expect("whole"), span, false, &mut RecordedNames::new(())) else { return Ok(()) };
        spanned.check_whole().expect("nothing was folded");
        let snapshot = spanned.snapshot(Modules::default());
        prop_assert_eq!(spanned.targets(), [LedgerId(1)]);
        prop_assert_eq!(told(&bytes, span).0, snapshot.targets[0].ledger.totals.live_bytes());
    }
}
