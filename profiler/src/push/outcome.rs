//! Meaning of an answer: whether the request was accepted, must not be repeated, or may be repeated, and when.

use std::time::{Duration, SystemTime};

use heapbpf_base::shown;
use hyper::StatusCode;
use hyper::header::{LOCATION, RETRY_AFTER};
use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;

use super::client::Answer;
use super::endpoint::{Backend, Endpoint};

/// Maximum pause requested by a server: the server may be replaced in a longer one.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
const REASON_CHARS_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The server has accepted the request. Some of the profiles may have been rejected, for a reason.
    Accepted {
        rejected: u64,
        reason: String,
    },
    Refused(String),
    Retry {
        /// Time that the server requests to wait.
        after: Option<Duration>,
        /// Whether the request itself may be the cause: it is repeated a few times only.
        is_suspect: bool,
        reason: String,
    },
}

impl Outcome {
    pub(super) fn of(endpoint: &Endpoint, answer: &Answer) -> Self {
        if !answer.status.is_success() {
            return of_status(answer);
        }
        if !endpoint.is_grpc {
            return accepted(endpoint.backend, &answer.body);
        }
        match answer.field("grpc-status").and_then(|code| code.parse().ok()) {
            Some(0) => accepted(endpoint.backend, answer.grpc_message()),
            code => of_code(code, answer),
        }
    }
}

/// Outcome of an accepted request. OTLP's answer can reject some profiles; the others have no content.
fn accepted(backend: Backend, message: &[u8]) -> Outcome {
    let response = match backend {
        Backend::Otlp => ExportProfilesServiceResponse::decode(message).unwrap_or_default(),
        Backend::Pyroscope | Backend::Parca => ExportProfilesServiceResponse::default(),
    };
    let partial = response.partial_success.unwrap_or_default();
    let rejected = u64::try_from(partial.rejected_profiles).unwrap_or(0);
    Outcome::Accepted { rejected, reason: shown(&partial.error_message) }
}

fn of_status(answer: &Answer) -> Outcome {
    let status = answer.status;
    let detail = match answer.headers.get(LOCATION).and_then(|to| to.to_str().ok()) {
        Some(to) if status.is_redirection() => format!("redirects to {to}, which heapbpf does not follow"),
        _ => shown::text(&answer.body).into_owned(),
    };
    let reason = format!("HTTP status {status}: {}", shown(&detail));
    let reason = reason.trim_end_matches([':', ' ']).to_owned();
    // Credentials that have expired are replaced, and the agent reads them again.
    let is_temporary = matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::PROXY_AUTHENTICATION_REQUIRED
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    if is_temporary || status.is_server_error() {
        Outcome::Retry { after: retry_after(answer, SystemTime::now()), is_suspect: !is_temporary, reason }
    } else {
        Outcome::Refused(reason)
    }
}

/// Outcome by a code of gRPC (doc/statuscodes.md). OTLP's specification lists the codes after which a request may be repeated.
fn of_code(code: Option<u8>, answer: &Answer) -> Outcome {
    let message = answer.field("grpc-message").unwrap_or_default();
    let name = match code {
        Some(1) => "CANCELLED",
        Some(2) => "UNKNOWN",
        Some(3) => "INVALID_ARGUMENT",
        Some(4) => "DEADLINE_EXCEEDED",
        Some(7) => "PERMISSION_DENIED",
        Some(8) => "RESOURCE_EXHAUSTED",
        Some(10) => "ABORTED",
        Some(11) => "OUT_OF_RANGE",
        Some(12) => "UNIMPLEMENTED",
        Some(13) => "INTERNAL",
        Some(14) => "UNAVAILABLE",
        Some(15) => "DATA_LOSS",
        Some(16) => "UNAUTHENTICATED",
        _ => "",
    };
    let code_text = code.map_or("missing".to_owned(), |code| code.to_string());
    let reason = format!("gRPC status {code_text} {name}: {}", shown(message));
    let reason = reason.trim_end_matches([':', ' ']).to_owned();
    let retry = |is_suspect| Outcome::Retry { after: None, is_suspect, reason: reason.clone() };
    match code {
        // The codes include `PERMISSION_DENIED` and `UNAUTHENTICATED`: credentials that have expired are replaced.
        Some(1 | 4 | 7 | 8 | 10 | 11 | 14 | 15 | 16) => retry(false),
        None | Some(2 | 13) => retry(true),
        Some(_) => Outcome::Refused(reason),
    }
}

/// Pause that the server requests, in seconds, or until a date.
fn retry_after(answer: &Answer, now: SystemTime) -> Option<Duration> {
    let text = answer.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let after = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
            Duration::try_from(date.duration_since(Timestamp::try_from(now).ok()?)).unwrap_or_default()
        }
    };
    Some(after.min(RETRY_AFTER_MAX))
}

/// The first line of a server's text, for a terminal.
fn shown(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let printable = line.trim().chars().map(|c| if c.is_control() { '?' } else { c });
    printable.take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderMap;
    use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesPartialSuccess;

    use super::*;

    fn outcome(url: &str, status: u16, fields: &[(&'static str, &str)], body: &[u8]) -> Outcome {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.parse().expect("a header's name"), value.parse().expect("a header's value")));
        let headers: HeaderMap = fields.collect();
        let status = StatusCode::from_u16(status).expect("a status");
        let answer = Answer { status, headers, trailers: HeaderMap::new(), body: body.to_vec() };
        Outcome::of(&url.parse().expect("a URL"), &answer)
    }

    const PYROSCOPE: &str = "pyroscope+http://h";
    const GRPC: &str = "parca+grpc://h";

    fn retry(after_s: Option<u64>, is_suspect: bool, reason: &str) -> Outcome {
        Outcome::Retry { after: after_s.map(Duration::from_secs), is_suspect, reason: reason.to_owned() }
    }

    #[test]
    fn statuses_of_http() {
        let accepted = Outcome::Accepted { rejected: 0, reason: String::new() };
        assert_eq!(outcome(PYROSCOPE, 200, &[], b"{}"), accepted);
        assert_eq!(outcome(PYROSCOPE, 204, &[], b""), accepted);
        let refused = Outcome::Refused("HTTP status 400 Bad Request: no? service".to_owned());
        assert_eq!(outcome(PYROSCOPE, 400, &[], b"\n no\x1b service \nmore"), refused);
        let refused = Outcome::Refused(
            "HTTP status 301 Moved Permanently: redirects to /x, which heapbpf does not follow".to_owned(),
        );
        assert_eq!(outcome(PYROSCOPE, 301, &[("location", "/x")], b""), refused);
        assert_eq!(outcome(PYROSCOPE, 503, &[], b""), retry(None, false, "HTTP status 503 Service Unavailable"));
        let limited = outcome(PYROSCOPE, 429, &[("retry-after", "7")], b"slow down");
        assert_eq!(limited, retry(Some(7), false, "HTTP status 429 Too Many Requests: slow down"));
        let far = outcome(PYROSCOPE, 429, &[("retry-after", "Sun, 06 Nov 2033 08:49:37 GMT")], b"");
        assert_eq!(far, retry(Some(300), false, "HTTP status 429 Too Many Requests"));
        let past = outcome(PYROSCOPE, 503, &[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], b"");
        assert_eq!(past, retry(Some(0), false, "HTTP status 503 Service Unavailable"));
        assert_eq!(
            outcome(PYROSCOPE, 401, &[], b"expired"),
            retry(None, false, "HTTP status 401 Unauthorized: expired")
        );
        assert_eq!(outcome(PYROSCOPE, 403, &[], b""), retry(None, false, "HTTP status 403 Forbidden"));
        assert_eq!(outcome(PYROSCOPE, 500, &[], b""), retry(None, true, "HTTP status 500 Internal Server Error"));
        let long = outcome(PYROSCOPE, 400, &[], "x".repeat(9999).as_bytes());
        assert!(matches!(long, Outcome::Refused(reason) if reason.len() < 300));
    }

    #[test]
    fn statuses_of_grpc() {
        assert_eq!(
            outcome(GRPC, 200, &[("grpc-status", "0")], b""),
            Outcome::Accepted { rejected: 0, reason: String::new() }
        );
        let invalid = outcome(GRPC, 200, &[("grpc-status", "3"), ("grpc-message", "bad label")], b"");
        assert_eq!(invalid, Outcome::Refused("gRPC status 3 INVALID_ARGUMENT: bad label".to_owned()));
        assert_eq!(outcome(GRPC, 200, &[("grpc-status", "14")], b""), retry(None, false, "gRPC status 14 UNAVAILABLE"));
        assert_eq!(
            outcome(GRPC, 200, &[("grpc-status", "16")], b""),
            retry(None, false, "gRPC status 16 UNAUTHENTICATED")
        );
        assert_eq!(outcome(GRPC, 200, &[("grpc-status", "13")], b""), retry(None, true, "gRPC status 13 INTERNAL"));
        assert_eq!(outcome(GRPC, 200, &[], b""), retry(None, true, "gRPC status missing"));
        assert_eq!(outcome(GRPC, 502, &[], b""), retry(None, false, "HTTP status 502 Bad Gateway"));
    }

    #[test]
    fn collectors_can_reject_some_profiles() {
        let partial = ExportProfilesPartialSuccess { rejected_profiles: 3, error_message: "too old".to_owned() };
        let body = ExportProfilesServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let expected = Outcome::Accepted { rejected: 3, reason: "too old".to_owned() };
        assert_eq!(outcome("otlp+http://h", 200, &[], &body), expected);
        let framed = [vec![0; 5], body].concat();
        assert_eq!(outcome("otlp+grpc://h", 200, &[("grpc-status", "0")], &framed), expected);
        assert_eq!(
            outcome("otlp+http://h", 200, &[], b"\xff"),
            Outcome::Accepted { rejected: 0, reason: String::new() }
        );
    }
}
