//! Answers to requests that are not served.

use std::borrow::Cow;

use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};

use super::body::Body;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    reason: Cow<'static, str>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason: reason.into(), header: None }
    }

    pub(super) fn unauthorized() -> Self {
        let challenge =
            HeaderValue::from_static("Basic realm=\"heapbpf: the token is the password\", charset=\"UTF-8\"");
        let reason = "send the token of `--token-file`: `Authorization: Bearer TOKEN`, or as the password";
        Self { header: Some((WWW_AUTHENTICATE, challenge)), ..Self::new(StatusCode::UNAUTHORIZED, reason) }
    }

    /// Refuses a request that may succeed in a few seconds.
    pub(super) fn unavailable(reason: impl Into<Cow<'static, str>>) -> Self {
        let soon = HeaderValue::from_static("5");
        Self { header: Some((RETRY_AFTER, soon)), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, reason) }
    }

    pub(super) fn method(allowed: &'static str) -> Self {
        let reason = format!("this path takes {allowed} only");
        let allowed = HeaderValue::from_static(allowed);
        Self { header: Some((ALLOW, allowed)), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, reason) }
    }

    pub(super) fn too_large() -> Self {
        let close = HeaderValue::from_static("close");
        Self {
            header: Some((CONNECTION, close)),
            ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, "the body exceeds 64 KiB")
        }
    }

    pub(super) fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{}\n", self.reason).into_bytes()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.extend(self.header);
        response
    }
}
