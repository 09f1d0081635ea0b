//! Memory of a process that runs meanwhile.

use std::io;

use heapbpf_base::ids::Pid;
use heapbpf_linux::process_memory;

/// Memory that is read while it changes.
pub(crate) trait Memory {
    /// Copies memory at an address, and returns how many bytes could be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<usize>;

    fn word(&self, address: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        match self.read(address, &mut word)? {
            8 => Ok(u64::from_le_bytes(word)),
            _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }
}

impl Memory for Pid {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
        process_memory::read(*self, &[(address, buffer.len())], buffer)
    }
}
