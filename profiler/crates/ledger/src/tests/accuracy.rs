//! How often confidence intervals contain the truth, in simulations. The table is in docs/sampling.md, and
//! `UPDATE_GOLDEN=1` rewrites it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use heapbpf_base::units::{Amounts, MonotonicNanos, Variance};
use profiler_common::interval::Interval;
use profiler_common::sampling::estimated_count;

use crate::confidence::{Estimate, least_weights};
use crate::totals::Totals;

const INTERVAL: u32 = 4096;
const RUNS: u32 = 400;
const TOP: usize = 5;
const QUANTITIES: [&str; 4] = ["live bytes", "live blocks", "allocated bytes", "allocated blocks"];

/// SplitMix64, which draws the same samples every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number from 0 up to, but not including, 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws a size from 16 to 2047 bytes, uniformly on a logarithmic scale.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive numbers")]
    fn small_size(&mut self) -> u64 {
        (16.0 * (7.0 * self.fraction()).exp2()) as u64
    }

    /// The number of samples of this many blocks, each sampled with this probability: counts the distances between
    /// samples, which are geometric.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn sampled(&mut self, blocks: u64, probability: f64) -> u64 {
        if probability >= 1.0 {
            return blocks;
        }
        let (mut position, mut samples) = (0.0, 0);
        loop {
            position += ((1.0 - self.fraction()).ln() / (-probability).ln_1p()).floor() + 1.0;
            if position > blocks as f64 {
                return samples;
            }
            samples += 1;
        }
    }
}

/// Blocks of a callsite that have the same size.
#[derive(Clone, Copy)]
struct Blocks {
    callsite: usize,
    size_bytes: u64,
    live: u64,
    freed: u64,
}

/// Blocks with the probability that one of them is sampled, and the weight of a sample.
type Sampling = (Blocks, f64, Amounts);

impl Blocks {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn truth(&self) -> [f64; 4] {
        let (size, live, all) = (self.size_bytes as f64, self.live as f64, (self.live + self.freed) as f64);
        [live * size, live, all * size, all]
    }
}

struct Program {
    name: String,
    blocks: Vec<Blocks>,
}

impl Program {
    /// Small blocks of callsites with as many blocks as Zipf's law gives them. At every other callsite the sizes differ.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
    fn small(name: &str, seed: u64, callsites: usize, block_count: f64) -> Self {
        let mut random = Random(seed);
        let harmonic: f64 = (1..=callsites).map(|rank| 1.0 / rank as f64).sum();
        let mut blocks = Vec::new();
        for callsite in 0..callsites {
            let count = (block_count / harmonic / (callsite + 1) as f64).ceil() as u64;
            let share = 0.2 + 0.8 * random.fraction();
            if callsite % 2 == 0 {
                let live = (count as f64 * share) as u64;
                blocks.push(Blocks { callsite, size_bytes: random.small_size(), live, freed: count - live });
            } else {
                blocks.extend((0..count).map(|_| {
                    let live = u64::from(random.fraction() < share);
                    Blocks { callsite, size_bytes: random.small_size(), live, freed: 1 - live }
                }));
            }
        }
        Self { name: name.to_owned(), blocks }
    }

    /// Adds blocks of 4 to 64 KiB, which are all sampled, until they have this share of the bytes: half of them at
    /// callsites of small blocks, half at their own.
    fn with_exact(mut self, percent: u64) -> Self {
        let mut random = Random(99);
        let small: u64 = self.blocks.iter().map(|blocks| blocks.size_bytes * (blocks.live + blocks.freed)).sum();
        let (mut missing, mut number) = ((small * percent / (100 - percent)).cast_signed(), 0);
        while missing > 0 {
            let size_bytes = 4096 + random.next() % (15 * 4096);
            let callsite = if number % 2 == 0 { number / 2 % 10 } else { 40 + number / 2 % 10 };
            let live = random.next() % 2;
            self.blocks.push(Blocks { callsite, size_bytes, live, freed: 1 - live });
            (missing, number) = (missing - size_bytes.cast_signed(), number + 1);
        }
        Self { name: format!("{percent} % of bytes exact"), ..self }
    }

    /// The blocks of a real program, recorded at an interval of 1: callsite, size, blocks allocated, blocks live.
    fn recorded(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/testdata/{name}.tsv"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let blocks = text.lines().map(|line| {
            let numbers: Vec<u64> = line.split('\t').map(|number| number.parse().expect("a number")).collect();
            let &[callsite, size_bytes, allocated, live] = numbers.as_slice() else { panic!("not a row: {line}") };
            Blocks { callsite: usize::try_from(callsite).expect("few"), size_bytes, live, freed: allocated - live }
        });
        Self { name: name.to_owned(), blocks: blocks.collect() }
    }

    /// Returns the true amounts of the process, and of the callsites with most of each quantity.
    fn truth(&self) -> ([f64; 4], [Vec<(usize, f64)>; 4]) {
        let (mut total, mut callsites) = ([0.0; 4], BTreeMap::<usize, [f64; 4]>::new());
        for blocks in &self.blocks {
            for (at, amount) in blocks.truth().into_iter().enumerate() {
                total[at] += amount;
                callsites.entry(blocks.callsite).or_default()[at] += amount;
            }
        }
        let top = |at: usize| {
            let mut top: Vec<(usize, f64)> =
                callsites.iter().map(|(&callsite, amounts)| (callsite, amounts[at])).collect();
            top.sort_by(|a, b| b.1.total_cmp(&a.1));
            top.truncate(TOP);
            top
        };
        (total, std::array::from_fn(top))
    }

    fn sampling(&self) -> Vec<Sampling> {
        let of = |blocks: &Blocks| {
            let weight = Amounts::of(blocks.size_bytes, Interval::nearest(INTERVAL));
            (*blocks, 1.0 / estimated_count(blocks.size_bytes, INTERVAL.into()), weight)
        };
        self.blocks.iter().map(of).collect()
    }
}

/// Samples all blocks once. Returns the totals of the process, and of each callsite with samples.
fn sample(blocks: &[Sampling], random: &mut Random) -> (Totals, BTreeMap<usize, Totals>) {
    let (mut all, mut callsites) = (Totals::default(), BTreeMap::<usize, Totals>::new());
    for (Blocks { callsite, live, freed, .. }, probability, weight) in blocks {
        let [live, freed] = [live, freed].map(|&blocks| random.sampled(blocks, *probability));
        if live + freed == 0 {
            continue;
        }
        for totals in [&mut all, callsites.entry(*callsite).or_default()] {
            (0..live + freed).for_each(|_| totals.allocate(*weight, MonotonicNanos(1)));
            (0..freed).for_each(|_| totals.free(*weight));
        }
    }
    (all, callsites)
}

/// Returns the confidence intervals in the order of [`QUANTITIES`].
fn intervals(totals: &Totals) -> [[f64; 2]; 4] {
    let (live, allocated) = (totals.live(), totals.allocated());
    let [live_bytes, alloc_bytes] = [live, allocated].map(|amounts| Estimate::of_bytes(&amounts));
    let [live_count, alloc_count] = [live, allocated].map(|amounts| Estimate::of_count(&amounts));
    let [least_bytes, least_count] = least_weights(INTERVAL.into(), allocated.samples);
    let (least_bytes, least_count) = (least_bytes.max(alloc_bytes.weight()), least_count.max(alloc_count.weight()));
    [
        live_bytes.interval_95(least_bytes),
        live_count.interval_95(least_count),
        alloc_bytes.interval_95(least_bytes),
        alloc_count.interval_95(least_count),
    ]
}

/// Returns whether an interval contains the truth. Sums are rounded to 2^-20.
fn holds([low, high]: [f64; 2], truth: f64) -> bool {
    let rounding = 1e-6 * truth;
    (low - rounding..=high + rounding).contains(&truth)
}

/// Shares of intervals that contained the truth, in percent, for the process's totals and for its largest callsites.
struct Coverage {
    total: [f64; 4],
    top: [f64; 4],
    /// Mean number of samples of small blocks behind live totals.
    samples: f64,
}

fn coverage(program: &Program, seed: u64, runs: u32) -> Coverage {
    let ((truth, top), blocks) = (program.truth(), program.sampling());
    let mut random = Random(seed);
    let mut coverage = Coverage { total: [0.0; 4], top: [0.0; 4], samples: 0.0 };
    let exact: u64 = program.blocks.iter().filter(|it| it.size_bytes >= INTERVAL.into()).map(|it| it.live).sum();
    let percent = 100.0 / f64::from(runs);
    for _ in 0..runs {
        let (totals, callsites) = sample(&blocks, &mut random);
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let sampled = (totals.live_samples - exact) as f64;
        coverage.samples += sampled / f64::from(runs);
        for (at, interval) in intervals(&totals).into_iter().enumerate() {
            coverage.total[at] += f64::from(u8::from(holds(interval, truth[at]))) * percent;
        }
        for (at, top) in top.iter().enumerate() {
            for (callsite, truth) in top {
                let held = holds(intervals(&callsites.get(callsite).copied().unwrap_or_default())[at], *truth);
                #[expect(clippy::cast_precision_loss, reason = "five")]
                let share = percent / top.len() as f64;
                coverage.top[at] += f64::from(u8::from(held)) * share;
            }
        }
    }
    coverage
}

fn programs() -> Vec<Program> {
    let small = || Program::small("0 % of bytes exact", 7, 40, 20_000.0);
    let mut few_large = Program::small("few large blocks", 11, 12, 400.0);
    let large = (0..40).map(|number| Blocks { callsite: 20 + number % 4, size_bytes: 65_536, live: 1, freed: 0 });
    few_large.blocks.extend(large);
    vec![
        small(),
        small().with_exact(50),
        small().with_exact(90),
        small().with_exact(99),
        few_large,
        Program::small("few samples", 13, 6, 500.0),
        Program::recorded("sqlite3"),
        Program::recorded("python3"),
    ]
}

fn table(coverages: &[(Program, Coverage)]) -> String {
    let mut text = String::from(
        "| blocks | samples | live bytes | live blocks | allocated bytes | allocated blocks |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for (program, coverage) in coverages {
        let _ = write!(text, "| {} | {:.0} |", program.name, coverage.samples);
        for (total, top) in coverage.total.iter().zip(coverage.top) {
            let _ = write!(text, " {total:.1} · {top:.1} |");
        }
        text.push('\n');
    }
    text
}

#[test]
fn confidence_intervals_have_their_nominal_coverage() {
    let coverages = (1..).zip(programs()).map(|(seed, program)| {
        let coverage = coverage(&program, seed, RUNS);
        (program, coverage)
    });
    let coverages: Vec<_> = coverages.collect();
    let table = table(&coverages);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/sampling.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (before, rest) = text.split_once("<!-- coverage -->\n").expect("the docs have the table");
    let (documented, after) = rest.split_once("<!-- end of coverage -->").expect("the table has an end");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        let text = format!("{before}<!-- coverage -->\n{table}<!-- end of coverage -->{after}");
        std::fs::write(&path, text).expect("docs can be written to");
    } else {
        assert!(documented == table, "docs/sampling.md has another table; UPDATE_GOLDEN=1 rewrites it:\n{table}");
    }
    for (program, coverage) in &coverages {
        let all = QUANTITIES.iter().zip(coverage.total.iter().zip(coverage.top));
        for (quantity, (&total, top)) in all {
            // The limit is 95 %, minus less than three standard deviations.
            assert!(total >= 92.0 && top >= 92.0, "{}, {quantity}: {total} %, callsites {top} %", program.name);
        }
    }
}

#[test]
fn frees_remove_variance() {
    let mut totals = Totals::default();
    let weights: Vec<Amounts> = (1..4000).map(|size| Amounts::of(size, Interval::nearest(4096))).collect();
    weights.iter().for_each(|&weight| totals.allocate(weight, MonotonicNanos(1)));
    weights.iter().rev().for_each(|&weight| totals.free(weight));
    assert_eq!((totals.live_samples, totals.live_variance), (0, Variance::default()));
    assert_eq!(totals.alloc_samples, 3999);
}
