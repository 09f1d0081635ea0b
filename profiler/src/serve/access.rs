//! Access control: checks of a request's head, before any other processing.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Version};

use super::refusal::Refusal;
use super::route::Need;
use super::token::Token;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Kind of the connection on which a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Tcp,
    /// The kernel has identified the user: root, or heapbpf's own.
    Trusted,
}

#[derive(Clone)]
pub(super) struct Access {
    pub(super) token: Option<Token>,
    /// Names of this machine by which browsers may reach the server.
    pub(super) names: Vec<String>,
}

impl Access {
    /// Checks a request. `need` is that of the path.
    pub(super) fn check(&self, head: &Parts, peer: Peer, need: Need) -> Result<(), Refusal> {
        if peer == Peer::Tcp {
            self.check_host(head)?;
        }
        check_site(head, need)?;
        if peer == Peer::Trusted || need == Need::Nothing {
            return Ok(());
        }
        match &self.token {
            Some(token) => {
                let given = text(&head.headers, &AUTHORIZATION)?;
                if given.is_some_and(|given| token.authorizes(given)) { Ok(()) } else { Err(Refusal::unauthorized()) }
            }
            None if need == Need::Control => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "dump and mark need a token: start heapbpf with `--token-file FILE`, or use `--serve unix:PATH`",
            )),
            None => Ok(()),
        }
    }

    /// Checks the host that a request names. A page of another site can let its own name resolve to this machine (DNS rebinding).
    /// Its requests then have that name, never an IP address.
    fn check_host(&self, head: &Parts) -> Result<(), Refusal> {
        let host = match head.uri.host() {
            Some(host) => host,
            None => match (text(&head.headers, &HOST)?, head.version) {
                (Some(host), _) => host,
                // Browsers always name the host.
                (None, Version::HTTP_10) => return Ok(()),
                (None, _) => return Err(Refusal::new(StatusCode::BAD_REQUEST, "the request has no `Host` header")),
            },
        };
        let name = name_of(host);
        let is_known = |known: &str| name.eq_ignore_ascii_case(known);
        if name.parse::<IpAddr>().is_ok() || is_known("localhost") || self.names.iter().any(|known| is_known(known)) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::MISDIRECTED_REQUEST,
            "this server has another name than the `Host` header; use its IP address, or start heapbpf with `--serve-name NAME`",
        ))
    }
}

/// Name of the host without its port, and without the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.strip_suffix('.').unwrap_or(name)
}

/// Refuses requests that a page of another site makes a browser send. Other programs send neither header.
fn check_site(head: &Parts, need: Need) -> Result<(), Refusal> {
    let refused = || Err(Refusal::new(StatusCode::FORBIDDEN, "requests by pages of other sites are refused"));
    if let Some(origin) = text(&head.headers, &ORIGIN)? {
        let own = head.uri.authority().map(|authority| authority.as_str()).or(text(&head.headers, &HOST)?);
        // Origins are compared without the scheme: a proxy may add TLS.
        let from = origin.split_once("://").map(|(_, from)| from);
        if from.is_none() || !from.zip(own).is_some_and(|(from, own)| from.eq_ignore_ascii_case(own)) {
            return refused();
        }
    }
    match text(&head.headers, &SEC_FETCH_SITE)? {
        None | Some("same-origin" | "none") => Ok(()),
        // A link may lead to the page.
        Some(_) if need == Need::Page && head.method == Method::GET => {
            if text(&head.headers, &SEC_FETCH_MODE)? == Some("navigate") { Ok(()) } else { refused() }
        }
        Some(_) => refused(),
    }
}

/// The only value of a header; fails for several.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let malformed = || Refusal::new(StatusCode::BAD_REQUEST, format!("the header `{name}` is malformed or repeated"));
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| malformed()),
        (Some(_), Some(_)) => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;
    use crate::serve::token::tests::{TEXT, token};

    fn head(lines: &str) -> Parts {
        let mut lines = lines.split('|');
        let (method, uri) = lines.next().and_then(|line| line.split_once(' ')).expect("a method and a path");
        let mut request = Request::builder().method(method).uri(uri);
        for line in lines {
            let (name, value) = line.split_once(": ").expect("a header");
            request = request.header(name, value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn status(has_token: bool, peer: Peer, lines: &str) -> u16 {
        let access = Access { token: has_token.then(token), names: vec!["profiler.example".to_owned()] };
        let head = head(lines);
        let need = crate::serve::route::Endpoint::of(head.uri.path()).need();
        access.check(&head, peer, need).map_or_else(|refusal| refusal.status.as_u16(), |()| 200)
    }

    #[test]
    fn other_host_names_are_refused() {
        for (host, expected) in [
            ("127.0.0.1:80", 200),
            ("127.0.0.1", 200),
            ("[::1]:80", 200),
            ("[::1]", 200),
            ("localhost:9", 200),
            ("LOCALHOST.", 200),
            ("10.1.2.3:80", 200),
            ("profiler.example:80", 200),
            ("evil.example:80", 421),
            ("127.0.0.1.evil.example", 421),
            ("localhost.evil.example:80", 421),
            ("127.1:80", 421),
            ("", 421),
            (":80", 421),
        ] {
            assert_eq!(status(false, Peer::Tcp, &format!("GET /metrics|host: {host}")), expected, "{host}");
        }
        assert_eq!(status(false, Peer::Tcp, "GET /metrics"), 400);
        assert_eq!(status(false, Peer::Tcp, "GET /metrics|host: localhost|host: evil.example"), 400);
        assert_eq!(status(false, Peer::Tcp, "GET http://evil.example/metrics|host: localhost"), 421);
        assert_eq!(status(false, Peer::Trusted, "GET /metrics|host: anything"), 200);
        assert_eq!(status(false, Peer::Tcp, "GET /healthz|host: evil.example"), 421);
    }

    #[test]
    fn other_sites_may_only_link_to_the_page() {
        for (lines, expected) in [
            ("GET /|sec-fetch-site: none", 200),
            ("GET /|sec-fetch-site: same-origin", 200),
            ("GET /|sec-fetch-site: cross-site|sec-fetch-mode: navigate", 200),
            ("GET /|sec-fetch-site: cross-site|sec-fetch-mode: no-cors", 403),
            ("GET /|sec-fetch-site: cross-site", 403),
            ("GET /metrics|sec-fetch-site: cross-site|sec-fetch-mode: navigate", 403),
            // Another port of this machine.
            ("GET /api/document|sec-fetch-site: same-site", 403),
            ("GET /api/document|origin: http://localhost:80", 200),
            ("GET /api/document|origin: https://LOCALHOST:80", 200),
            ("GET /api/document|origin: http://localhost:81", 403),
            ("GET /api/document|origin: http://evil.example", 403),
            ("GET /api/document|origin: null", 403),
        ] {
            assert_eq!(status(false, Peer::Tcp, &format!("{lines}|host: localhost:80")), expected, "{lines}");
        }
        assert_eq!(status(false, Peer::Trusted, "POST /api/dump|host: x|origin: http://evil.example"), 403);
    }

    #[test]
    fn tokens_are_required_where_there_is_one() {
        let right = format!("|host: localhost|authorization: Bearer {TEXT}");
        for (has_token, peer, lines, expected) in [
            (true, Peer::Tcp, "GET /metrics|host: localhost".to_owned(), 401),
            (true, Peer::Tcp, "GET /|host: localhost|authorization: Bearer wrong".to_owned(), 401),
            (true, Peer::Tcp, format!("GET /nothing{right}|authorization: Bearer {TEXT}"), 400),
            (true, Peer::Tcp, "GET /healthz|host: localhost".to_owned(), 200),
            (true, Peer::Tcp, format!("GET /metrics{right}"), 200),
            (true, Peer::Tcp, format!("POST /api/dump{right}"), 200),
            (true, Peer::Tcp, format!("POST /api/dump{right}|origin: http://evil.example"), 403),
            (true, Peer::Trusted, "POST /api/dump".to_owned(), 200),
            (false, Peer::Tcp, "POST /api/dump|host: localhost".to_owned(), 403),
            (false, Peer::Tcp, format!("POST /api/mark{right}"), 403),
            (false, Peer::Tcp, "GET /metrics|host: localhost".to_owned(), 200),
        ] {
            assert_eq!(status(has_token, peer, &lines), expected, "{lines}");
        }
    }
}
