//! The server: its sockets, its thread and its connections.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use heapbpf_report::Presentation;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::geteuid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::access::{Access, Peer};
use super::address::Address;
use super::events;
use super::respond::Service;
use super::socket::Socket;
use super::source::Source;
use super::stream::Paced;
use super::token::Token;
use crate::live::Feed;
use crate::push::PushStatus;

/// Maximum number of connections of a socket.
const CONNECTIONS_MAX: u32 = 64;

/// Maximum number of connections beyond these, which receive an error.
const REFUSALS_MAX: usize = 256;

/// Time for which the server waits for the end of a client's data.
const LINGER: Duration = Duration::from_secs(2);

/// Time from the connection, or the previous response, to the end of a request's head. Longer than the 15 s between the scrapes
/// of Prometheus.
const HEAD_TIME_MAX: Duration = Duration::from_secs(20);
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: usize = 16 << 10;
const BUFFER_BYTES: usize = 64 << 10;

/// Time within which pages that are connected at the end fetch the last document.
const LAST_FETCH: Duration = Duration::from_millis(1500);

/// Time for responses that are being sent at the end.
const GRACE: Duration = Duration::from_secs(2);

/// Number of threads that render reports.
const WORKERS: usize = 2;

/// Increment of the niceness of the server's threads: the session's threads must not wait for them.
const NICENESS: i32 = 10;

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) addresses: Vec<Address>,
    pub(crate) token: Option<Token>,
    pub(crate) tls: Option<TlsAcceptor>,
    /// Names of this machine that requests may have in their `Host` header.
    pub(crate) names: Vec<String>,
}

/// A server that listens, and does not answer yet.
pub(crate) struct Server {
    sockets: Vec<Socket>,
    access: Access,
    tls: Option<TlsAcceptor>,
}

impl Server {
    /// Binds the sockets. Fails where an address is in use or other machines could connect without a token.
    pub(crate) fn bind(config: Config) -> Result<Self> {
        let Config { addresses, token, tls, names } = config;
        let bind =
            |address: &Address| Socket::bind(address).map_err(|error| anyhow!("cannot listen on `{address}`: {error}"));
        let sockets = addresses.iter().map(bind).collect::<Result<_>>()?;
        Ok(Self { sockets, access: Access { token, names }, tls })
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.sockets.iter().map(|socket| socket.url(self.tls.is_some())).collect()
    }

    /// Starts the thread that answers. `pushed` are the counters of `--push`, if it is used.
    pub(crate) fn start(
        self,
        feed: Feed,
        presentation: Presentation,
        pushed: Option<watch::Receiver<PushStatus>>,
    ) -> Result<Running> {
        let (stop, stopped) = watch::channel(false);
        let source = Source::new(feed, pushed);
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WORKERS)
            .on_thread_start(step_back)
            .build()
            .context("cannot start tokio")?;
        let thread = std::thread::Builder::new().name("server".to_owned()).spawn(move || {
            step_back();
            if let Err(error) = runtime.block_on(self.run(source, presentation, stopped)) {
                tracing::error!("the server has stopped: {error}");
            }
            // A report for which no client waits is abandoned.
            runtime.shutdown_background();
        })?;
        Ok(Running { stop, thread: Some(thread) })
    }

    async fn run(
        self,
        source: Source,
        presentation: Presentation,
        mut stopped: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let service = Arc::new(Service::new(self.access, source, presentation));
        let (close, closing) = watch::channel(false);
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let (mut files, mut all_slots) = (Vec::new(), Vec::new());
        for socket in self.sockets {
            // Each socket has slots of its own, so that clients of one do not lock out those of another.
            let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
            all_slots.push(Arc::clone(&slots));
            let acceptor = Acceptor {
                service: Arc::clone(&service),
                slots,
                refusals: Arc::clone(&refusals),
                tls: self.tls.clone(),
                closing: closing.clone(),
            };
            match socket {
                Socket::Tcp(listener, _) => {
                    tokio::spawn(acceptor.accept_tcp(TcpListener::from_std(listener)?));
                }
                Socket::Unix(listener, file) => {
                    files.push(file);
                    tokio::spawn(acceptor.accept_unix(UnixListener::from_std(listener)?));
                }
            }
        }
        let (source, renders, updates) = (&service.source, &service.renders, &service.updates);
        tokio::spawn(events::follow(Arc::clone(source), Arc::clone(renders), Arc::clone(updates)));
        closed(&mut stopped).await;
        let has_pages = service.streams() > 0;
        events::end(&service.updates);
        if has_pages {
            sleep(LAST_FETCH).await;
        }
        close.send_replace(true);
        drop(files);
        let idle = async {
            for slots in &all_slots {
                let _ = slots.acquire_many(CONNECTIONS_MAX).await;
            }
        };
        let _ = timeout(GRACE, idle).await;
        Ok(())
    }
}

/// Lowers the priority of this thread, so that other threads come first.
fn step_back() {
    if let Err(error) = rustix::process::nice(NICENESS) {
        debug!("cannot change the niceness: {error}");
    }
}

/// A running server, which ends when it is dropped: pages are notified, and responses that are being sent are completed within
/// seconds.
pub(crate) struct Running {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("internal error: the server panicked; please report it");
        }
    }
}

#[derive(Clone)]
struct Acceptor {
    service: Arc<Service>,
    slots: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    tls: Option<TlsAcceptor>,
    closing: watch::Receiver<bool>,
}

impl Acceptor {
    async fn accept_tcp(mut self, listener: TcpListener) {
        while let Some(accepted) = self.next(listener.accept()).await {
            let Some((stream, _)) = pause_on_error(accepted).await else { continue };
            // Events are small, and must not wait for further data.
            let _ = stream.set_nodelay(true);
            match (self.slot(), self.tls.clone()) {
                (Some(slot), Some(tls)) => {
                    let server = self.clone();
                    tokio::spawn(async move {
                        match timeout(HANDSHAKE_TIME_MAX, tls.accept(stream)).await {
                            Ok(Ok(stream)) => server.serve(stream, Peer::Tcp, slot).await,
                            Ok(Err(error)) => debug!("TLS: {error}"),
                            Err(_) => debug!("TLS: the handshake took too long"),
                        }
                    });
                }
                (Some(slot), None) => drop(tokio::spawn(self.clone().serve(stream, Peer::Tcp, slot))),
                (None, None) => self.refuse(stream, BUSY),
                // An error cannot be sent without a handshake.
                (None, Some(_)) => {}
            }
        }
    }

    async fn accept_unix(mut self, listener: UnixListener) {
        while let Some(accepted) = self.next(listener.accept()).await {
            let Some((stream, _)) = pause_on_error(accepted).await else { continue };
            match self.slot() {
                _ if !is_trusted(&stream) => self.refuse(stream, FOREIGN),
                Some(slot) => drop(tokio::spawn(self.clone().serve(stream, Peer::Trusted, slot))),
                None => self.refuse(stream, BUSY),
            }
        }
    }

    /// Waits for a connection; `None` when the server ends.
    async fn next<T>(&mut self, accept: impl Future<Output = io::Result<T>>) -> Option<io::Result<T>> {
        tokio::select! {
            accepted = accept => Some(accepted),
            () = closed(&mut self.closing) => None,
        }
    }

    fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    async fn serve(mut self, stream: impl AsyncRead + AsyncWrite + Unpin, peer: Peer, _slot: OwnedSemaphorePermit) {
        let service = Arc::clone(&self.service);
        let respond = service_fn(move |request| {
            let service = Arc::clone(&service);
            Box::pin(async move { Ok::<_, std::convert::Infallible>(service.respond(request, peer).await) })
        });
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(Paced::new(stream)), respond);
        let result = tokio::select! {
            result = poll_fn(|context| connection.poll_without_shutdown(context)) => result,
            () = closed(&mut self.closing) => {
                Pin::new(&mut connection).graceful_shutdown();
                poll_fn(|context| connection.poll_without_shutdown(context)).await
            }
        };
        if let Err(error) = result {
            debug!("a connection ended: {error}");
        }
        let mut stream = connection.into_parts().io.into_inner();
        tokio::select! {
            _ = timeout(LINGER, end(&mut stream)) => {}
            () = closed(&mut self.closing) => {}
        }
    }

    /// Refuses a connection: sends this response, whatever is requested.
    fn refuse(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, response: &'static str) {
        let Ok(slot) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        tokio::spawn(async move {
            let exchange = async {
                stream.write_all(response.as_bytes()).await?;
                end(&mut stream).await
            };
            let _ = timeout(LINGER, exchange).await;
            drop(slot);
        });
    }
}

const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 5\r\n\
    connection: close\r\ncontent-length: 21\r\n\r\ntoo many connections\n";
const FOREIGN: &str = "HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\n\
    connection: close\r\ncontent-length: 42\r\n\r\nonly root and heapbpf's user have access.\n";

/// Ends a connection. Closing it with unread data would reset it, before the client has read the response.
async fn end(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // Without a sender, the server has ended.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Whether the client is root or of heapbpf's user, as the kernel states.
fn is_trusted(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

/// Pauses after an error: without descriptors, `accept` would fail at once, again and again.
async fn pause_on_error<T>(accepted: io::Result<T>) -> Option<T> {
    match accepted {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            debug!("cannot accept a connection: {error}");
            sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_responses_have_their_length() {
        for response in [BUSY, FOREIGN] {
            let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
        }
    }
}
