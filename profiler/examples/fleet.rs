//! Writes Parquet files of a simulated fleet: `fleet REPORT FOLDER FILES WINDOWS`. Each file is of a machine, whose
//! process has the callsites of the report, in windows of 15 seconds. Machines with odd numbers run the newer build, in
//! which one callsite leaks. Prints the number of rows. `cargo xtask bench parquet` measures it.

#![expect(clippy::print_stdout, reason = "another program reads the output")]

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use heapbpf::internals::{
    EstimatedBytes, EstimatedCount, EstimatedVariance, ParquetWriter, Presentation, Profile, Window, WindowReason,
    read_report,
};

const WINDOW_NS: u64 = 15_000_000_000;
const START_UNIX_NS: u64 = 1_767_225_600_000_000_000;
const SERVICES: [&str; 5] = ["api", "search", "cart", "login", "mail"];
const BLOCK_BYTES: u64 = 256;
const INTERVAL_BYTES: u64 = 512 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [report, folder, files, windows] = arguments.as_slice() else { return Err("four arguments".into()) };
    let profile = read_report(&std::fs::read(report)?)?;
    let mut rows = 0;
    for host in 0..files.parse()? {
        let path = Path::new(folder).join(format!("host{host:04}.parquet"));
        rows += write(profile.clone(), host, windows.parse()?, &path)?;
    }
    println!("{rows}");
    Ok(())
}

/// A linear congruential generator (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn write(mut profile: Profile, host: u64, windows: u32, path: &Path) -> Result<usize, Box<dyn Error>> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut writer = ParquetWriter::new(&mut out)?;
    let presentation = Presentation { host: Some(format!("host{host:04}")), ..Presentation::default() };
    let mut random = Random(host);
    let is_new = host % 2 == 1;
    let service = SERVICES[usize::try_from(host)? % SERVICES.len()];
    for module in &mut profile.modules {
        module.build_id = Some([if is_new { 0xb2 } else { 0xa1 }; 20].to_vec());
    }
    for target in &mut profile.targets {
        service.clone_into(&mut target.facts.comm);
        target.facts.command = format!("/usr/bin/{service}");
        for heap in &mut target.heaps {
            heap.interval_bytes = INTERVAL_BYTES;
        }
    }
    profile.started_unix_ns = START_UNIX_NS;
    for number in 1..=windows {
        let end_unix_ns = START_UNIX_NS + u64::from(number) * WINDOW_NS;
        profile.window = Some(Window {
            number: Some(number),
            reason: WindowReason::Time,
            start_unix_ns: end_unix_ns - WINDOW_NS,
            since_mark: false,
            end_unix_ns,
            merged_count: 0,
        });
        profile.ended_unix_ns = end_unix_ns;
        advance(&mut profile, is_new, &mut random);
        writer.add(&profile, &presentation)?;
    }
    writer.finish()?;
    out.flush()?;
    Ok(profile.callsites().count() * windows as usize)
}

/// The next window: what was live at the end of the last one is live at its start.
fn advance(profile: &mut Profile, is_new: bool, random: &mut Random) {
    for target in &mut profile.targets {
        for (index, callsite) in target.callsites.iter_mut().enumerate() {
            let totals = &mut callsite.totals;
            let live = totals.live_bytes().rounded();
            let allocated = live / 4 + random.below(1 << 16);
            let leaks = is_new && index == 7;
            let freed = if leaks { 0 } else { random.below(2 * (allocated + 1)).min(live + allocated) };
            let left = live + allocated - freed;
            totals.opening_bytes = EstimatedBytes::exact(live);
            totals.opening_count = EstimatedCount::exact(live / BLOCK_BYTES);
            totals.alloc_bytes = EstimatedBytes::exact(allocated);
            totals.alloc_count = EstimatedCount::exact(allocated / BLOCK_BYTES);
            totals.free_bytes = EstimatedBytes::exact(freed);
            totals.free_count = EstimatedCount::exact(freed / BLOCK_BYTES);
            totals.alloc_samples = 1 + allocated / INTERVAL_BYTES;
            totals.live_samples = left.div_ceil(INTERVAL_BYTES);
            totals.alloc_variance.bytes = variance(allocated);
            totals.live_variance.bytes = variance(left);
        }
    }
}

/// Of an estimate from small blocks.
#[expect(clippy::cast_precision_loss, reason = "a simulation")]
fn variance(bytes: u64) -> EstimatedVariance {
    EstimatedVariance::from_f64(bytes as f64 * INTERVAL_BYTES as f64)
}
