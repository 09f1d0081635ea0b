//! Requests over one connection: HTTP/1.1, or HTTP/2 for gRPC, with or without TLS. Whatever a server does, a request
//! ends within its time, and little of the answer is kept.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, TE, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::endpoint::{Backend, Endpoint, Header};
use crate::http::{self, AGENT, ConnectError};

/// Maximum number of bytes of an answer that are read: the reasons that servers give are short.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Size of the frame that precedes a message of gRPC: a flag for compression, and the length.
const FRAME_BYTES: usize = 5;

/// Reason why there is no answer.
#[derive(Debug, Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the connection failed: {0}")]
    Connection(#[from] hyper::Error),
    #[error("no answer within {0:?}")]
    Time(Duration),
    #[error("invalid request: {0}")]
    Request(#[from] hyper::http::Error),
}

/// The beginning of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) trailers: HeaderMap,
    pub(super) body: Vec<u8>,
}

pub(super) struct Client {
    endpoint: Endpoint,
    headers: Vec<Header>,
    tls: Option<TlsConnector>,
    time_max: Duration,
    connection: Option<Connection>,
}

struct Connection {
    sender: Sender,
    /// Task that drives the connection, and ends with it.
    _driver: JoinSet<()>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(super) fn new(
        endpoint: Endpoint,
        headers: Vec<Header>,
        tls: Option<Arc<tokio_rustls::rustls::ClientConfig>>,
        time_max: Duration,
    ) -> Self {
        Self { endpoint, headers, tls: tls.map(TlsConnector::from), time_max, connection: None }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends a request. After a failure, the next request uses a new connection.
    pub(super) async fn post(&mut self, body: &Bytes) -> Result<Answer, Failure> {
        let time_max = self.time_max;
        let answer = timeout(time_max, self.attempt(body)).await.unwrap_or(Err(Failure::Time(time_max)));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    async fn attempt(&mut self, body: &Bytes) -> Result<Answer, Failure> {
        let request = self.request(body)?;
        // Servers close connections that are idle between windows, possibly just now.
        if let Some(mut connection) = self.connection.take()
            && connection.sender.is_open().await
            && let Ok(answer) = connection.sender.send(request.clone()).await
        {
            return self.receive(connection, answer).await;
        }
        let mut connection = self.connect().await?;
        let answer = connection.sender.send(request).await?;
        self.receive(connection, answer).await
    }

    async fn receive(&mut self, connection: Connection, answer: Response<Incoming>) -> Result<Answer, Failure> {
        let (answer, is_whole) = read(answer).await?;
        self.connection = is_whole.then_some(connection);
        Ok(answer)
    }

    fn request(&self, body: &Bytes) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let Endpoint { backend, is_grpc, is_tls, path, .. } = &self.endpoint;
        let mut request = Request::builder().method(Method::POST).header(USER_AGENT, AGENT);
        if *is_grpc {
            let scheme = if *is_tls { "https" } else { "http" };
            let uri =
                Uri::builder().scheme(scheme).authority(self.endpoint.authority()).path_and_query(path).build()?;
            request = request.version(Version::HTTP_2).uri(uri).header(TE, "trailers");
            request = request.header(CONTENT_TYPE, "application/grpc").header("grpc-accept-encoding", "identity");
            request = request.header("grpc-timeout", format!("{}m", self.time_max.as_millis()));
            if *backend == Backend::Otlp {
                request = request.header("grpc-encoding", "gzip");
            }
        } else {
            request = request.uri(path).header(HOST, self.endpoint.authority());
            request = match backend {
                Backend::Otlp => {
                    request.header(CONTENT_TYPE, "application/x-protobuf").header(CONTENT_ENCODING, "gzip")
                }
                _ => request.header(CONTENT_TYPE, "application/proto").header("connect-protocol-version", "1"),
            };
        }
        let mut request = request.body(Full::new(if *is_grpc { framed(*backend, body) } else { body.clone() }))?;
        for Header { name, value } in &self.headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        Ok(request)
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let Endpoint { host, port, .. } = &self.endpoint;
        let stream = http::connect(host, *port, self.tls.as_ref()).await?;
        Ok(self.handshake(stream).await?)
    }

    async fn handshake(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Connection, hyper::Error> {
        let stream = TokioIo::new(stream);
        let mut driver = JoinSet::new();
        // The sender reports why a connection ended.
        let sender = if self.endpoint.is_grpc {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            driver.spawn(async { drop(connection.await) });
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await?;
            driver.spawn(async { drop(connection.await) });
            Sender::Http1(sender)
        };
        Ok(Connection { sender, _driver: driver })
    }
}

impl Sender {
    async fn is_open(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => sender.send_request(request).await,
            Self::Http2(sender) => sender.send_request(request).await,
        }
    }
}

/// Reads an answer up to a limit. Returns whether it was read completely: only then can the connection be used again.
async fn read(answer: Response<Incoming>) -> Result<(Answer, bool), hyper::Error> {
    let (head, mut incoming) = answer.into_parts();
    let mut answer =
        Answer { status: head.status, headers: head.headers, trailers: HeaderMap::new(), body: Vec::new() };
    while let Some(frame) = incoming.frame().await {
        match frame?.into_data() {
            Ok(data) if answer.body.len() + data.len() > ANSWER_BYTES_MAX => return Ok((answer, false)),
            Ok(data) => answer.body.extend(data),
            Err(frame) => answer.trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    Ok((answer, true))
}

fn framed(backend: Backend, body: &Bytes) -> Bytes {
    let is_compressed = u8::from(backend == Backend::Otlp);
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut framed = Vec::with_capacity(FRAME_BYTES + body.len());
    framed.push(is_compressed);
    framed.extend(length.to_be_bytes());
    framed.extend(body);
    framed.into()
}

impl Answer {
    /// Value of a header, or of a trailer of that name.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let field: Option<&HeaderValue> = self.trailers.get(name).or_else(|| self.headers.get(name));
        field.and_then(|value| value.to_str().ok())
    }

    /// The message after gRPC's frame, uncompressed.
    pub(super) fn grpc_message(&self) -> &[u8] {
        self.body.get(FRAME_BYTES..).unwrap_or_default()
    }
}
