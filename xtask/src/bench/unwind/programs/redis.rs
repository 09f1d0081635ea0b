//! redis-server under redis-benchmark, over a Unix socket.

use std::path::Path;

use anyhow::Result;

use super::super::program::{Program, READY_WITHIN, Running};
use crate::bench::process::{Guarded, bound};

pub(in super::super) const PROGRAM: Program =
    Program { name: "redis-server", load: "redis-benchmark", interval_bytes: 64, seconds: 4, start };

fn start(folder: &Path) -> Result<Running> {
    let socket = folder.join("redis.sock");
    let mut server = bound("redis-server");
    server.args(["--port", "0", "--save", "", "--appendonly", "no", "--maxmemory", "256mb", "--maxmemory-policy"]);
    server.args(["allkeys-random", "--dir"]).arg(folder).arg("--unixsocket").arg(&socket);
    let mut server = Guarded::spawn(&mut server)?;
    server.until(READY_WITHIN, |_| socket.exists().then_some(()))?;
    let mut load = bound("redis-benchmark");
    load.arg("-s").arg(&socket).args(["-t", "set,get,lpush,lrange_100,hset,sadd,zadd,mset", "-l", "-q", "-c", "20"]);
    load.args(["-n", "20000", "-r", "100000", "-d", "100"]);
    let load = Guarded::spawn(&mut load)?;
    Ok(Running { pids: vec![server.pid()], guards: vec![load, server] })
}
