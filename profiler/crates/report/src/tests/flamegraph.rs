//! Flame graphs: well-formed for any names, and the text around the frames.

use heapbpf_base::units::{EstimatedBytes, EstimatedCount};
use heapbpf_ledger::model::Profile;
use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::Event;

use super::{check_golden, render};
use crate::testing as profiles;
use crate::{Format, View};

#[test]
fn goldens() {
    for (name, profile, view) in [
        ("exact", profiles::exact(), View::LiveBytes),
        ("sampled", profiles::sampled(), View::LiveBytes),
        ("sampled.alloc-count", profiles::sampled(), View::AllocCount),
        ("empty", profiles::empty(), View::LiveBytes),
    ] {
        check_golden(&format!("flamegraph/{name}.svg"), &render(Format::Flamegraph, &profile, view));
    }
}

#[test]
fn titles_name_quantity_subject_and_accuracy() {
    check_title(
        &profiles::exact(),
        View::LiveBytes,
        &["live bytes of cached (pid 4711)", "2.1 MiB · every allocation · recorded for 30.5s · complete"],
    );
    check_title(
        &profiles::sampled(),
        View::LiveCount,
        &[
            "live blocks of 2 processes",
            "≈ 1,525 blocks (95 %: 1,076 blocks to 2,131 blocks, 54 samples) · sampled every 4 KiB · recorded for 30.5s",
            "incomplete: 1 hook not attached, 1 hook not found, 12,348 events dropped (1.0%), 24.6% of stacks are cut (generated",
        ],
    );
    check_title(
        &profiles::nobody(),
        View::AllocBytes,
        &[
            "allocated bytes of no process",
            "≈ 0 B · sampled every 4 KiB · recorded for 30.5s · incomplete: no process was profiled",
        ],
    );
}

#[test]
fn titles_of_leak_checks_name_leaks() {
    let leaks = Profile { unreachable: true, ..profiles::exact() };
    let title =
        ["leaked bytes of cached (pid 4711)", "2.1 MiB in 1,203 blocks · checked on 2026-11-21T10:00:30Z · complete"];
    check_title(&leaks, View::LiveBytes, &title);
    let none = Profile { unreachable: true, ..profiles::empty() };
    let text = render(Format::Flamegraph, &none, View::LiveBytes);
    assert!(text.contains("No known block was unreachable") && !text.contains("live bytes"), "{text}");
}

#[test]
fn titles_name_heaps_with_their_own_interval() {
    check_title(
        &profiles::mixed(),
        View::AllocBytes,
        &[
            "allocated bytes of 2 processes",
            "≈ 163.1 KiB (95 %: 117.4 KiB to 221.0 KiB, 52 samples) · every allocation (libc: sampled every 4 KiB)",
            "recorded for 30.5s · complete",
        ],
    );
    let mut profile = profiles::mixed();
    profile.targets[1].heaps[0].interval_bytes = 1 << 20;
    profile.targets[0].heaps.truncate(1);
    let image = parse(&render(Format::Flamegraph, &profile, View::AllocBytes));
    assert!(image.texts[1].ends_with(" · libc: sampled every 4 KiB, pool: sampled every 1 MiB"), "{:?}", image.texts);
    let comment = "; interval 1 bytes, of libc 4096, of pool 1048576; ";
    assert!(image.comments.iter().any(|notes| notes.contains(comment)), "{:?}", image.comments);
}

#[track_caller]
fn check_title(profile: &Profile, view: View, expected: &[&str]) {
    let image = parse(&render(Format::Flamegraph, profile, view));
    assert_eq!(image.texts[..expected.len()], *expected);
}

#[test]
fn frames_have_names_and_amounts() {
    let image = parse(&render(Format::Flamegraph, &profiles::exact(), View::LiveBytes));
    let bytes = 600 * 64 + 600 * 17 + (2 << 20) + 72_704;
    assert_eq!(bytes, 2_218_456);
    for frame in [
        "all (2,218,456 bytes, 100%)",
        "cached (4711) (2,218,456 bytes, 100.00%)",
        "cache_insert (48,600 bytes, 2.19%)",
        "cache_insert.part.0 (2,097,152 bytes, 94.53%)",
        "strdup (10,200 bytes, 0.46%)",
    ] {
        assert!(image.frames.iter().any(|title| title == frame), "{frame} is not in {:#?}", image.frames);
    }
}

#[test]
fn a_frame_is_one_box_even_if_other_names_start_with_its_name() {
    let image = parse(&render(Format::Flamegraph, &profiles::exact(), View::LiveBytes));
    let boxes = image.frames.iter().filter(|title| title.starts_with("cache_insert ("));
    assert_eq!(boxes.count(), 1, "{:#?}", image.frames);
}

#[test]
fn names_are_escaped() {
    let image = parse(&render(Format::Flamegraph, &profiles::sampled(), View::LiveBytes));
    for name in [
        "std::map<int, std::pair<std::string, Foo> >::insert(std::pair<int const, Foo>&&) (",
        "Set<\"a:b\" & 'c'>::operator<(Set const&) const (",
        "<[u8: 8] as app::Key>::hash_12 (",
        "two lines [31m (",
        "_work:er <&> (901) (",
        "[stack lost] (",
        "[unwind stopped: broken frame pointers] (",
    ] {
        assert!(image.frames.iter().any(|title| title.starts_with(name)), "{name} is not in {:#?}", image.frames);
    }
    // inferno would take a number at the end of a name for a second value, and draw a difference.
    assert!(image.frames.iter().all(|title| !title.contains("; ")), "{:#?}", image.frames);
}

#[test]
fn the_same_profile_gives_the_same_bytes() {
    let once = render(Format::Flamegraph, &profiles::sampled(), View::LiveBytes);
    assert!(once == render(Format::Flamegraph, &profiles::sampled(), View::LiveBytes));
}

#[test]
fn an_image_without_stacks_has_the_reason() {
    for (profile, expected) in [
        (profiles::empty(), "allocated nothing during the recording, or too little to be sampled"),
        (profiles::unhooked(), "no allocator function could be hooked"),
        (profiles::freed(), "1000 B were allocated during the recording, all of it freed"),
        (profiles::nobody(), "no process was profiled"),
    ] {
        let image = parse(&render(Format::Flamegraph, &profile, View::LiveBytes));
        assert!(image.texts[2].contains(expected), "{:#?}", image.texts);
        assert!(image.frames.is_empty());
    }
}

#[test]
fn notes_escape_the_command() {
    let mut profile = profiles::exact();
    profile.targets[0].facts.command = "/bin/x --> <script>--".to_owned();
    for profile in [profile.clone(), {
        profile.targets[0].callsites.clear();
        profile
    }] {
        let image = parse(&render(Format::Flamegraph, &profile, View::LiveBytes));
        assert!(image.comments.iter().any(|comment| comment.contains("pid 4711: /bin/x")), "{:#?}", image.comments);
    }
}

#[test]
fn sums_beyond_float_precision_are_drawn_in_proportion() {
    let mut profile = profiles::exact();
    for callsite in &mut profile.targets[0].callsites {
        callsite.totals.alloc_bytes = EstimatedBytes::exact(u64::MAX);
        callsite.totals.alloc_count = EstimatedCount::exact(1);
    }
    let image = parse(&render(Format::Flamegraph, &profile, View::AllocBytes));
    assert!(
        image.frames.iter().any(|title| title.starts_with("strdup (") && title.ends_with(" 20.00%)")),
        "{:#?}",
        image.frames
    );
}

/// Text of an image.
#[derive(Default)]
pub(super) struct Image {
    /// Texts in order; the title and the line below it come first.
    pub(super) texts: Vec<String>,
    /// Tooltips of frames.
    pub(super) frames: Vec<String>,
    pub(super) comments: Vec<String>,
}

/// Parses an image as XML.
#[track_caller]
pub(super) fn parse_any(svg: &str) -> usize {
    parse(svg).frames.len()
}

#[track_caller]
pub(super) fn parse(svg: &str) -> Image {
    let forbidden =
        |c: char| c.is_control() && !matches!(c, '\n' | '\t' | '\r') || matches!(c, '\u{fffe}' | '\u{ffff}');
    assert!(!svg.contains(forbidden), "XML 1.0 has no such characters");
    let mut reader = Reader::from_str(svg);
    reader.config_mut().check_comments = true;
    let mut image = Image::default();
    let mut open = Vec::new();
    let mut text = String::new();
    loop {
        match reader.read_event().unwrap_or_else(|error| panic!("at byte {}: {error}", reader.error_position())) {
            Event::Start(tag) => {
                tag.attributes().for_each(|attribute| drop(attribute.expect("attributes are well-formed")));
                open.push(tag.name().as_ref().to_owned());
                text.clear();
            }
            Event::Empty(tag) => {
                tag.attributes().for_each(|attribute| drop(attribute.expect("attributes are well-formed")))
            }
            Event::Text(part) => text.push_str(&part.decode().expect("the image is UTF-8")),
            Event::GeneralRef(name) => {
                let name = format!("&{};", name.decode().expect("the image is UTF-8"));
                text.push_str(&unescape(&name).expect("the reference is one of XML's own"));
            }
            Event::Comment(comment) => image.comments.push(comment.decode().expect("the image is UTF-8").into_owned()),
            Event::End(_) => match open.pop().as_deref() {
                Some(b"text") => image.texts.push(std::mem::take(&mut text)),
                Some(b"title") => image.frames.push(std::mem::take(&mut text)),
                _ => {}
            },
            Event::Eof => break,
            _ => {}
        }
    }
    assert!(open.is_empty(), "elements are left open");
    image
}
