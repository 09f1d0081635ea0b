//! Servers with clients that verify each answer.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use heapbpf_tests::kernel;
use heapbpf_tests::nginx::Nginx;
use heapbpf_tests::postgres::Postgres;
use heapbpf_tests::redis::Redis;

use super::subject::Subject;

const QUERY: &str =
    "select md5(string_agg(repeat(i::text, 20), ',' order by i % 97, i)) from generate_series(1, 3000) i";
const STARTS_WITHIN: Duration = Duration::from_secs(30);

/// A server, and a thread with its client, which ends when an answer is wrong.
pub(super) struct Server {
    pids: Vec<u32>,
    stops: Arc<AtomicBool>,
    client: Option<JoinHandle<Result<String>>>,
}

impl Server {
    /// The client's closure owns the server. It is called until it fails or the server is to end.
    fn new(pids: Vec<u32>, mut request: impl FnMut() -> Result<String> + Send + 'static) -> Result<Self> {
        let stops = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stops);
        let expected = request()?;
        let client = thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                let answer = request()?;
                if answer != expected {
                    bail!("another answer: {answer:.100}");
                }
            }
            Ok(expected)
        });
        Ok(Self { pids, stops, client: Some(client) })
    }

    pub(super) fn redis() -> Result<Self> {
        installed("redis-server")?;
        let redis = Redis::start();
        Self::new(vec![redis.pid()], move || {
            redis.set_and_get(500);
            Ok("as set".to_owned())
        })
    }

    pub(super) fn nginx() -> Result<Self> {
        installed("/usr/sbin/nginx")?;
        let nginx = Nginx::start();
        Self::new(vec![nginx.worker()], move || {
            nginx.request();
            Ok("the page".to_owned())
        })
    }

    /// Its client opens new connections, for which the server forks.
    pub(super) fn postgres() -> Result<Self> {
        installed("/usr/lib/postgresql")?;
        let postgres = Postgres::start();
        let mut lasting = postgres.connect();
        Self::new(vec![postgres.postmaster(), lasting.backend], move || {
            let answer = lasting.query(QUERY);
            let mut other = postgres.connect();
            let same = other.query(QUERY) == answer;
            other.close();
            if same { Ok(answer) } else { bail!("connections have different answers") }
        })
    }

    pub(super) fn php_fpm(folder: &Path, page: &Path) -> Result<Self> {
        let php = Php::start(folder, page)?;
        let workers = kernel::children(php.child.id());
        Self::new(workers, move || php.request())
    }
}

fn installed(program: &str) -> Result<()> {
    let exists =
        if program.starts_with('/') { Path::new(program).exists() } else { crate::command::find(program).is_some() };
    if exists { Ok(()) } else { bail!("`{program}` is not installed") }
}

impl Subject for Server {
    fn pids(&self) -> Vec<u32> {
        self.pids.clone()
    }

    fn check(&mut self) -> Result<()> {
        if self.client.as_ref().is_some_and(|client| !client.is_finished()) {
            return Ok(());
        }
        self.finish()?;
        bail!("its client ended")
    }

    fn pause(&mut self) -> Result<()> {
        bail!("servers do not pause")
    }

    fn resume(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<String> {
        self.stops.store(true, Ordering::Relaxed);
        let client = self.client.take().context("it has ended")?;
        client.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            bail!("a wrong answer, or none: {text}")
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        let _ = self.client.take().map(JoinHandle::join);
    }
}

/// A private php-fpm with one worker.
struct Php {
    child: Child,
    socket: PathBuf,
    page: PathBuf,
}

impl Php {
    fn start(folder: &Path, page: &Path) -> Result<Self> {
        let programs = fs::read_dir("/usr/sbin")?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm"));
        let program = programs.into_iter().find(is_it).context("`php-fpm` is not installed")?;
        let (socket, configuration) = (folder.join("php.socket"), folder.join("php.conf"));
        let pool = "user = root\ngroup = root\npm = static\npm.max_children = 1\n";
        let text = format!(
            "[global]\nerror_log = {}\n[www]\nlisten = {}\n{pool}",
            folder.join("php.log").display(),
            socket.display()
        );
        fs::write(&configuration, text)?;
        let mut command = Command::new(program);
        command.args(["-n", "-F", "-R", "-y"]).arg(configuration).stdin(Stdio::null()).stderr(Stdio::null());
        let php = Self { child: command.spawn()?, socket, page: page.to_owned() };
        let deadline = Instant::now() + STARTS_WITHIN;
        while UnixStream::connect(&php.socket).is_err() || kernel::children(php.child.id()).is_empty() {
            if Instant::now() > deadline {
                bail!("php-fpm does not listen");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(php)
    }

    /// Requests the page by FastCGI.
    fn request(&self) -> Result<String> {
        const BEGIN: u8 = 1;
        const PARAMETERS: u8 = 4;
        const INPUT: u8 = 5;
        const OUTPUT: u8 = 6;
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(STARTS_WITHIN))?;
        let page = self.page.display().to_string();
        let mut parameters = Vec::new();
        for (name, value) in [("SCRIPT_FILENAME", page.as_str()), ("REQUEST_METHOD", "GET"), ("SCRIPT_NAME", "/")] {
            parameters.extend([u8::try_from(name.len())?, u8::try_from(value.len())?]);
            parameters.extend(name.bytes().chain(value.bytes()));
        }
        let mut request = Vec::new();
        for (kind, body) in
            [(BEGIN, [0, 1, 0, 0, 0, 0, 0, 0].as_slice()), (PARAMETERS, &parameters), (PARAMETERS, &[]), (INPUT, &[])]
        {
            let length = u16::try_from(body.len())?.to_be_bytes();
            request.extend([1, kind, 0, 1, length[0], length[1], 0, 0]);
            request.extend(body);
        }
        stream.write_all(&request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let (mut text, mut rest) = (String::new(), answer.as_slice());
        while let [_, kind, _, _, high, low, padding, _, body @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let record = body.get(..length).context("an answer is cut")?;
            if *kind == OUTPUT {
                text.push_str(&String::from_utf8_lossy(record));
            }
            rest = body.get(length + usize::from(*padding)..).context("an answer is cut")?;
        }
        let (_, result) = text.split_once("result ").with_context(|| format!("php-fpm answered `{text}`"))?;
        Ok(result.trim().to_owned())
    }
}

impl Drop for Php {
    fn drop(&mut self) {
        // Its master terminates its workers.
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
        let deadline = Instant::now() + STARTS_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
