//! `cargo xtask screenshots`: makes the pictures of docs/ anew: of a recording of redis, which grows while it is recorded.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use heapbpf_tests::redis::Redis;

use crate::command::{self, Privilege, Repository};
use crate::process::{Output, Program, bound};
use crate::{packages, viewers};

/// Page, and picture in docs/.
const PICTURE: &str = "html-report.png";
const FLAME_GRAPH: &str = "redis.svg";
/// heapbpf stops before.
const COMMANDS: &str = "10000000";

/// Records redis-server under load, and takes the pictures in docs/ again.
///
/// docs/html-report.png is the HTML report in Chromium, docs/redis.svg the flame graph of the same recording. Requires root
/// or sudo. Installs redis, Chromium and Playwright if they are missing.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<()> {
    packages::install(packages::SCREENSHOTS)?;
    packages::install(packages::VIEWERS)?;
    let repository = Repository::find()?;
    let viewers = viewers::install(&repository)?;
    let heapbpf = repository.heapbpf()?;
    let folder = tempfile::tempdir()?;
    let (page, svg) = (folder.path().join("heap.html"), folder.path().join(FLAME_GRAPH));
    record(&heapbpf, &page, &svg)?;
    let docs = repository.root.join("docs");
    let script = repository.root.join("tests/viewers/screenshots.py");
    let mut python = Command::new(viewers.join("venv/bin/python"));
    python.env("NODE_PATH", viewers.join("node_modules")).env("PYTHONDONTWRITEBYTECODE", "1");
    let seen = command::output(python.arg(script).arg(&page).arg(docs.join(PICTURE)))?;
    ensure!(seen == r#"{"complaints": []}"#, "Chromium reported errors: {seen}");
    fs::copy(&svg, docs.join(FLAME_GRAPH)).context("could not write the flame graph")?;
    println!("{}\n{}", docs.join(PICTURE).display(), docs.join(FLAME_GRAPH).display());
    Ok(())
}

/// Records a server whose keys, and whose cache of Lua scripts, grow.
fn record(heapbpf: &Path, page: &Path, svg: &Path) -> Result<()> {
    let redis = Redis::start();
    let load = |options: &str| {
        let mut benchmark = bound("redis-benchmark");
        benchmark.arg("-s").arg(redis.socket()).args(["-n", COMMANDS]).args(options.split(' '));
        Program::start(&mut benchmark, Output::None)
    };
    let _load = [load("-t set -r 1000000 -d 200 -c 4")?, load("-c 1 -r 1000000 lpush queue __rand_int__")?];
    let mut command =
        Privilege::find().command(heapbpf).context("recording requires root, and sudo is not available")?;
    command.args(["--pid", &redis.pid().to_string(), "--duration", "12s", "--dump-every", "3s", "--trim", "--quiet"]);
    let status = command.arg("-o").arg(page).arg("-o").arg(svg).status()?;
    if !status.success() {
        bail!("`{}` failed: {status}", command::line(&command));
    }
    Ok(())
}
