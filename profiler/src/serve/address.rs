//! Addresses of `--serve`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use heapbpf_base::shown::Shown;

/// An address `IP:PORT`, `localhost:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Maximum length of a path. `sun_path` has 108 bytes and ends with a zero (`man 7 unix`).
const PATH_BYTES_MAX: usize = 107;

impl Address {
    /// Whether other machines can connect to the address.
    pub(crate) fn is_remote(&self) -> bool {
        match self {
            Self::Tcp(address) => !address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => false,
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                0 => Err("no path after `unix:`; write it like unix:/run/heapbpf.sock".to_owned()),
                1..=PATH_BYTES_MAX => Ok(Self::Unix(path.into())),
                _ => Err(format!("the path of a socket has at most {PATH_BYTES_MAX} bytes")),
            };
        }
        if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
            return Ok(Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            "not an address; write it like 127.0.0.1:8080, [::1]:8080 or unix:/run/heapbpf.sock".to_owned()
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", Shown::of(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_know_their_reach() {
        for (text, shown, is_remote) in [
            ("127.0.0.1:8080", "127.0.0.1:8080", false),
            ("127.9.9.9:0", "127.9.9.9:0", false),
            ("[::1]:80", "[::1]:80", false),
            ("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80", false),
            ("localhost:80", "127.0.0.1:80", false),
            ("unix:/run/x.sock", "unix:/run/x.sock", false),
            ("0.0.0.0:80", "0.0.0.0:80", true),
            ("[::]:80", "[::]:80", true),
            ("10.0.0.1:80", "10.0.0.1:80", true),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!((address.to_string().as_str(), address.is_remote()), (shown, is_remote));
        }
    }

    #[test]
    fn other_texts_are_refused_with_an_example() {
        let long = format!("unix:/{}", "x".repeat(PATH_BYTES_MAX));
        for text in
            ["", "8080", ":8080", "127.0.0.1", "127.0.0.1:99999", "example.org:80", "localhost:x", "unix:", &long]
        {
            text.parse::<Address>().expect_err(text);
        }
        let error = "80".parse::<Address>().expect_err("no address");
        assert!(error.contains("127.0.0.1:8080"), "{error}");
    }
}
