//! Differences: matching of callsites, confidence of growth, and the formats.

mod properties;

use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Health, Profile};
use heapbpf_ledger::totals::Totals;
use profiler_common::stack::StackEnd;
use serde_json::Value;

use super::{check_golden, flamegraph};
use crate::diff::{Delta, Diff, Drawing, Side, Widths, table};
use crate::flamegraph::colour::Colour;
use crate::testing::{self as profiles, Frames, callsite, heap, taken, target};
use crate::{Format, View};

fn diff<'a>(before: &'a Profile, after: &'a Profile) -> Diff<'a> {
    Diff::new(Side { name: "before.json", profile: before }, Side { name: "after.json", profile: after })
}

fn render(diff: &Diff<'_>, format: Format, view: View, widths: Widths) -> String {
    draw(diff, format, view, Drawing { widths, icicle: false })
}

fn draw(diff: &Diff<'_>, format: Format, view: View, drawing: Drawing) -> String {
    let mut bytes = Vec::new();
    diff.write(format, view, drawing, &mut bytes).expect("a vector takes all bytes");
    String::from_utf8(bytes).expect("all formats are text")
}

fn json(diff: &Diff<'_>, view: View) -> Value {
    serde_json::from_str(&render(diff, Format::Json, view, Widths::After)).expect("the difference is JSON")
}

/// `exact`, an hour later, rebuilt and restarted: other addresses and lines. One callsite grew, one shrank, one vanished, one
/// is new.
fn exact_later() -> Profile {
    let mut profile = profiles::exact();
    for frame in &mut profile.frames {
        frame.address += 0x7_0000_1230;
        frame.line = frame.line.map(|line| line + 3);
        frame.module_offset = frame.module_offset.map(|offset| offset + 0x1230);
    }
    let target = &mut profile.targets[0];
    (target.facts.pid, target.facts.beginning.time) = (Pid(815), MonotonicNanos(target.facts.beginning.time.0 + 9));
    target.callsites[0].totals = taken(1, 3000, 64, 400);
    target.callsites[1].totals = taken(1, 1000, 17, 900);
    target.callsites.remove(2);
    let mut stack = target.callsites[0].stack.clone();
    stack.insert(0, stack[0]);
    target.callsites.push(callsite(&stack, Some(StackEnd::Complete), 0, taken(1, 10, 4096, 1)));
    later(profile)
}

/// `sampled`, later: some callsites grew, others shrank, and some changed within the noise.
fn sampled_later() -> Profile {
    let mut profile = profiles::sampled();
    profile.targets.truncate(1);
    let callsites = &mut profile.targets[0].callsites;
    callsites[0].totals = taken(4096, 90, 100, 10);
    callsites[1].totals = taken(4096, 2, 8192, 0);
    callsites[2].totals = taken(4096, 13, 512, 4);
    callsites[3].totals = taken(4096, 1, 64, 0);
    profile.health = Health { unwind: vec![("complete".to_owned(), 100)], ..Health::default() };
    profile.targets[0].heaps[0].hooks.truncate(2);
    later(profile)
}

fn later(mut profile: Profile) -> Profile {
    profile.started_unix_ns += 3_600_000_000_000;
    profile.ended_unix_ns += 3_610_000_000_000;
    let frames = Frames { frames: std::mem::take(&mut profile.frames) };
    let first = profile.targets.remove(0);
    let again =
        target(first.facts.pid.0, &first.facts.comm, &first.facts.command, first.heaps.clone(), first.callsites);
    let interval_bytes = profile.interval_bytes;
    profile.targets.insert(
        0,
        profiles::profile(interval_bytes, vec![again], Frames::default(), Health::default()).targets.remove(0),
    );
    profile.frames = frames.frames;
    profile
}

#[test]
fn goldens() {
    for (name, before, after) in [
        ("exact", profiles::exact(), exact_later()),
        ("sampled", profiles::sampled(), sampled_later()),
        ("same", profiles::exact(), profiles::exact()),
        ("empty", profiles::empty(), profiles::freed()),
    ] {
        let diff = diff(&before, &after);
        check_golden(&format!("diff/{name}.txt"), &table(&diff, View::LiveBytes, 10, 0, Some(110), false));
        check_golden(&format!("diff/{name}.svg"), &render(&diff, Format::Flamegraph, View::LiveBytes, Widths::After));
        check_golden(&format!("diff/{name}.folded"), &render(&diff, Format::Folded, View::LiveBytes, Widths::After));
        check_golden(&format!("diff/{name}.json"), &render(&diff, Format::Json, View::LiveBytes, Widths::After));
    }
    let (before, after) = (profiles::exact(), exact_later());
    let image = render(&diff(&before, &after), Format::Flamegraph, View::LiveBytes, Widths::Before);
    check_golden("diff/exact.before.svg", &image);
}

#[test]
fn a_page_has_the_totals_the_flame_graph_and_all_rows() {
    for (before, after) in [(profiles::exact(), exact_later()), (profiles::sampled(), sampled_later())] {
        let diff = diff(&before, &after);
        let page = render(&diff, Format::Html, View::LiveBytes, Widths::After);
        assert!(page.starts_with("<!DOCTYPE html>\n") && page.ends_with("</html>\n"), "{page}");
        assert_eq!(page.matches("<figure>\n<svg").count(), 1, "{page}");
        let changed = diff.callsites.iter().filter(|site| site.delta.growth(View::LiveBytes) != 0.0).count();
        let rows = page.matches("<tr class=").count() - View::ALL.len();
        // Callsites that look the same are one row.
        assert!(rows > 0 && rows <= changed, "{rows} rows, {changed} callsites");
        // The names of the profile that would break markup.
        assert!(!page.contains("Set<\"a;b\""), "{page}");
        let outside =
            page.split("<svg").next().expect("the start").to_owned() + page.split("</svg>").last().expect("the end");
        assert!(!outside.contains("<script") && !outside.contains("http") && !outside.contains('\u{1b}'), "{outside}");
    }
    let same = profiles::exact();
    let page = render(&diff(&same, &same), Format::Html, View::LiveBytes, Widths::After);
    assert!(page.contains("Grew: 0 callsites") && page.contains("Shrank: 0 callsites"), "{page}");
}

#[test]
fn an_icicle_has_the_same_frames_upside_down() {
    let (before, after) = (profiles::exact(), exact_later());
    // Title, colour and row of each frame.
    let frames = |icicle| {
        let drawing = Drawing { widths: Widths::After, icicle };
        let image = draw(&diff(&before, &after), Format::Flamegraph, View::LiveBytes, drawing);
        let frames = image.split("<g><title>").skip(1).map(|frame| {
            let between = |from: &str, to: &str| frame.split(from).nth(1).and_then(|rest| rest.split(to).next());
            let title = frame.split("</title>").next().expect("a title").to_owned();
            let y: i64 = between(" y=\"", "\"").expect("a row").parse().expect("a number");
            (title, between("fill=\"", "\"").expect("a colour").to_owned(), y)
        });
        let mut frames: Vec<_> = frames.collect();
        frames.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        frames
    };
    let (upright, icicle) = (frames(false), frames(true));
    assert!(upright.len() > 5 && upright.iter().any(|(_, colour, _)| !colour.contains("250,250,250")));
    assert_eq!(upright.len(), icicle.len());
    let rows = upright[0].2 + icicle[0].2;
    for (upright, icicle) in upright.iter().zip(&icicle) {
        assert_eq!((&upright.0, &upright.1), (&icicle.0, &icicle.1));
        assert_eq!(upright.2 + icicle.2, rows, "{}", upright.0);
    }
}

#[test]
fn growth_is_exact_to_the_byte_where_both_are() {
    let (before, after) = (profiles::exact(), exact_later());
    let report = json(&diff(&before, &after), View::LiveBytes);
    let growth = |leaf: &str| {
        let callsites = report["callsites"].as_array().expect("a list");
        let growth = callsites
            .iter()
            .filter(|callsite| callsite["stack"][0]["function"] == leaf && callsite["stack"][1]["function"] != leaf);
        growth.map(|callsite| callsite["live_bytes"]["growth"].as_i64().expect("an integer")).collect::<Vec<_>>()
    };
    assert_eq!(growth("cache_insert"), [2000 * 64]);
    assert_eq!(growth("strdup"), [-500 * 17]);
    assert_eq!(growth("cache_insert.part.0"), [-2 << 20]);
    assert_eq!(growth("main"), [0]);
    assert_eq!(report["totals"]["live_bytes"]["growth"], 2000 * 64 - 500 * 17 - (2 << 20) + 9 * 4096);
}

/// Number of callsites in the difference of two profiles of one callsite each.
fn matched(change: impl FnOnce(&mut Profile)) -> usize {
    let make = || {
        let mut frames = Frames::default();
        let main = frames.add("main", "/opt/app-1/app");
        let nameless = frames.nameless(Some("/lib/libx.so.1.2"), Some(0x40));
        let jit = frames.nameless(None, None);
        let sites = vec![callsite(&[nameless, jit, main], Some(StackEnd::Complete), 0, taken(1, 5, 100, 0))];
        profiles::profile(
            1,
            vec![target(5, "app", "/opt/app-1/app", vec![heap("libc", &[])], sites)],
            frames,
            Health::default(),
        )
    };
    let (before, mut after) = (make(), make());
    change(&mut after);
    diff(&before, &after).callsites.len()
}

#[test]
fn callsites_match_by_names() {
    let other_process = |profile: &mut Profile| profile.targets[0].facts.pid = Pid(6);
    for (same, what, change) in [
        (true, "nothing", (|_| ()) as fn(&mut Profile)),
        (true, "another address of a function", |profile| profile.frames[0].address += 1),
        (true, "another line", |profile| profile.frames[0].line = Some(7)),
        (true, "a call that is inlined now", |profile| profile.frames[0].inlined = true),
        (true, "another folder", |profile| profile.frames[0].module = Some("/opt/app-2/app".into())),
        (true, "a file that was replaced", |profile| {
            profile.frames[0].module = Some("/opt/app-1/app (deleted)".into())
        }),
        (false, "another function", |profile| profile.frames[0].function = Some("main2".into())),
        (false, "another module", |profile| profile.frames[0].module = Some("/opt/lib.so".into())),
        (false, "another place without a name", |profile| profile.frames[1].module_offset = Some(0x44)),
        (false, "the same place of another file", |profile| profile.frames[1].module = Some("/lib/liby.so".into())),
        (false, "another address without a module", |profile| profile.frames[2].address += 1),
        (false, "another heap", |profile| profile.targets[0].heaps[0].name = "pool".into()),
        (false, "inherited blocks", |profile| profile.targets[0].callsites[0].inherited = true),
        (false, "another end", |profile| profile.targets[0].callsites[0].end = Some(StackEnd::Truncated)),
        (false, "recursion", |profile| profile.targets[0].callsites[0].stack.push(heapbpf_ledger::model::FrameId(0))),
    ] {
        assert_eq!(matched(change) == 1, same, "{what}");
    }
    // Addresses without a module are meaningless in another process.
    assert_eq!(matched(|profile| (other_process(profile), profile.frames[2].address += 1).0), 1);
}

#[test]
fn the_only_programs_are_compared_despite_different_names() {
    let rename = |profile: &mut Profile| {
        profile.targets[0].facts.command = "./app-2".to_owned();
        profile.frames[0].module = Some("/opt/app-2".into());
    };
    // The address without a module is another process's, and the program is itself.
    assert_eq!(matched(rename), 1);
    let with_another = |profile: &mut Profile| {
        rename(profile);
        let mut other = profile.targets[0].clone();
        (other.facts.command, other.callsites) = ("other".to_owned(), vec![]);
        profile.targets.push(other);
    };
    assert_eq!(matched(with_another), 2);
}

#[test]
fn processes_of_one_program_are_summed() {
    let before = profiles::exact();
    let mut after = profiles::exact();
    let mut second = after.targets[0].clone();
    second.facts.pid = Pid(4712);
    after.targets.push(second);
    let diff = diff(&before, &after);
    assert_eq!((diff.callsites.len(), diff.programs[0].targets), (5, [1, 2]));
    assert_eq!(diff.total().growth(View::LiveBytes), View::LiveBytes.estimate(&before.targets[0].totals));
}

#[test]
fn growth_of_few_samples_is_noise() {
    let check = |before: u64, after: u64, size_bytes: u64, is_noise: bool| {
        let change = Delta {
            before: taken(4096, before, size_bytes, 0),
            after: taken(4096, after, size_bytes, 0),
            interval_bytes: [4096, 4096],
        };
        for view in View::ALL {
            assert_eq!(change.is_noise(view), is_noise, "{before} → {after} of {size_bytes} bytes, {view}");
        }
    };
    // By the exact test of two Poisson counts: 5 of 5 are chance in one of 16 cases, 6 of 6 in one of 32.
    check(0, 1, 100, true);
    check(5, 0, 100, true);
    check(0, 6, 100, false);
    check(100, 125, 100, true);
    check(100, 135, 100, false);
    // Blocks much larger than the interval are always sampled.
    check(0, 1, 4096, false);
    check(1, 1, 4096, true);
}

#[test]
fn caveats_of_comparisons_are_listed() {
    let (before, mut after) = (profiles::exact(), profiles::sampled());
    let says = |before: &Profile, after: &Profile, view: View, line: &str| {
        let text = table(&diff(before, after), view, 10, 0, None, false);
        assert!(text.lines().any(|actual| actual == line), "no `{line}` in\n{text}");
    };
    after.ended_unix_ns += 30_000_000_000;
    says(
        &before,
        &after,
        View::LiveBytes,
        "before: every allocation, after: sampled every 4 KiB; both are unbiased, the larger interval is less accurate",
    );
    says(
        &before,
        &after,
        View::AllocBytes,
        "before: recorded for 30.5s, after: recorded for 1m 1s; the longer one has more allocations for that reason alone",
    );
    says(&before, &after, View::LiveBytes, "compared as one program: cached before, app after");
    says(
        &before,
        &after,
        View::LiveBytes,
        "  after: incomplete: 1 hook not attached, 1 hook not found, 12,348 events dropped (1.0%), 24.6% of stacks are cut (generated code: more than 1024 frames), 90.0% of a growth in memory is unexplained",
    );
    says(&after, &before, View::LiveBytes, "`after.json` ended before `before.json` did: are they in this order?");
    says(
        &after,
        &after,
        View::LiveBytes,
        "both are of one recording: blocks in both were sampled once, so the growth is more accurate than its 95 % interval",
    );
}

#[test]
fn programs_of_one_side_are_listed() {
    let (before, mut after) = (profiles::exact(), profiles::exact());
    let mut other = after.targets[0].clone();
    (other.facts.pid, other.facts.command) = (Pid(9), "/bin/other".to_owned());
    after.targets.push(other);
    let text = table(&diff(&before, &after), View::LiveBytes, 10, 0, None, false);
    assert!(text.lines().any(|line| line == "only after: other"), "{text}");
}

#[test]
fn changes_below_the_threshold_are_omitted() {
    let (before, after) = (profiles::exact(), exact_later());
    let text = table(&diff(&before, &after), View::LiveBytes, 1, 50_000, None, false);
    assert!(text.contains("below the threshold of 48.8 KiB: 1 callsite\n"), "{text}");
    assert!(text.contains("1 callsite that grew"), "{text}");
    assert!(!text.contains("strdup"), "{text}");
    let text = table(&diff(&before, &after), View::LiveBytes, 1, 0, None, false);
    assert!(text.contains("largest 1 of 2 callsites that grew"), "{text}");
}

#[test]
fn every_frame_of_the_image_has_its_own_growth() {
    let (before, after) = (profiles::exact(), exact_later());
    let image = |widths| render(&diff(&before, &after), Format::Flamegraph, View::LiveBytes, widths);
    let drawn = flamegraph::parse(&image(Widths::After));
    assert!(drawn.frames.iter().all(|title| title.contains(" → ")), "{:#?}", drawn.frames);
    for frame in
        ["cache_insert (+152.7 KiB; 47.5 KiB → 200.2 KiB; 73.82%)", "main (-1.9 MiB; 2.1 MiB → 271.2 KiB; 100.00%)"]
    {
        assert!(drawn.frames.iter().any(|title| title.starts_with(frame)), "{frame} is not in {:#?}", drawn.frames);
    }
    assert!(drawn.frames.iter().all(|title| !title.contains(".part.0")), "it has vanished");
    let drawn = flamegraph::parse(&image(Widths::Before));
    let gone = "cache_insert.part.0 (-2.0 MiB; 2.0 MiB → 0 B; 94.53%)";
    assert!(drawn.frames.iter().any(|title| title == gone), "{:#?}", drawn.frames);
    let blue = Colour::of_growth(-1.0).light;
    assert!(image(Widths::Before).contains(&format!("fill=\"{blue}\"")), "what has vanished is blue");
}

#[test]
fn hostile_names_are_escaped() {
    let (before, after) = (profiles::sampled(), sampled_later());
    let name = "<script>--> \u{1b}[2J.json";
    let diff = Diff::new(Side { name, profile: &before }, Side { name, profile: &after });
    let image = flamegraph::parse(&render(&diff, Format::Flamegraph, View::AllocBytes, Widths::Before));
    assert!(image.texts[0].contains("<script>-->  [2J.json"), "{:?}", image.texts);
    for frame in ["Set<\"a:b\" & 'c'>::operator<(Set const&) const (", "two lines [31m ("] {
        assert!(image.frames.iter().any(|title| title.starts_with(frame)), "{frame} is not in {:#?}", image.frames);
    }
    let text = table(&diff, View::LiveBytes, 10, 0, Some(100), false);
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}

/// Reproducible pseudo-random numbers from 0 to 1 (Marsaglia's xorshift, 2003).
struct Draws(u64);

impl Draws {
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Number of samples of this many blocks of a size at an interval of 4096.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn sampled(&mut self, blocks: u64, size_bytes: u64) -> u64 {
        let probability = 1.0 - (-(size_bytes as f64) / 4096.0).exp();
        (0..blocks).map(|_| u64::from(self.next() < probability)).sum()
    }

    /// Totals of this many blocks of each size, sampled, and of large ones that are counted exactly.
    fn totals(&mut self, blocks: u64, sizes: &[u64], large: u64) -> Totals {
        let mut totals = taken(4096, large, 65_536, 0);
        for &size_bytes in sizes {
            totals.add(&taken(4096, self.sampled(blocks, size_bytes), size_bytes, 0));
        }
        totals
    }
}

#[test]
fn confidence_intervals_have_their_nominal_coverage() {
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    // From 2 to 200 samples of 100 bytes per side, alone and with blocks of other sizes.
    let cases = [(80, 80), (0, 200), (400, 900), (2000, 2000), (8000, 7000)];
    for (sizes, large, least) in [(&[100][..], 0, 460), (&[100], 100, 460), (&[16, 100, 1500], 100, 430)] {
        for (before, after) in cases {
            let runs = 500;
            let mut holds = [0; 2];
            for _ in 0..runs {
                let sides =
                    [(before, 2 * large), (after, large)].map(|(blocks, large)| draws.totals(blocks, sizes, large));
                let change = Delta { before: sides[0], after: sides[1], interval_bytes: [4096, 4096] };
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                let growth = |size_bytes: u64| (after as f64 - before as f64) * size_bytes as f64;
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                let large = large as f64;
                let bytes = sizes.iter().map(|&size_bytes| growth(size_bytes)).sum::<f64>() - large * 65_536.0;
                let blocks = sizes.iter().map(|_| growth(1)).sum::<f64>() - large;
                for (holds, (view, truth)) in
                    holds.iter_mut().zip([(View::LiveBytes, bytes), (View::LiveCount, blocks)])
                {
                    let [low, high] = change.confidence(view);
                    *holds += u32::from((low..=high).contains(&truth));
                }
            }
            // 95 % of 500 runs, minus three standard deviations; less for counts where the smallest blocks have no sample.
            let holds = holds.into_iter().min();
            assert!(
                holds >= Some(least),
                "{holds:?} of {runs} from {before} to {after} blocks of {sizes:?}, {large} large"
            );
        }
    }
}
