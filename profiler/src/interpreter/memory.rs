//! Memory of a target.

use heapbpf_base::ids::Pid;
use heapbpf_linux::process_memory;

/// Memory of a target.
pub(crate) trait Memory {
    /// Fills the buffer, or returns `None`.
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()>;

    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]>
    where
        Self: Sized,
    {
        let mut bytes = [0; N];
        self.fill(address, &mut bytes)?;
        Some(bytes)
    }

    fn word(&self, address: u64) -> Option<u64>
    where
        Self: Sized,
    {
        self.bytes(address).map(u64::from_le_bytes)
    }

    fn integer(&self, address: u64) -> Option<u32>
    where
        Self: Sized,
    {
        self.bytes(address).map(u32::from_le_bytes)
    }

    /// `None` above the limit, too.
    fn range(&self, start: u64, end: u64, bytes_max: usize) -> Option<Vec<u8>>
    where
        Self: Sized,
    {
        let length = usize::try_from(end.checked_sub(start)?).ok().filter(|&length| length <= bytes_max)?;
        let mut bytes = vec![0; length];
        self.fill(start, &mut bytes)?;
        Some(bytes)
    }
}

impl Memory for &dyn Memory {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        (**self).fill(address, buffer)
    }
}

impl Memory for Pid {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let length = buffer.len();
        let read = process_memory::read(*self, &[(address, length)], buffer).ok()?;
        (read == length).then_some(())
    }
}
