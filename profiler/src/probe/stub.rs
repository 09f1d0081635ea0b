//! Stubs of the inline engine for a process: their code, the countdowns, and the file that contains them.

mod image;

use std::marker::PhantomData;

use self::image::Frames;
pub(crate) use self::image::{ENTRIES_MAX, HEADER_BYTES, entries, list};
use super::arch::stub::{Common, Routine, StubSet, TABLE_BITS, logarithm};
pub(crate) use super::arch::stub::{Nothrow, SlotIndex, StubError, StubFunction, StubSite, slot};
use heapbpf_linux::memory::page_bytes;

use super::arch::{InstructionSet as _, Native};

/// The instruction that a probe writes over another.
pub(crate) const BREAKPOINT: &[u8] = Native::BREAKPOINT;

/// Maximum distance of jumps of stubs, in bytes.
pub(crate) const REACH_BYTES: u64 = <Native as StubSet>::REACH_BYTES;

/// Writes a field of a countdown.
pub(crate) fn put(line: &mut [u8], at: i32, bytes: &[u8]) {
    let at = at.unsigned_abs() as usize;
    line[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Stubs of a process, assembled for one address.
#[derive(Debug)]
pub(crate) struct StubCode<S = Native> {
    address: u64,
    common: Common,
    bytes: Vec<u8>,
    routines: Vec<Frames>,
    processor: PhantomData<S>,
}

const ALIGNMENT: usize = 64;

impl StubCode {
    /// Begins the code of stubs at `address`. `filter` is the address of the live set's filter in the process, `control` that of
    /// the words by which stubs are switched on and off.
    pub(crate) fn new(address: u64, filter: u64, control: u64, index: SlotIndex) -> Result<Self, StubError> {
        Self::of(address, filter, control, index)
    }
}

impl<S: StubSet> StubCode<S> {
    fn of(address: u64, filter: u64, control: u64, index: SlotIndex) -> Result<Self, StubError> {
        let common = Common { filter, control, index, draw: 0, page_bytes: page_bytes() };
        let mut code = Self { address, common, bytes: Vec::new(), routines: Vec::new(), processor: PhantomData };
        code.bytes.resize(usize::try_from(HEADER_BYTES).unwrap_or(0), 0);
        let table = code.end();
        for step in 0..=1_u32 << TABLE_BITS {
            code.bytes.extend_from_slice(&logarithm(step).to_le_bytes());
        }
        code.pad();
        code.common.draw = code.end();
        code.add(S::draw(code.end(), table)?);
        Ok(code)
    }

    fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }

    fn pad(&mut self) {
        let missing = self.bytes.len().next_multiple_of(ALIGNMENT) - self.bytes.len();
        self.bytes.extend(S::PADDING.iter().cycle().take(missing));
    }

    /// Adds a routine. Returns the places of its probes.
    fn add(&mut self, routine: Routine) -> Vec<StubSite> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&routine.code);
        self.routines.push(Frames { code: start..self.bytes.len(), changes: routine.frames });
        self.pad();
        let sites = routine.sites.into_iter();
        sites.map(|site| StubSite { offset: site.offset + start as u64, ..site }).collect()
    }

    /// Adds a stub. Returns its address and the places of its probes.
    pub(crate) fn add_stub(&mut self, function: &StubFunction<'_>) -> Result<(u64, Vec<StubSite>), StubError> {
        let entry = self.end();
        let routine = S::stub(entry, function, &self.common)?;
        Ok((entry, self.add(routine)))
    }

    /// Completes the image in whole pages. `entries` are stubs and their functions.
    pub(crate) fn finish(self, entries: &[[u64; 2]]) -> Result<Vec<u8>, StubError> {
        image::complete::<S>(self.bytes, self.routines, entries)
    }
}
