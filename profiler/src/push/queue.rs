//! Requests that wait for the server, in order. While the server accepts them, they stay in memory; after the first
//! failure, they are written to a folder, which survives a restart. When the limit is exceeded, the oldest are dropped.
//!
//! A file has a header of 24 bytes (magic, profiles, checksum and length of the body), then the body. Its name is its
//! number in the order.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use heapbpf_linux::files::{Replacement, TEMPORARY_PREFIX};
use heapbpf_linux::folder::Folder;
use hyper::body::Bytes;
use rustix::process::geteuid;

use super::payload::Payload;
use super::status::{DropReason, Drops};

const MAGIC: [u8; 8] = *b"heapbpf\x01";
const HEADER_BYTES: usize = 24;
const EXTENSION: &str = ".push";
/// Maximum size of requests in memory that cannot be written to the folder.
const MEMORY_BYTES_MAX: u64 = 8 << 20;

#[derive(Debug)]
struct Entry {
    number: u64,
    profiles: u32,
    /// Size of the body and, on disk, the header.
    bytes: u64,
    /// Body of the request; `None` if it is on disk.
    body: Option<Bytes>,
}

/// A request to send.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) number: u64,
    pub(super) profiles: u32,
    pub(super) body: Bytes,
}

#[derive(Debug)]
pub(super) struct Queue {
    folder: Folder,
    /// Lock of the folder, so that no other process uses it.
    _lock: OwnedFd,
    bytes_max: u64,
    entries: VecDeque<Entry>,
    next: u64,
    bytes: u64,
    /// Whether the last request failed: new requests are written to the folder at once.
    spills: bool,
    drops: Drops,
    /// Number of the request that is being sent, and the reason for dropping it meanwhile, if it was dropped.
    sending: Option<(u64, Option<DropReason>)>,
    /// Error that occurred when a file was written or read.
    error: Option<io::Error>,
}

impl Queue {
    /// Opens the folder `name` within `parent`, and creates both if needed.
    pub(super) fn open(parent: &Path, name: &str, bytes_max: u64) -> io::Result<Self> {
        let parent = private(Folder::create(parent)?)?;
        let folder = private(parent.enter(name)?)?;
        let lock = folder.lock().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::other("another heapbpf uses it for the same URL"),
            _ => error,
        })?;
        // A file is created to fail now rather than after the first failed request.
        drop(Replacement::create_at(folder.place("test")?, 0o600)?);
        let mut queue = Self {
            folder,
            _lock: lock,
            bytes_max,
            entries: VecDeque::new(),
            next: 0,
            bytes: 0,
            spills: false,
            drops: Drops::default(),
            sending: None,
            error: None,
        };
        queue.scan()?;
        queue.trim();
        Ok(queue)
    }

    /// Finds the requests of an earlier run, without reading them.
    fn scan(&mut self) -> io::Result<()> {
        let mut found = Vec::new();
        for (name, _) in self.folder.entries()? {
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(TEMPORARY_PREFIX) {
                // A crash left the file incomplete.
                let _ = self.folder.remove(name.as_ref());
                continue;
            }
            let number = name.strip_suffix(EXTENSION).filter(|number| number.len() == 20);
            // The highest number is not valid, because another one follows each.
            let number = number.and_then(|number| number.parse::<u64>().ok()).filter(|number| *number < u64::MAX);
            let Some(number) = number else { continue };
            match self.header(number) {
                Ok((profiles, bytes)) => found.push(Entry { number, profiles, bytes, body: None }),
                Err(_) => {
                    self.drops.add(DropReason::Corrupt, 1);
                    self.delete(number);
                }
            }
        }
        found.sort_by_key(|entry| entry.number);
        self.next = found.last().map_or(0, |last| last.number + 1);
        self.bytes = found.iter().map(|entry| entry.bytes).sum();
        self.entries = found.into();
        // Newer requests must not overtake them in memory.
        self.spills = !self.entries.is_empty();
        Ok(())
    }

    /// Reads profiles and size of a file from its header.
    fn header(&self, number: u64) -> io::Result<(u32, u64)> {
        let mut file = self.folder.open(&file_name(number))?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)?;
        let Header { profiles, length, .. } = Header::parse(&header).ok_or(io::ErrorKind::InvalidData)?;
        let bytes = length.saturating_add(HEADER_BYTES as u64);
        if file.metadata()?.len() == bytes { Ok((profiles, bytes)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    pub(super) fn push(&mut self, payload: Payload) {
        let Payload { profiles, body } = payload;
        let bytes = body.len() as u64;
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.entries.push_back(Entry { number, profiles, bytes, body: Some(body.into()) });
        if self.spills {
            self.spill();
        }
        self.trim();
    }

    /// Returns the oldest request. Damaged files are removed and counted.
    pub(super) fn front(&mut self) -> Option<Pending> {
        loop {
            let Entry { number, profiles, body, .. } = self.entries.front()?;
            let (number, profiles) = (*number, *profiles);
            let body = match body {
                Some(body) => Ok(body.clone()),
                None => self.read(number),
            };
            match body {
                Ok(body) => {
                    self.sending = Some((number, None));
                    return Some(Pending { number, profiles, body });
                }
                Err(error) => {
                    self.error = Some(error);
                    self.drop_front(DropReason::Corrupt);
                }
            }
        }
    }

    /// Removes a request that was sent or refused. Returns whether it was in the queue: it may have been dropped meanwhile.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let is_front = self.entries.front().is_some_and(|entry| entry.number == number);
        if is_front {
            self.pop();
        }
        self.spills &= !self.entries.is_empty();
        is_front
    }

    /// Takes back the drop of a request that was dropped while it was being sent, and has arrived.
    pub(super) fn retract_drop(&mut self, request: &Pending) {
        if let Some((number, Some(reason))) = self.sending.take_if(|(number, _)| *number == request.number) {
            tracing::debug!(number, ?reason, "a request that was dropped has arrived");
            self.drops.retract(reason, request.profiles.into());
        }
    }

    /// Writes requests to the folder until the queue is empty again: after a failure, and at the end. Requests that cannot be
    /// written stay in memory, within a limit.
    pub(super) fn spill(&mut self) {
        self.spills = true;
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            let Some(body) = entry.body.clone() else { continue };
            match self.write(entry.number, entry.profiles, &body) {
                Ok(()) => {
                    let entry = &mut self.entries[index];
                    entry.body = None;
                    entry.bytes += HEADER_BYTES as u64;
                    self.bytes += HEADER_BYTES as u64;
                }
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
        while self.memory_bytes() > MEMORY_BYTES_MAX {
            self.drop_front(DropReason::DiskError);
        }
        self.trim();
    }

    /// Writes the remaining requests to the folder, and counts those that stay in memory as dropped.
    pub(super) fn close(&mut self) {
        self.spill();
        while let Some(index) = self.entries.iter().position(|entry| entry.body.is_some()) {
            let lost = self.entries.remove(index);
            let lost = lost.expect("its position was found");
            self.bytes -= lost.bytes;
            self.drops.add(DropReason::DiskError, lost.profiles.into());
        }
    }

    pub(super) fn profiles(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.profiles)).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn drops(&self) -> Drops {
        self.drops
    }

    pub(super) fn count_drop(&mut self, reason: DropReason, profiles: u64) {
        self.drops.add(reason, profiles);
    }

    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    fn memory_bytes(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.body.is_some()).map(|entry| entry.bytes).sum()
    }

    fn trim(&mut self) {
        while self.bytes > self.bytes_max && !self.entries.is_empty() {
            self.drop_front(DropReason::QueueFull);
        }
    }

    fn drop_front(&mut self, reason: DropReason) {
        if let (Some((number, dropped)), Some(front)) = (&mut self.sending, self.entries.front())
            && *number == front.number
        {
            *dropped = Some(reason);
        }
        if let Some(profiles) = self.pop() {
            self.drops.add(reason, profiles.into());
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let Entry { number, profiles, bytes, body } = self.entries.pop_front()?;
        self.bytes -= bytes;
        if body.is_none() {
            self.delete(number);
        }
        Some(profiles)
    }

    fn delete(&self, number: u64) {
        let _ = self.folder.remove(file_name(number).as_ref());
    }

    fn read(&self, number: u64) -> io::Result<Bytes> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a file of the queue is damaged");
        let mut bytes = Vec::new();
        self.folder.open(&file_name(number))?.take(self.bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        let (header, body) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(damaged)?;
        let header = Header::parse(header).ok_or_else(damaged)?;
        if header.length != body.len() as u64 || header.checksum != crc32fast::hash(body) {
            return Err(damaged());
        }
        Ok(Bytes::from(bytes).slice(HEADER_BYTES..))
    }

    fn write(&self, number: u64, profiles: u32, body: &[u8]) -> io::Result<()> {
        let file = Replacement::create_at(self.folder.place(&file_name(number))?, 0o600)?;
        let mut out = file.file();
        out.write_all(&MAGIC)?;
        out.write_all(&profiles.to_le_bytes())?;
        out.write_all(&crc32fast::hash(body).to_le_bytes())?;
        out.write_all(&(body.len() as u64).to_le_bytes())?;
        out.write_all(body)?;
        file.commit().map(drop)
    }
}

struct Header {
    profiles: u32,
    checksum: u32,
    length: u64,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
        let (profiles, rest) = rest.split_first_chunk()?;
        let (checksum, rest) = rest.split_first_chunk()?;
        let (length, _) = rest.split_first_chunk()?;
        (magic == MAGIC).then(|| Self {
            profiles: u32::from_le_bytes(*profiles),
            checksum: u32::from_le_bytes(*checksum),
            length: u64::from_le_bytes(*length),
        })
    }
}

fn file_name(number: u64) -> String {
    format!("{number:020}{EXTENSION}")
}

/// Makes a folder private: profiles contain paths and names of functions. In `/tmp`, another user may have created the folder.
fn private(folder: Folder) -> io::Result<Folder> {
    let status = folder.stat()?;
    if status.st_uid != geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    if status.st_mode & 0o077 != 0 {
        let error = "other users have access to it; run `chmod 700` on it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
    }
    Ok(folder)
}
