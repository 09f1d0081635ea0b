//! Downloads a file by HTTP/1.1. Whatever a server does, a download ends within its time and its size.

use std::fs::File;
use std::io::Seek;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HOST, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tokio_rustls::TlsConnector;

use super::body::Body;
use super::settings::{Server, Settings};
use super::transfer::{Failure, Watch};
use crate::http::{AGENT, connect, tls};
use crate::object::elf::BuildId;

const REDIRECTIONS_MAX: usize = 3;
/// Number of bytes that a server must send within each time-out.
const BYTES_PER_TIMEOUT: u64 = 100 << 10;
/// Period of checking for an interrupt, and of reporting progress.
const POLL: Duration = Duration::from_millis(200);

pub(super) struct Client<'a> {
    settings: &'a Settings,
    deadline: Instant,
    started: Instant,
}

/// A response, and the task that receives it.
struct Answer {
    response: Response<Incoming>,
    _driver: JoinSet<()>,
}

impl<'a> Client<'a> {
    pub(super) fn new(settings: &'a Settings, deadline: Instant) -> Self {
        Self { settings, deadline, started: Instant::now() }
    }

    /// Writes the debug file of a build to `file`, which may contain a part of it after a failure.
    pub(super) async fn get(
        &self,
        server: &Server,
        build_id: &BuildId,
        mut file: &File,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failure> {
        let Answer { response, _driver } = self.guard(self.follow(server, build_id), watch.is_interrupted).await??;
        let status = response.status();
        match status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(Failure::NotFound),
            other => return Err(Failure::Status(server.to_string(), other.as_u16())),
        }
        file.set_len(0).and_then(|()| file.rewind())?;
        let receive = self.receive(server, response, file, &mut *watch.progress);
        self.guard(receive, watch.is_interrupted).await?
    }

    /// Ends a request at the deadline, or when the user interrupts it.
    async fn guard<T>(
        &self,
        request: impl Future<Output = T>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<T, Failure> {
        let interrupted = async {
            while !is_interrupted() {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::select! {
            biased;
            result = request => Ok(result),
            () = interrupted => Err(Failure::Interrupted),
            () = sleep_until(self.deadline.into()) => Err(Failure::TotalTime(self.deadline - self.started)),
        }
    }

    async fn follow(&self, first: &Server, build_id: &BuildId) -> Result<Answer, Failure> {
        let mut server = first.clone();
        let mut path = format!("{}/buildid/{build_id}/debuginfo", server.path);
        for _ in 0..=REDIRECTIONS_MAX {
            let attempt = timeout(self.settings.timeout, self.request(&server, &path)).await;
            let answer = attempt.unwrap_or_else(|_| Err(self.stalled(&server)))?;
            if !answer.response.status().is_redirection() {
                return Ok(answer);
            }
            let location = answer.response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
            let refused = || Failure::Redirect(first.to_string(), location.chars().take(200).collect());
            let to: Uri = location.parse().map_err(|_| refused())?;
            if to.scheme().is_some() {
                let root =
                    format!("{}://{}", to.scheme_str().unwrap_or_default(), to.authority().map_or("", |a| a.as_str()));
                server = root.parse().map_err(|_| refused())?;
            } else if !location.starts_with('/') {
                return Err(refused());
            }
            path = to.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        }
        Err(Failure::Redirect(first.to_string(), path))
    }

    async fn request(&self, server: &Server, path: &str) -> Result<Answer, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Connection(server.to_string(), error.to_string());
        let tls = server.is_tls.then(|| tls::config(None, false)).transpose().map_err(|error| failed(&error))?;
        let tls = tls.map(TlsConnector::from);
        let stream = connect(&server.host, server.port, tls.as_ref()).await.map_err(|error| failed(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        let mut driver = JoinSet::new();
        // The sender reports why a connection ended.
        driver.spawn(async { drop(connection.await) });
        let request = Request::get(path)
            .header(HOST, server.authority())
            .header(USER_AGENT, AGENT)
            .header(ACCEPT_ENCODING, "identity")
            .header("x-debuginfod-maxsize", self.settings.size_bytes_max)
            .body(Empty::<Bytes>::new())
            .map_err(|error| failed(&error))?;
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        Ok(Answer { response, _driver: driver })
    }

    async fn receive(
        &self,
        server: &Server,
        response: Response<Incoming>,
        file: &File,
        progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<(), Failure> {
        let size_bytes_max = self.settings.size_bytes_max;
        let number = |name: &str| response.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
        let mut written = Body::new(response.headers(), server, file, size_bytes_max)?;
        // A length is that of a compressed file.
        let length = number(CONTENT_LENGTH.as_str());
        let total = length.filter(|_| !written.is_compressed()).or_else(|| number("x-debuginfod-size"));
        if length.max(total).is_some_and(|bytes| bytes > size_bytes_max) {
            return Err(Failure::Large(size_bytes_max));
        }
        let mut body = response.into_body();
        let (mut received, mut counted) = (0, 0);
        let mut until = Instant::now() + self.settings.timeout;
        let mut next_report = Instant::now();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(frame) = timeout(left, body.frame()).await.map_err(|_| self.stalled(server))? else {
                return written.finish(total, server);
            };
            let frame = frame.map_err(|error| Failure::Connection(server.to_string(), error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            received += data.len() as u64;
            written.write(&data, server)?;
            let now = Instant::now();
            if received - counted >= BYTES_PER_TIMEOUT {
                (counted, until) = (received, now + self.settings.timeout);
            }
            if now >= next_report {
                progress(written.written(), total);
                next_report = now + POLL;
            }
        }
    }

    fn stalled(&self, server: &Server) -> Failure {
        Failure::Stalled(server.to_string(), self.settings.timeout)
    }
}
