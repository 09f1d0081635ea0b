//! Generates a heap, marks and folds it, and prints the time and memory that this took as one line of JSON. `cargo xtask
//! bench mark` runs it once for each case.
//!
//! `marking MIB BLOCK_BYTES_MIN BLOCK_BYTES_MAX POINTER_PERCENT NEAR_PERCENT THREADS LEAKED_PERCENT`

#![expect(clippy::print_stdout, reason = "another program reads the output")]

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use heapbpf::internals::{Block, Blocks, Copied, Roots, TargetAddr, fold, mark_with};
use rustix::time::{ClockId, clock_gettime};

/// Addresses of the heap and of its roots.
const HEAP: u64 = 0x5555_0000_0010;
const ROOTS: u64 = 0x7fff_0000_0000;
const BLOCKS_PER_ROOT: usize = 64;
/// Size of the allocator's header before each block.
const HEADER_BYTES: u64 = 8;
/// Size of the pieces of copied memory.
const PIECE_BYTES: usize = 64 << 20;
/// Maximum distance of near pointers, in blocks.
const NEAR_BLOCKS: u64 = 1024;

/// Properties of a generated heap.
struct Case {
    bytes: u64,
    block_bytes: [u64; 2],
    /// Share of words that are pointers to blocks.
    pointer_percent: u64,
    /// Share of pointers to nearby blocks; others are uniformly distributed.
    near_percent: u64,
    threads: usize,
    /// Share of unreachable blocks, at the end of the heap.
    leaked_percent: u64,
}

/// Pseudo-random numbers: splitmix64 (<https://prng.di.unimi.it/splitmix64.c>).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn main() -> Result<()> {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|it| it.parse().context("a number")).collect::<Result<_>>()?;
    let [mib, least, most, pointer_percent, near_percent, threads, leaked_percent] = numbers[..] else {
        bail!("seven numbers are required: see the top of the file");
    };
    let threads = usize::try_from(threads)?;
    run(&Case { bytes: mib << 20, block_bytes: [least, most], pointer_percent, near_percent, threads, leaked_percent })
}

fn run(case: &Case) -> Result<()> {
    let mut numbers = Numbers(1);
    let given = make_blocks(case, &mut numbers);
    let kept = given.len() - given.len() * usize::try_from(case.leaked_percent)? / 100;
    let (memory, roots) = make_memory(case, &given, kept, &mut numbers)?;

    let began = cpu_seconds();
    let (blocks, _) = Blocks::new(given);
    let sorted_seconds = cpu_seconds() - began;
    let began = cpu_seconds();
    let marks = mark_with(&blocks, &roots, &memory, case.threads);
    let marked_seconds = cpu_seconds() - began;
    let reached = blocks.ids().filter(|&id| marks.is_reached(id));
    let reached_bytes: u64 = reached.map(|id| blocks.get(id).size_bytes).sum();
    let began = cpu_seconds();
    let folded = fold(&blocks, &marks, &memory);
    let folded_seconds = cpu_seconds() - began;
    let line = serde_json::json!({
        "blocks": blocks.len(),
        "footprint_bytes": blocks.footprint_bytes(),
        "sorted_seconds": sorted_seconds,
        "reached_bytes": reached_bytes,
        "marked_seconds": marked_seconds,
        "leaked_count": folded.leaked.count,
        "root_count": folded.roots.len(),
        "lower_bounds": folded.roots.iter().filter(|root| root.is_lower_bound).count(),
        "folded_seconds": folded_seconds,
        "resident_bytes_max": resident_bytes_max()?,
    });
    println!("{line}");
    Ok(())
}

/// Generates adjacent blocks that fill the heap.
fn make_blocks(case: &Case, numbers: &mut Numbers) -> Vec<Block> {
    let [least, most] = case.block_bytes;
    let longest = usize::try_from(case.bytes / least.max(16)).unwrap_or(0);
    let mut blocks = Vec::with_capacity(longest);
    let (mut start, end) = (HEAP, HEAP + case.bytes);
    loop {
        let with_header = (least + numbers.below(most - least + 1)).next_multiple_of(16);
        if start + with_header > end {
            return blocks;
        }
        blocks.push(Block { start: TargetAddr(start), size_bytes: with_header - HEADER_BYTES, origin: 0 });
        start += with_header;
    }
}

fn make_memory(case: &Case, blocks: &[Block], kept: usize, numbers: &mut Numbers) -> Result<(Copied, Roots)> {
    let mut pieces: Vec<(TargetAddr, Box<[u8]>)> = Vec::new();
    let mut piece: Vec<u8> = Vec::with_capacity(PIECE_BYTES);
    let mut piece_start = HEAP;
    for (own, block) in blocks.iter().enumerate() {
        for _ in 0..(block.size_bytes + HEADER_BYTES) / 8 {
            let word = if numbers.happens(case.pointer_percent) {
                pointer(case, blocks, own, kept, numbers)
            } else {
                other_word(numbers)
            };
            piece.extend(word.to_le_bytes());
            if piece.len() == PIECE_BYTES {
                pieces.push((TargetAddr(piece_start), std::mem::take(&mut piece).into()));
                piece_start += PIECE_BYTES as u64;
                piece.reserve_exact(PIECE_BYTES);
            }
        }
    }
    pieces.push((TargetAddr(piece_start), piece.into()));
    let root_words: Vec<u8> =
        blocks[..kept].iter().step_by(BLOCKS_PER_ROOT).flat_map(|block| block.start.0.to_le_bytes()).collect();
    let range = TargetAddr(ROOTS)..TargetAddr(ROOTS + u64::try_from(root_words.len())?);
    pieces.push((range.start, root_words.into()));
    Ok((Copied::new(pieces), Roots { ranges: vec![range], words: Vec::new() }))
}

/// Returns an address in a block that is reachable if and only if `own` is: usually that of its first byte.
fn pointer(case: &Case, blocks: &[Block], own: usize, kept: usize, numbers: &mut Numbers) -> u64 {
    let (first, end) = if own < kept { (0, kept as u64) } else { (kept as u64, blocks.len() as u64) };
    let target = if numbers.happens(case.near_percent) {
        (own as u64 + numbers.below(NEAR_BLOCKS)).saturating_sub(NEAR_BLOCKS / 2).clamp(first, end - 1)
    } else {
        first + numbers.below(end - first)
    };
    let block = blocks[usize::try_from(target).unwrap_or(own)];
    let offset = if numbers.happens(10) { numbers.below(block.size_bytes) } else { 0 };
    block.start.0 + offset
}

/// Returns a zero, a small number, text or noise.
fn other_word(numbers: &mut Numbers) -> u64 {
    match numbers.below(4) {
        0 => 0,
        1 => numbers.below(10_000),
        2 => numbers.next() & 0x1f1f_1f1f_1f1f_1f1f | 0x6060_6060_6060_6060,
        _ => numbers.next(),
    }
}

/// Returns the CPU time of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0)).as_secs_f64()
}

/// Returns the peak resident memory of this process.
fn resident_bytes_max() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}
