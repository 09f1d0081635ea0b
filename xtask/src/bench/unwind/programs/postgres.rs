//! postgres' backends under pgbench, over a Unix socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::super::program::{Program, READY_WITHIN, Running};
use crate::bench::process::{Guarded, bound, bound_as, command_line, descendants};
use crate::command;

pub(in super::super) const PROGRAM: Program =
    Program { name: "postgres", load: "4 backends under pgbench", interval_bytes: 1, seconds: 6, start };

/// It refuses to run as root.
const USER: &str = "postgres";

const BACKENDS: usize = 4;

/// The database's user and name.
const ROLE: &str = "bench";

fn start(folder: &Path) -> Result<Running> {
    let programs = programs()?;
    let data = folder.join("data");
    fs::create_dir(&data)?;
    if rustix::process::geteuid().is_root() {
        command::output(Command::new("chown").arg("-R").arg(USER).arg(folder))?;
    }
    let mut initialise = unprivileged(&programs.join("initdb"));
    command::output(initialise.args(["--no-sync", "--auth", "trust", "--username", ROLE, "-D"]).arg(&data))?;
    let mut server = unprivileged(&programs.join("postgres"));
    server.arg("-D").arg(&data).arg("-k").arg(folder);
    server.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "autovacuum=off"]);
    // Its processes leave the group, but end with it when it is asked to: SIGQUIT is "at once".
    let mut server = Guarded::spawn(&mut server)?.stopped_by(Signal::QUIT);
    let socket = folder.join(".s.PGSQL.5432");
    let pgbench = |arguments: &[&str]| {
        let mut pgbench = bound(programs.join("pgbench"));
        pgbench.arg("-h").arg(folder).args(["-U", ROLE]).args(arguments).arg("postgres");
        pgbench
    };
    let mut prepared = false;
    server.until(READY_WITHIN, |_| {
        prepared = prepared || socket.exists() && command::output(&mut pgbench(&["-i", "-q", "-s", "2"])).is_ok();
        prepared.then_some(())
    })?;
    let load = Guarded::spawn(&mut pgbench(&["-n", "-c", &BACKENDS.to_string(), "-T", "120"]))?;
    let pids = server.until(READY_WITHIN, |pid| {
        let backends: Vec<u32> = descendants(pid).into_iter().filter(|&child| is_backend(child)).collect();
        (backends.len() == BACKENDS).then_some(backends)
    })?;
    Ok(Running { pids, guards: vec![load, server] })
}

/// As postgres' own user, unless we are not root anyway.
fn unprivileged(program: &Path) -> Command {
    if rustix::process::geteuid().is_root() { bound_as(USER, program) } else { bound(program) }
}

/// Backends name themselves after their client.
fn is_backend(pid: u32) -> bool {
    command_line(pid).starts_with(&format!("postgres: {ROLE} "))
}

/// Where the newest installed version has its programs.
fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").context("postgres is not where Debian puts it")?;
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.flatten().map(|entry| entry.path()).max_by_key(version);
    Ok(newest.context("no version of postgres is installed")?.join("bin"))
}
