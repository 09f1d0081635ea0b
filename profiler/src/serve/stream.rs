//! Connections whose peers must keep reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Time for which a peer may block writes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of bytes that earn a second of [`PATIENCE`] again: a slower peer is disconnected in the end.
const BYTES_PER_SECOND_MIN: u32 = 16 << 10;

/// A stream that fails writes to a peer that reads too slowly, so that the peer does not keep its connection. Waiting between
/// responses costs no time.
pub(super) struct Paced<S> {
    stream: S,
    /// Remaining part of [`PATIENCE`].
    left: Duration,
    /// While a write is blocked: since when, and the timer for the end of the patience.
    blocked: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, left: PATIENCE, blocked: None }
    }

    /// Accounts for a write: as long as it is pending, time passes.
    fn pace(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let Poll::Ready(result) = written else {
            let left = self.left;
            let (_, timer) = self.blocked.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
            ready!(timer.as_mut().poll(context));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")));
        };
        if let Some((since, _)) = self.blocked.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        if let Ok(bytes) = &result {
            let bytes = u32::try_from(*bytes).unwrap_or(u32::MAX);
            self.left = PATIENCE.min(self.left + Duration::from_secs(1) * bytes / BYTES_PER_SECOND_MIN);
        }
        Poll::Ready(result)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pace(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.pace(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // Also paced, because TLS writes here too.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context).map_ok(|()| 0);
        self.pace(context, flushed).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context).map_ok(|()| 0);
        self.pace(context, shut).map_ok(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::serve::testing::run;

    #[test]
    fn peers_that_read_nothing_are_disconnected() {
        run(async {
            let (near, _far) = duplex(1024);
            let mut near = Paced::new(near);
            let start = Instant::now();
            let error = near.write_all(&[0; 2048]).await.expect_err("nobody reads");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!((PATIENCE..PATIENCE + Duration::from_secs(1)).contains(&start.elapsed()));
        });
    }

    /// Reads this often. Returns whether all was sent.
    async fn send(bytes: usize, piece: usize, pause: Duration) -> bool {
        let (near, mut far) = duplex(1024);
        let mut near = Paced::new(near);
        let reader = async {
            let mut buffer = vec![0; piece];
            while far.read_exact(&mut buffer).await.is_ok() {
                sleep(pause).await;
            }
        };
        let writer = async {
            let result = near.write_all(&vec![0; bytes]).await;
            drop(near);
            result.is_ok()
        };
        tokio::join!(reader, writer).1
    }

    #[test]
    fn the_rate_decides_and_not_single_reads() {
        run(async {
            // 1 KiB in 10 s each: a trickle.
            assert!(!send(100 << 10, 1 << 10, Duration::from_secs(10)).await);
            // 32 KiB/s, for far longer than the patience.
            assert!(send(4 << 20, 1 << 10, Duration::from_millis(31)).await);
        });
    }

    #[test]
    fn idle_time_is_free() {
        run(async {
            let (near, mut far) = duplex(1024);
            let mut near = Paced::new(near);
            for _ in 0..10 {
                near.write_all(&[0; 100]).await.expect("there is room");
                far.read_exact(&mut [0; 100]).await.expect("it was sent");
                sleep(2 * PATIENCE).await;
            }
        });
    }
}
