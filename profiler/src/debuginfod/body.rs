//! The body of an answer: written to a file, decompressed if the server has compressed it without a request.

use std::fs::File;
use std::io::{self, Write};

use flate2::write::MultiGzDecoder;
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;

use super::settings::Server;
use super::transfer::Failure;

pub(super) enum Body<'a> {
    Plain(Bounded<'a>),
    Gzip(Box<MultiGzDecoder<Bounded<'a>>>),
}

impl<'a> Body<'a> {
    /// Creates a writer of at most `bytes_max` to the file.
    pub(super) fn new(headers: &HeaderMap, server: &Server, file: &'a File, bytes_max: u64) -> Result<Self, Failure> {
        let bounded = Bounded { file, bytes_max, written: 0, is_exceeded: false };
        let encoding = headers.get(CONTENT_ENCODING).map(|encoding| encoding.as_bytes().to_ascii_lowercase());
        match encoding.as_deref() {
            None | Some(b"" | b"identity") => Ok(Self::Plain(bounded)),
            Some(b"gzip" | b"x-gzip") => Ok(Self::Gzip(Box::new(MultiGzDecoder::new(bounded)))),
            Some(_) => Err(Failure::Encoding(server.to_string())),
        }
    }

    pub(super) fn is_compressed(&self) -> bool {
        matches!(self, Self::Gzip(_))
    }

    /// Number of bytes in the file.
    pub(super) fn written(&self) -> u64 {
        self.bounded().written
    }

    pub(super) fn write(&mut self, data: &[u8], server: &Server) -> Result<(), Failure> {
        let written = match self {
            Self::Plain(file) => file.write_all(data),
            Self::Gzip(decoder) => decoder.write_all(data),
        };
        self.explain(written, server)
    }

    /// Checks that a compressed file has its end, and that no byte is missing of `total`, if that is known.
    pub(super) fn finish(mut self, total: Option<u64>, server: &Server) -> Result<(), Failure> {
        let finished = match &mut self {
            Self::Plain(_) => Ok(()),
            Self::Gzip(decoder) => decoder.try_finish(),
        };
        self.explain(finished, server)?;
        let bytes = self.written();
        match total.filter(|total| bytes < *total) {
            Some(total) => {
                Err(Failure::Connection(server.to_string(), format!("it ended after {bytes} of {total} bytes")))
            }
            None => Ok(()),
        }
    }

    fn explain(&self, result: io::Result<()>, server: &Server) -> Result<(), Failure> {
        let Bounded { bytes_max, is_exceeded, .. } = *self.bounded();
        match result {
            Ok(()) => Ok(()),
            Err(_) if is_exceeded => Err(Failure::Large(bytes_max)),
            // The decoder's own errors have no number of the system.
            Err(error) if self.is_compressed() && error.raw_os_error().is_none() => {
                Err(Failure::Encoding(server.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn bounded(&self) -> &Bounded<'a> {
        match self {
            Self::Plain(file) => file,
            Self::Gzip(decoder) => decoder.get_ref(),
        }
    }
}

pub(super) struct Bounded<'a> {
    file: &'a File,
    bytes_max: u64,
    written: u64,
    is_exceeded: bool,
}

impl Write for Bounded<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() as u64 > self.bytes_max - self.written {
            self.is_exceeded = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let count = self.file.write(data)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(data).expect("vectors accept all bytes");
        encoder.finish().expect("vectors accept all bytes")
    }

    /// What is in the file after these parts of a body.
    fn received<'a>(
        encoding: Option<&str>,
        parts: impl IntoIterator<Item = &'a [u8]>,
        bytes_max: u64,
    ) -> Result<Vec<u8>, Failure> {
        let server: Server = "http://localhost".parse().expect("an address");
        let mut headers = HeaderMap::new();
        headers.extend(encoding.map(|encoding| (CONTENT_ENCODING, encoding.parse().expect("a value"))));
        let mut file = tempfile::tempfile().expect("a file");
        let mut body = Body::new(&headers, &server, &file, bytes_max)?;
        parts.into_iter().try_for_each(|part| body.write(part, &server))?;
        body.finish(None, &server)?;
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("readable");
        Ok(bytes)
    }

    #[test]
    fn bodies_that_end_early_are_refused() {
        let server: Server = "http://localhost".parse().expect("an address");
        for (total, expected) in [(None, true), (Some(3), true), (Some(4), false)] {
            let file = tempfile::tempfile().expect("a file");
            let mut body = Body::new(&HeaderMap::new(), &server, &file, 100).expect("plain");
            body.write(b"abc", &server).expect("there is room");
            assert_eq!(body.finish(total, &server).is_ok(), expected, "{total:?}");
        }
    }

    #[test]
    fn compressed_bodies_are_decompressed() {
        let data: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let bytes_max = data.len() as u64;
        let packed = packed(&data);
        for encoding in ["gzip", "GZIP", "x-gzip"] {
            assert!(received(Some(encoding), packed.chunks(7), bytes_max).expect("complete") == data, "{encoding}");
        }
        let two = [&*packed, &*packed];
        assert_eq!(received(Some("gzip"), two, 2 * bytes_max).expect("two members").len(), 2 * data.len());
        for encoding in [None, Some("identity")] {
            assert!(received(encoding, data.chunks(1000), bytes_max).expect("complete") == data, "{encoding:?}");
        }
    }

    #[test]
    fn a_body_is_limited_by_what_it_becomes() {
        let bomb = packed(&vec![0; 10 << 20]);
        assert!(bomb.len() < 20_000, "{}", bomb.len());
        assert!(matches!(received(Some("gzip"), [&*bomb], 1 << 20), Err(Failure::Large(1_048_576))));
        assert_eq!(received(Some("gzip"), [&*bomb], 10 << 20).expect("within the limit").len(), 10 << 20);
        assert!(matches!(received(None, [&[0; 11][..]], 10), Err(Failure::Large(10))));
    }

    #[test]
    fn other_and_damaged_encodings_are_refused() {
        let packed = packed(b"some text");
        let refused = |encoding, body: &[u8]| matches!(received(Some(encoding), [body], 1 << 20), Err(Failure::Encoding(server)) if server.contains("localhost"));
        assert!(refused("br", &packed) && refused("gzip, gzip", &packed));
        assert!(refused("gzip", b"no gzip at all"));
        assert!(refused("gzip", &packed[..packed.len() - 1]), "it has no end");
        let mut damaged = packed.clone();
        let crc = damaged.len() - 8;
        damaged[crc] ^= 1;
        assert!(refused("gzip", &damaged));
    }
}
