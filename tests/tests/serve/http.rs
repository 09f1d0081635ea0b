//! HTTP/1.1 as a client that sends whatever a test needs.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    #[track_caller]
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8(bytes[..end].to_vec()).expect("heads are text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{}", self.head, String::from_utf8_lossy(&self.body));
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("text")
    }
}

/// Sends bytes as they are, and returns all that comes until the server closes the connection.
#[track_caller]
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    // The server may refuse the request before it has all of it.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[track_caller]
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// Sends a request with further header lines, separated by `|`. A `Host` among them replaces the right one.
#[track_caller]
pub(crate) fn request(address: SocketAddr, method: &str, path: &str, headers: &str) -> Reply {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.to_lowercase().contains("host: ") {
        text.push_str(&format!("Host: {address}\r\n"));
    }
    headers.split('|').filter(|line| !line.is_empty()).for_each(|line| text.push_str(&format!("{line}\r\n")));
    text.push_str("\r\n");
    Reply::parse(&exchange(address, text.as_bytes()))
}

#[track_caller]
pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    request(address, "GET", path, "")
}
