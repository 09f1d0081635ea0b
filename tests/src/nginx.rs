//! A private nginx with one worker.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::kernel;

/// Timeout until it listens, or answers.
const WITHIN: Duration = Duration::from_secs(60);

/// A running nginx on a port of the loopback interface, which serves a page from its own directory. Terminated on drop.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
    directory: TempDir,
    port: u16,
    page: String,
}

impl Nginx {
    /// Starts it and waits until it answers.
    #[track_caller]
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("there is a directory for temporary files");
        // A free port, unlikely to be taken before nginx binds it.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("loopback has ports").port();
        let page: String = (0..800).map(|i| format!("<p>Paragraph {i} of a page worth compressing.</p>\n")).collect();
        fs::write(directory.path().join("page.html"), &page).expect("the directory is ours");
        let configuration = directory.path().join("nginx.conf");
        fs::write(&configuration, configured(&directory.path().display().to_string(), port)).expect("it is ours");
        let child = Command::new("/usr/sbin/nginx")
            .arg("-c")
            .arg(&configuration)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("nginx: {error}: `apt-get install nginx-light` has it"));
        let nginx = Self { child, directory, port, page };
        let deadline = Instant::now() + WITHIN;
        while TcpStream::connect(("127.0.0.1", port)).is_err() || nginx.children().is_empty() {
            assert!(Instant::now() < deadline, "nginx does not listen: {}", nginx.log());
            thread::sleep(Duration::from_millis(20));
        }
        nginx.request();
        nginx
    }

    /// Returns the PID of the only worker.
    #[track_caller]
    pub fn worker(&self) -> u32 {
        let children = self.children();
        let [worker] = children.as_slice() else { panic!("nginx has children {children:?}: {}", self.log()) };
        *worker
    }

    /// Address of its page.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/page.html", self.port)
    }

    /// Requests the page, plain and compressed, and fails unless the answers are correct.
    #[track_caller]
    pub fn request(&self) {
        let (head, body) = self.answer("");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(body == self.page.as_bytes(), "another page: {} bytes", body.len());
        let (head, body) = self.answer("Accept-Encoding: gzip\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Content-Encoding: gzip"), "{head}");
        assert!((100..self.page.len()).contains(&body.len()), "{} bytes", body.len());
    }

    #[track_caller]
    fn answer(&self, fields: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("nginx listens");
        stream.set_read_timeout(Some(WITHIN)).expect("a minute is a timeout");
        let request = format!("GET /page.html HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).expect("nginx listens");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("nginx answers");
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer has a head");
        (String::from_utf8_lossy(&answer[..end]).into_owned(), answer.split_off(end + 4))
    }

    fn children(&self) -> Vec<u32> {
        kernel::children(self.child.id())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its master terminates its worker on SIGTERM; SIGKILL would orphan the worker.
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
        let deadline = Instant::now() + WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configured(folder: &str, port: u16) -> String {
    include_str!("../targets/nginx.conf").replace("FOLDER", folder).replace("PORT", &port.to_string())
}
