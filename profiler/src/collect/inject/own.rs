//! The mapping that an injected thread has for the length of its calls: arguments in memory, and the frame with which it restores
//! itself. Only the calls that create and remove the mapping have this frame elsewhere ([`place`](super::place)).

use std::io;
use std::os::unix::fs::FileExt;

use heapbpf_linux::arch::FRAME_ALIGNMENT;
use heapbpf_linux::memory::page_bytes;
use heapbpf_linux::proc::writable;

use super::{InjectedThread, WayBack};
use crate::collect::process::ForkError;

/// Size of the space for arguments of system calls.
const SCRATCH_BYTES: usize = 1024;

impl InjectedThread {
    /// Prepares the thread for calls. `find` returns where a frame of a given size can be written.
    pub(crate) fn enter(
        &mut self,
        way_back: Option<&WayBack>,
        find: &dyn Fn(u64) -> Option<u64>,
    ) -> Result<(), ForkError> {
        let failed = |pid| move |error| ForkError::Trace(pid, error);
        if let Some(way_back) = way_back {
            self.prepare_way_back(way_back, find)?;
        }
        self.map_own().map_err(failed(self.pid))
    }

    /// Writes the frame for the first call.
    pub(crate) fn prepare_way_back(
        &mut self,
        way_back: &WayBack,
        find: &dyn Fn(u64) -> Option<u64>,
    ) -> Result<(), ForkError> {
        // The registers are of an unknown form.
        let Some(frame) = self.frame(0, way_back.restorer) else { return Ok(()) };
        let size_bytes = frame.len() as u64;
        let address = find(size_bytes).ok_or(ForkError::NoStack(self.pid))?;
        self.write_frame(address, way_back.restorer).map_err(|error| {
            tracing::debug!("process {}: its stack cannot be written to: {error}", self.pid);
            ForkError::NoStack(self.pid)
        })?;
        self.outer = Some((address, size_bytes));
        Ok(())
    }

    fn frame(&self, address: u64, restorer: u64) -> Option<Vec<u8>> {
        let words = self.saved.signal_frame(address, restorer, self.blocked, &self.extended)?;
        Some(words.into_iter().flat_map(u64::to_ne_bytes).collect())
    }

    /// Writes a frame, with which the thread restores itself from the next call on.
    fn write_frame(&mut self, address: u64, restorer: u64) -> io::Result<()> {
        let frame = self.frame(address, restorer).ok_or(io::ErrorKind::InvalidData)?;
        self.write(address, &frame)?;
        self.way_back = Some((address, restorer));
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        writable::memory(self.tracee.pid())?.write_all_at(bytes, address)
    }

    fn map_own(&mut self) -> io::Result<()> {
        let frame_bytes = self.outer.map_or(0, |(_, size_bytes)| size_bytes);
        let size_bytes = (SCRATCH_BYTES as u64 + frame_bytes).next_multiple_of(page_bytes());
        let protection = (libc::PROT_READ | libc::PROT_WRITE).unsigned_abs().into();
        // A private mapping could become a part of the one beside it.
        let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS).unsigned_abs().into();
        let address = self.checked(libc::SYS_mmap, [0, size_bytes, protection, flags, u64::MAX, 0])?;
        self.own = Some((address, size_bytes));
        if let Some((_, restorer)) = self.way_back {
            self.write_frame(address + SCRATCH_BYTES as u64, restorer)?;
            // The first frame is unused once the registers lead to this one, whatever call is made with them.
            self.prepare(libc::SYS_getppid, [0; 6])?;
            self.clear_outer()?;
        }
        Ok(())
    }

    /// Address of the space for arguments, which has a KiB.
    pub(crate) fn scratch(&self) -> u64 {
        self.own.map_or(0, |(address, _)| address)
    }

    /// Restores the thread. Errors are those of its registers: it may keep the mapping.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        // A thread that still makes a call needs its frame.
        if !self.runs
            && let Err(error) = self.unmap_own()
        {
            tracing::debug!("process {} keeps a mapping of {:?}: {error}", self.pid, self.own);
        }
        self.restore()?;
        if let Err(error) = self.clear_outer() {
            tracing::debug!("process {}: its stack cannot be written to: {error}", self.pid);
        }
        Ok(())
    }

    fn unmap_own(&mut self) -> io::Result<()> {
        let Some((address, size_bytes)) = self.own else { return Ok(()) };
        if let (Some((outer, _)), Some((_, restorer))) = (self.outer, self.way_back) {
            self.write_frame(outer, restorer)?;
        }
        self.checked(libc::SYS_munmap, [address, size_bytes, 0, 0, 0, 0])?;
        self.own = None;
        Ok(())
    }

    /// Clears the frame for the first and the last call. Its memory was zero before, or did not exist.
    fn clear_outer(&self) -> io::Result<()> {
        let Some((address, size_bytes)) = self.outer else { return Ok(()) };
        self.write(address, &vec![0; usize::try_from(size_bytes).unwrap_or(0)])
    }
}

const _: () = assert!((SCRATCH_BYTES as u64).is_multiple_of(FRAME_ALIGNMENT));
