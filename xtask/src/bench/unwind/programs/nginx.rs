//! nginx under wrk, over content that it compresses, on a free port of loopback.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use anyhow::Result;

use super::super::program::{Program, READY_WITHIN, Running};
use crate::bench::process::{Guarded, bound, command_line, descendants};

pub(in super::super) const PROGRAM: Program =
    Program { name: "nginx", load: "wrk over gzip'd pages", interval_bytes: 1, seconds: 6, start };

fn start(folder: &Path) -> Result<Running> {
    // Free now, and nobody else asks for it in the next moment.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let page: String = (0..800).map(|i| format!("<p>Paragraph {i} of a page worth compressing.</p>\n")).collect();
    fs::write(folder.join("page.html"), page)?;
    let configuration = folder.join("nginx.conf");
    fs::write(&configuration, text(&folder.display().to_string(), port))?;
    let mut server = Guarded::spawn(bound("/usr/sbin/nginx").arg("-c").arg(&configuration))?;
    let worker = server.until(READY_WITHIN, |pid| {
        TcpStream::connect(("127.0.0.1", port)).ok()?;
        descendants(pid).into_iter().find(|&child| command_line(child).contains("worker process"))
    })?;
    let url = format!("http://127.0.0.1:{port}/page.html");
    let mut load = bound("wrk");
    load.args(["-t", "1", "-c", "16", "-d", "120s", "-H", "Accept-Encoding: gzip", &url]);
    Ok(Running { pids: vec![worker], guards: vec![Guarded::spawn(&mut load)?, server] })
}

fn text(folder: &str, port: u16) -> String {
    let template = include_str!("../../../../../tests/targets/nginx.conf");
    template.replace("FOLDER", folder).replace("PORT", &port.to_string())
}
