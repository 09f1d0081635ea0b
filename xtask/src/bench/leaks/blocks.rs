//! Ten million live blocks: the memory that heapbpf takes for them, found in the heap and watched from the first call on.

use anyhow::{Result, ensure};

use super::hoard::{Heap, Hoard, arguments};
use super::look::{Look, look};
use super::{Bar, Bench, METHODS, Measured};
use crate::bench::document;

const BLOCKS: u64 = 10_000_000;

/// What heapbpf may take.
const BAR: Bar = Bar { what: "heapbpf's memory for ten million blocks", unit: "MiB", most: 2048.0 };

/// Measures once: memory hardly depends on what else the machine does.
pub(super) fn measure(bench: &Bench) -> Result<Measured> {
    let hoard = Hoard::start(&bench.hoard, Heap::Blocks(BLOCKS), 1)?;
    let truth = hoard.truth;
    let mut looks = Vec::new();
    for method in METHODS {
        let walked = look(bench, &["--pid", &hoard.pid().to_string(), "--snapshot", method].map(str::to_owned))?;
        looks.push((format!("`--pid`, `--snapshot {method}`"), walked));
    }
    drop(hoard);
    let mut command: Vec<String> = vec!["--".to_owned(), bench.hoard.display().to_string()];
    command.extend(arguments(Heap::Blocks(BLOCKS), 1));
    looks.push(("`-- COMMAND`: each block watched".to_owned(), look(bench, &command)?));
    for (name, look) in &looks {
        look.found.check(&truth)?;
        let lost: Vec<&String> = look.found.caveats.iter().filter(|caveat| caveat.contains("lost")).collect();
        ensure!(lost.is_empty(), "{name}: {lost:?}");
    }
    let mut missed = Vec::new();
    let most = looks.iter().map(|(_, look)| look.resident_mib).fold(0.0, f64::max);
    let verdict = BAR.judge(most, &mut missed);
    let rows: Vec<Vec<String>> = looks.iter().map(|(name, look)| row(name, look)).collect();
    let head = ["10 million live blocks of 48 to 64 bytes", "heapbpf's memory, MiB", "pause, ms", "until reported, s"];
    let text = format!(
        "{} bytes in use, and the {} blocks that have leaked are found. Memory is the largest resident size (VmHWM), with what is copied of the \
         process.\n\n{}\n{verdict}\n",
        truth.held_bytes,
        truth.leaked_count,
        document::table(&head, &rows),
    );
    Ok(Measured { text, missed })
}

fn row(name: &str, look: &Look) -> Vec<String> {
    let pause = look.found.pause().as_secs_f64() * 1e3;
    vec![name.to_owned(), format!("{:.0}", look.resident_mib), format!("{pause:.1}"), format!("{:.1}", look.seconds)]
}
