//! Settings: servers, and the variables of elfutils' client (debuginfod-client-config(7)).

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use heapbpf_linux::rights::Rights;
use hyper::Uri;
use thiserror::Error;

use crate::reader;

/// Time within which a server must send 100 KiB.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(90);
/// Default of the maximum size. Debug files of browsers have 4 GiB; few others have more than 1 GiB.
const SIZE_BYTES_MAX_DEFAULT: u64 = 2 << 30;
const SERVERS_MAX: usize = 16;

/// Address of a server: `http://host:8002` or `https://host/base`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(super) is_tls: bool,
    /// Host name or address, without the brackets of IPv6.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path, without a slash at its end.
    pub(super) path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum SettingsError {
    #[error("`{0}` is not the address of a debuginfod server; write it like `https://debuginfod.example.org`")]
    Url(String),
    #[error("the address of a debuginfod server must not contain credentials")]
    Credentials,
}

impl Server {
    /// Host and port for HTTP's `Host`.
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority(), self.path)
    }
}

impl FromStr for Server {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let invalid = || SettingsError::Url(text.to_owned());
        if text.contains('@') {
            return Err(SettingsError::Credentials);
        }
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid()),
        };
        let host = uri.host().map(|host| host.trim_matches(['[', ']'])).filter(|host| !host.is_empty());
        // An invalid port counts as no port in the parser.
        let has_port =
            uri.authority().is_some_and(|it| it.as_str().rsplit(']').next().is_some_and(|it| it.contains(':')));
        let port = match uri.port() {
            Some(port) => port.as_str().parse().ok(),
            None if has_port => None,
            None => Some(if is_tls { 443 } else { 80 }),
        };
        let port = port.filter(|&port| port != 0).ok_or_else(invalid)?;
        if uri.query().is_some() {
            return Err(invalid());
        }
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { is_tls, host: host.ok_or_else(invalid)?.to_owned(), port, path })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(super) servers: Vec<Server>,
    /// Directory of the cache; `None` where none is known.
    pub(super) cache: Option<PathBuf>,
    /// Time within which a server must send 100 KiB, and the first byte.
    pub(super) timeout: Duration,
    /// Time limit for one file, with redirections.
    pub(super) time_max: Option<Duration>,
    /// Maximum size of a file, in bytes.
    pub(super) size_bytes_max: u64,
}

impl Settings {
    /// Creates settings. `given` are servers of the command line, before those of `DEBUGINFOD_URLS`. `None` without a server.
    /// `home` is that of the invoking user.
    pub(crate) fn new(
        given: &[Server],
        home: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, SettingsError> {
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok().filter(|&number| number > 0);
        let urls = text("DEBUGINFOD_URLS").unwrap_or_default();
        let mut servers = given.to_vec();
        // Words such as `ima:enforcing` set how signatures are verified, and are not servers.
        for url in urls.split_whitespace().filter(|word| !word.starts_with("ima:")) {
            let server: Server = url.parse()?;
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        servers.truncate(SERVERS_MAX);
        if servers.is_empty() {
            return Ok(None);
        }
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = home.map(Path::to_owned).or_else(|| absolute("HOME"));
        let is_folder = |path: &PathBuf| reader::reach(Some(&Rights::of_invoker()), path).is_ok() && path.is_dir();
        let old = home.as_ref().map(|home| home.join(".debuginfod_client_cache")).filter(is_folder);
        let standard = || {
            let root = absolute("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")))?;
            Some(root.join("debuginfod_client"))
        };
        Ok(Some(Self {
            servers,
            cache: absolute("DEBUGINFOD_CACHE_PATH").or(old).or_else(standard),
            timeout: number("DEBUGINFOD_TIMEOUT").map_or(TIMEOUT_DEFAULT, Duration::from_secs),
            time_max: number("DEBUGINFOD_MAXTIME").map(Duration::from_secs),
            size_bytes_max: number("DEBUGINFOD_MAXSIZE").unwrap_or(SIZE_BYTES_MAX_DEFAULT),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        for (text, shown, host) in [
            ("http://localhost:8002", "http://localhost:8002", "localhost"),
            ("https://d.example.org/", "https://d.example.org:443", "d.example.org"),
            ("http://[::1]:1/base/", "http://[::1]:1/base", "::1"),
        ] {
            let server: Server = text.parse().expect(text);
            assert_eq!((server.to_string().as_str(), server.host.as_str()), (shown, host));
        }
        for text in
            ["", "d.example.org", "file:///var/cache", "http://", "http://h:0", "http://h:x", "http://h/?a=b", "/x"]
        {
            assert_eq!(text.parse::<Server>(), Err(SettingsError::Url(text.to_owned())));
        }
        assert_eq!("http://a:secret@h".parse::<Server>(), Err(SettingsError::Credentials));
    }

    fn settings(given: &[&str], variables: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        let given: Vec<Server> = given.iter().map(|text| text.parse().expect("valid")).collect();
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Settings::new(&given, None, variable)
    }

    #[test]
    fn servers_are_those_given_then_those_of_the_environment() {
        assert_eq!(settings(&[], &[]), Ok(None));
        assert_eq!(settings(&[], &[("DEBUGINFOD_URLS", "  ima:enforcing ")]), Ok(None));
        let found = settings(&["http://a"], &[("DEBUGINFOD_URLS", "http://b http://a/ ima:ignore https://c")]);
        let shown: Vec<String> = found.expect("valid").expect("some").servers.iter().map(Server::to_string).collect();
        assert_eq!(shown, ["http://a:80", "http://b:80", "https://c:443"]);
        assert!(settings(&[], &[("DEBUGINFOD_URLS", "file:///x")]).is_err());
    }

    #[test]
    fn limits_and_cache_are_those_of_elfutils() {
        let found = |variables: &[(&str, &str)]| settings(&["http://a"], variables).expect("valid").expect("some");
        let default = found(&[("HOME", "/home/none")]);
        assert_eq!(default.cache.as_deref(), Some(Path::new("/home/none/.cache/debuginfod_client")));
        assert_eq!((default.timeout, default.time_max), (Duration::from_secs(90), None));
        let other = found(&[
            ("XDG_CACHE_HOME", "/x"),
            ("DEBUGINFOD_TIMEOUT", "3"),
            ("DEBUGINFOD_MAXTIME", "7"),
            ("DEBUGINFOD_MAXSIZE", "1000"),
        ]);
        assert_eq!(other.cache.as_deref(), Some(Path::new("/x/debuginfod_client")));
        let expected = (Duration::from_secs(3), Some(Duration::from_secs(7)), 1000);
        assert_eq!((other.timeout, other.time_max, other.size_bytes_max), expected);
        let given = found(&[("XDG_CACHE_HOME", "/x"), ("DEBUGINFOD_CACHE_PATH", "/y")]);
        assert_eq!(given.cache.as_deref(), Some(Path::new("/y")));
        assert_eq!(found(&[]).cache, None);
    }
}
