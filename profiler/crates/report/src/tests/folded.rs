//! Folded stacks.

use heapbpf_ledger::model::{Health, Profile};
use profiler_common::stack::StackEnd;

use super::{check_golden, render};
use crate::testing::{self as profiles, Frames, callsite, taken};
use crate::{Format, View};

#[test]
fn goldens() {
    for (name, profile, view) in [
        ("exact", profiles::exact(), View::LiveBytes),
        ("exact.alloc-count", profiles::exact(), View::AllocCount),
        ("sampled", profiles::sampled(), View::LiveBytes),
        ("nameless", profiles::nameless(), View::LiveBytes),
    ] {
        check_golden(&format!("folded/{name}.folded"), &render(Format::Folded, &profile, view));
    }
}

#[test]
fn an_empty_profile_has_no_lines() {
    for profile in [profiles::empty(), profiles::nobody(), profiles::freed()] {
        assert_eq!(render(Format::Folded, &profile, View::LiveBytes), "");
    }
}

#[test]
fn lines_are_sorted_and_complete() {
    let text = render(Format::Folded, &profiles::sampled(), View::AllocBytes);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.is_sorted(), "{text}");
    assert_eq!(lines.len(), 8, "{text}");
    assert!(lines.iter().all(|line| !line.starts_with('#') && !line.contains(|c: char| c.is_control())), "{text}");
}

#[test]
fn incomplete_stacks_have_an_outermost_frame_with_the_reason() {
    for (end, expected) in [
        (Some(StackEnd::Complete), "x (1);f 5\n"),
        (Some(StackEnd::Truncated), "x (1);[unwind stopped: more than 1024 frames];f 5\n"),
        (Some(StackEnd::Unreadable), "x (1);[unwind stopped: unreadable memory];f 5\n"),
        (Some(StackEnd::BrokenChain), "x (1);[unwind stopped: broken frame pointers];f 5\n"),
        (Some(StackEnd::NoScratch), "x (1);[unwind stopped: interrupted];f 5\n"),
        (None, "x (1);[unwind stopped: unknown reason];f 5\n"),
    ] {
        assert_eq!(render(Format::Folded, &one("f", end), View::LiveBytes), expected);
    }
}

#[test]
fn a_stack_without_frames_has_a_placeholder() {
    for (end, expected) in [
        (None, "x (1);[stack lost] 5\n"),
        (Some(StackEnd::NoScratch), "x (1);[unwind stopped: interrupted] 5\n"),
        (Some(StackEnd::Complete), "x (1);[no frames] 5\n"),
    ] {
        let mut profile = one("f", end);
        profile.targets[0].callsites[0].stack.clear();
        assert_eq!(render(Format::Folded, &profile, View::LiveBytes), expected);
    }
}

#[test]
fn names_cannot_change_the_structure_of_a_line() {
    for (name, expected) in [
        ("<[u8; 8] as Key>::f", "x (1);<[u8: 8] as Key>::f 5\n"),
        ("a\nb 7", "x (1);a b_7 5\n"),
        ("f 1.5", "x (1);f_1.5 5\n"),
        ("operator new", "x (1);operator new 5\n"),
        ("#1", "x (1);_1 5\n"),
        (" f\r\n", "x (1);f 5\n"),
        ("\n", "x (1);[no name] 5\n"),
        ("", "x (1);[no name] 5\n"),
    ] {
        assert_eq!(render(Format::Folded, &one(name, Some(StackEnd::Complete)), View::LiveBytes), expected, "{name:?}");
    }
}

/// A profile of one block of 5 bytes.
fn one(function: &str, end: Option<StackEnd>) -> Profile {
    let mut frames = Frames::default();
    let frame = frames.add(function, "/bin/x");
    let callsites = vec![callsite(&[frame], end, 0, taken(1, 1, 5, 0))];
    let target = profiles::target(1, "x", "x", vec![profiles::heap("libc", &[])], callsites);
    profiles::profile(1, vec![target], frames, Health::default())
}
