//! Bodies of responses. Slow readers of the same render share the render's bytes.

use std::fmt;
use std::io::{self, Cursor, Read as _};
use std::pin::Pin;
use std::task::{Context, Poll};

use flate2::read::GzDecoder;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::mpsc::Receiver;

/// Number of bytes that are decompressed at once.
const CHUNK_BYTES: usize = 64 << 10;

pub(super) enum Body {
    /// The whole body; `None` once it has been sent.
    Whole(Option<Bytes>),
    /// Compressed bytes for a client that takes plain ones, and the number of plain bytes that are left. They are decompressed as
    /// the client reads, so that a slow client takes no more memory than others.
    Unpacked(Box<GzDecoder<Cursor<Bytes>>>, u64),
    Stream(Receiver<Bytes>),
}

impl Body {
    pub(super) fn unpacked(packed: Bytes, plain_bytes: u64) -> Self {
        Self::Unpacked(Box::new(GzDecoder::new(Cursor::new(packed))), plain_bytes)
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self::Whole(Some(bytes.into()))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Body").field(&self.size_hint()).finish()
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Unpacked(_, 0) => Poll::Ready(None),
            Self::Unpacked(decoder, left) => {
                let mut chunk = Vec::with_capacity(CHUNK_BYTES);
                let result = match decoder.take(CHUNK_BYTES as u64).read_to_end(&mut chunk) {
                    Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(bytes) => {
                        *left = left.saturating_sub(bytes as u64);
                        Ok(Frame::data(chunk.into()))
                    }
                    Err(error) => Err(error),
                };
                Poll::Ready(Some(result))
            }
            Self::Stream(parts) => parts.poll_recv(context).map(|part| part.map(|part| Ok(Frame::data(part)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Unpacked(_, 0))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Unpacked(_, left) => SizeHint::with_exact(*left),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::task::Waker;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn read(mut body: Body) -> Vec<u8> {
        let mut context = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        let mut left = body.size_hint().exact().expect("known");
        while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut context) {
            let data = frame.expect("readable").into_data().expect("data");
            assert!(data.len() <= CHUNK_BYTES);
            left -= data.len() as u64;
            assert_eq!(body.size_hint().exact(), Some(left));
            all.extend_from_slice(&data);
        }
        assert!(body.is_end_stream());
        all
    }

    #[test]
    fn unpacked_bodies_have_the_plain_bytes() {
        for size in [1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1] {
            let plain: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).expect("small")).collect();
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&plain).expect("memory");
            let packed = encoder.finish().expect("memory");
            assert!(read(Body::unpacked(packed.into(), plain.len() as u64)) == plain, "{size}");
        }
        assert_eq!(read(Body::from("text")), b"text");
    }

    #[test]
    fn truncated_data_is_an_error() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&[1; 100]).expect("memory");
        let mut packed = encoder.finish().expect("memory");
        packed.truncate(packed.len() - 9);
        let mut body = Body::unpacked(packed.into(), 100);
        let mut context = Context::from_waker(Waker::noop());
        let frame = Pin::new(&mut body).poll_frame(&mut context);
        assert!(matches!(frame, Poll::Ready(Some(Err(_)))));
    }
}
