//! Numbers that only grow, over the last seconds.

use std::collections::VecDeque;

use crate::units::MonotonicNanos;

/// Points of a growing number, and how far back they are looked at.
#[derive(Clone, Debug)]
pub(super) struct Window<T> {
    span_ns: u64,
    points: VecDeque<(MonotonicNanos, T)>,
}

impl<T: Copy> Window<T> {
    /// Looks back this far.
    pub(super) fn new(span_ns: u64) -> Self {
        Self { span_ns, points: VecDeque::new() }
    }

    /// Adds a point, and returns the latest that lies a whole span before it, with the nanoseconds between. `None` until
    /// there is one.
    pub(super) fn push(&mut self, time: MonotonicNanos, value: T) -> Option<(u64, T)> {
        self.points.push_back((time, value));
        let since = |point: &(MonotonicNanos, T)| time.0.saturating_sub(point.0.0);
        while self.points.get(1).is_some_and(|next| since(next) >= self.span_ns) {
            self.points.pop_front();
        }
        let first = self.points.front()?;
        (since(first) >= self.span_ns).then(|| (since(first), first.1))
    }

    /// Forgets all but the last point: what was before does not count any more.
    pub(super) fn restart(&mut self) {
        self.points = self.points.pop_back().into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_window_is_a_span_and_no_more_than_a_step_longer(steps in prop::collection::vec(1u64..500, 1..100)) {
            const SPAN: u64 = 1000;
            let longest = *steps.iter().max().expect("not empty");
            let (mut window, mut now) = (Window::new(SPAN), 0);
            for step in steps {
                now += step;
                match window.push(MonotonicNanos(now), now) {
                    Some((span, first)) => {
                        prop_assert_eq!(now - first, span);
                        prop_assert!((SPAN..SPAN + longest).contains(&span), "{}", span);
                    }
                    None => prop_assert!(window.points.front().is_some_and(|point| now - point.0.0 < SPAN)),
                }
            }
        }
    }
}
