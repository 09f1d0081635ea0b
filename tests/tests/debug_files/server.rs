//! Servers: Debian's debuginfod, and ones that do what no server should.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Timeout until files are indexed, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Killed when dropped.
pub(crate) struct Debuginfod {
    process: Child,
    port: u16,
}

impl Debuginfod {
    /// Serves the files of a directory; waits until it has this build.
    pub(crate) fn start(files: &Path, build_id: &str) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let process = Command::new("debuginfod")
            .args(["-F", "-d", ":memory:", "-t", "1", "-p", &port.to_string()])
            .arg(files)
            .env_remove("DEBUGINFOD_URLS")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("debuginfod is installed");
        let server = Self { process, port };
        let deadline = Instant::now() + READY_WITHIN;
        while !server.has(build_id) {
            assert!(Instant::now() < deadline, "debuginfod does not serve {build_id}");
            thread::sleep(Duration::from_millis(100));
        }
        server
    }

    fn has(&self, build_id: &str) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let request = format!("GET /buildid/{build_id}/debuginfo HTTP/1.0\r\n\r\n");
        let mut head = [0; 15];
        stream.write_all(request.as_bytes()).and_then(|()| stream.read_exact(&mut head)).is_ok()
            && head.ends_with(b"200 OK")
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Debuginfod {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Does the same for every connection, until the test ends.
pub(crate) struct Server {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (counted, serve) = (Arc::clone(&counted), Arc::clone(&serve));
                thread::spawn(move || {
                    let mut request = [0; 4096];
                    if stream.read(&mut request).is_ok_and(|count| count > 0) {
                        counted.fetch_add(1, Ordering::Relaxed);
                        serve(stream);
                    }
                });
            }
        });
        Self { port, requests }
    }

    /// Sends these bytes, and nothing more, on a connection that it keeps.
    pub(crate) fn sending(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        Self::start(move |mut stream| {
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0]);
        })
    }

    /// Sends a file.
    pub(crate) fn answering(body: &[u8]) -> Self {
        let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        answer.extend(body);
        Self::start(move |mut stream| {
            let _ = stream.write_all(&answer);
        })
    }

    /// Sends a compressed file, although nobody has accepted that.
    pub(crate) fn compressing(body: &[u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let packed = encoder.write_all(body).and_then(|()| encoder.finish()).expect("vectors accept all bytes");
        let head = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: ";
        let mut answer = format!("{head}{}\r\n\r\n", packed.len()).into_bytes();
        answer.extend(packed);
        Self::start(move |mut stream| {
            let _ = stream.write_all(&answer);
        })
    }

    /// Never answers.
    pub(crate) fn silent() -> Self {
        Self::sending("")
    }

    /// Sends without an end.
    pub(crate) fn endless() -> Self {
        Self::start(|mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(&[0x7f; 4096]).is_ok() {}
        })
    }

    /// Never comes to its answer.
    pub(crate) fn endless_interim() -> Self {
        let heads = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        Self::start(move |mut stream| while stream.write_all(&heads).is_ok() {})
    }

    /// Sends a byte at a time, without an end.
    pub(crate) fn endless_drops() -> Self {
        Self::start(|mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}
