//! Addresses of servers: `pyroscope+http://host:4040`, `otlp+grpcs://host`, ….

use std::fmt;
use std::str::FromStr;

use hyper::Uri;
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, TRANSFER_ENCODING};
use hyper::header::{HeaderName, HeaderValue};
use strum::{IntoEnumIterator, IntoStaticStr};
use thiserror::Error;

const HTTPS_PORT: u16 = 443;

/// Protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Backend {
    /// `push.v1.PusherService/Push` by the Connect protocol, which is a POST of a protobuf message.
    Pyroscope,
    /// `ProfilesService/Export` of the profiles signal, by HTTP or gRPC.
    Otlp,
    /// `ProfileStoreService/WriteRaw` by gRPC.
    Parca,
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    /// Port by convention, for connections without TLS.
    fn port(self, is_grpc: bool) -> u16 {
        match (self, is_grpc) {
            (Self::Pyroscope, _) => 4040,
            (Self::Otlp, false) => 4318,
            (Self::Otlp, true) => 4317,
            (Self::Parca, _) => 7070,
        }
    }

    fn path(self, is_grpc: bool) -> &'static str {
        match (self, is_grpc) {
            (Self::Pyroscope, _) => "/push.v1.PusherService/Push",
            (Self::Otlp, false) => "/v1development/profiles",
            (Self::Otlp, true) => "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
            (Self::Parca, _) => "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
        }
    }

    fn speaks(self, is_grpc: bool) -> bool {
        match self {
            Self::Pyroscope => !is_grpc,
            Self::Otlp => true,
            Self::Parca => is_grpc,
        }
    }
}

/// Address of a server, and the protocol of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) backend: Backend,
    /// Whether to use gRPC over HTTP/2; otherwise HTTP/1.1.
    pub(super) is_grpc: bool,
    pub(super) is_tls: bool,
    /// Name or address of the host, without the brackets of IPv6.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path of requests, with a prefix for servers behind a proxy.
    pub(super) path: String,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum EndpointError {
    #[error(
        "`{0}` does not name a back end; use `pyroscope+http://HOST:4040`, `otlp+http://HOST:4318`, \
         `otlp+grpc://HOST:4317` or `parca+grpc://HOST:7070`, with `https` or `grpcs` for TLS"
    )]
    Scheme(String),
    #[error("`{0}` is not a valid URL: {1}")]
    Url(String, &'static str),
    #[error(
        "the URL contains credentials, which every user of this machine can see in `ps`; \
         use `--push-header-file FILE` with a line `Authorization: Basic …`"
    )]
    Credentials,
}

impl Endpoint {
    /// Host and port for HTTP's `Host`.
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.contains('@') {
            return Err(EndpointError::Credentials);
        }
        let scheme = || EndpointError::Scheme(text.to_owned());
        let (backend, rest) = text.split_once('+').ok_or_else(scheme)?;
        let backend = Backend::iter().find(|it| it.name() == backend).ok_or_else(scheme)?;
        let (transport, rest) = rest.split_once("://").ok_or_else(scheme)?;
        let (is_grpc, is_tls) = match transport {
            "http" => (false, false),
            "https" => (false, true),
            "grpc" => (true, false),
            "grpcs" => (true, true),
            _ => return Err(scheme()),
        };
        if !backend.speaks(is_grpc) {
            return Err(scheme());
        }
        let invalid = |why| EndpointError::Url(text.to_owned(), why);
        let uri: Uri = format!("http://{rest}").parse().map_err(|_| invalid("expected a host, or HOST:PORT"))?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| invalid("the host is missing"))?;
        if uri.query().is_some() {
            return Err(invalid("a query is not supported"));
        }
        let prefix = uri.path().trim_end_matches('/');
        if is_grpc && !prefix.is_empty() {
            return Err(invalid("gRPC has no path"));
        }
        let default_port = if is_tls { HTTPS_PORT } else { backend.port(is_grpc) };
        let has_port = uri.authority().is_some_and(|authority| authority.as_str().len() > host.len());
        let port = match uri.port_u16() {
            Some(0) => return Err(invalid("port 0 cannot be connected to")),
            None if has_port => return Err(invalid("the port is not a number up to 65535")),
            port => port.unwrap_or(default_port),
        };
        Ok(Self {
            backend,
            is_grpc,
            is_tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            path: format!("{prefix}{}", backend.path(is_grpc)),
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// A header of requests, such as `X-Scope-OrgID: tenant`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(super) name: HeaderName,
    pub(super) value: HeaderValue,
}

/// Headers that follow from the request itself and cannot be set.
const RESERVED: [HeaderName; 7] =
    [HOST, CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, TE];

impl FromStr for Header {
    type Err = String;

    /// Parses a header. Errors do not repeat the value, which may be a secret.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) =
            text.split_once(':').ok_or("not a header; write it like `X-Scope-OrgID: tenant`".to_owned())?;
        let name: HeaderName = name.trim().parse().map_err(|_| format!("`{}` is not a header's name", name.trim()))?;
        if RESERVED.contains(&name) || name.as_str().starts_with("grpc-") {
            return Err(format!("the header `{name}` is set by heapbpf"));
        }
        let mut value: HeaderValue =
            value.trim().parse().map_err(|_| format!("the value of the header `{name}` has invalid characters"))?;
        value.set_sensitive(true);
        Ok(Self { name, value })
    }
}

impl Header {
    /// Parses one header per line; empty lines and lines that start with `#` are skipped.
    pub(crate) fn parse_file(text: &str) -> Result<Vec<Self>, String> {
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        lines.map(|(number, line)| line.parse().map_err(|error| format!("line {number}: {error}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, host: &str, port: u16, path: &str) {
        let endpoint: Endpoint = text.parse().expect(text);
        assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.path.as_str()), (host, port, path), "{text}");
        assert_eq!(endpoint.to_string(), text);
    }

    #[test]
    fn urls_name_back_end_and_transport() {
        check("pyroscope+http://p:1", "p", 1, "/push.v1.PusherService/Push");
        check("pyroscope+http://p", "p", 4040, "/push.v1.PusherService/Push");
        check("pyroscope+https://p.example/base/", "p.example", 443, "/base/push.v1.PusherService/Push");
        check("otlp+http://[::1]", "::1", 4318, "/v1development/profiles");
        let export = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";
        check("otlp+grpc://127.0.0.1", "127.0.0.1", 4317, export);
        check("otlp+grpcs://c:4317/", "c", 4317, export);
        check("parca+grpc://parca", "parca", 7070, "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw");
        let endpoint: Endpoint = "otlp+grpcs://[::1]:99".parse().expect("valid");
        assert!(endpoint.is_grpc && endpoint.is_tls);
        assert_eq!(endpoint.authority(), "[::1]:99");
    }

    #[test]
    fn invalid_urls_are_refused_with_the_reason() {
        for (text, message) in [
            ("http://host", "does not name a back end; use `pyroscope+http://HOST:4040`"),
            ("parca+http://host", "does not name a back end"),
            ("pyroscope+grpc://host", "does not name a back end"),
            ("pyroscope+ftp://host", "does not name a back end"),
            ("otlp+http:/host", "does not name a back end"),
            ("otlp+http://", "is not a valid URL"),
            ("otlp+http://:80", "is not a valid URL"),
            ("otlp+http://h:x", "is not a valid URL"),
            ("otlp+http://h:0", "port 0 cannot be connected to"),
            ("otlp+http://h:65536", "is not a valid URL"),
            ("otlp+http://h/?x=1", "a query is not supported"),
            ("otlp+grpc://h/x", "gRPC has no path"),
            ("otlp+http://user:secret@h", "use `--push-header-file FILE`"),
        ] {
            let error = text.parse::<Endpoint>().expect_err(text).to_string();
            assert!(error.contains(message), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn headers_are_parsed_and_their_values_kept_secret() {
        let headers =
            Header::parse_file("# comment\n\nX-Scope-OrgID: a b \nauthorization:Basic eA==\n").expect("valid");
        let shown: Vec<_> = headers.iter().map(|it| (it.name.as_str(), it.value.as_bytes())).collect();
        assert_eq!(shown, [("x-scope-orgid", b"a b".as_slice()), ("authorization", b"Basic eA==")]);
        assert!(!format!("{headers:?}").contains("eA=="));
        for (text, message) in [
            ("x: 1\nno header", "line 2: not a header"),
            ("a b: c", "line 1: `a b` is not a header's name"),
            ("Host: x", "is set by heapbpf"),
            ("grpc-timeout: 1S", "is set by heapbpf"),
            ("X: secret\u{1}", "line 1: the value of the header `x` has invalid characters"),
        ] {
            let error = Header::parse_file(text).expect_err(text);
            assert!(error.contains(message) && !error.contains("secret"), "{error}");
        }
    }
}
