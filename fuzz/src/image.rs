//! Memory of a synthetic process, from an input:
//!
//! ```text
//! regions   count 1 · each: kind 1 · pages before it 8 · pages 8
//! threads   count 1 · each: next instruction 8 · thread pointer 8 · registers 4 × 8
//! memory    until the end: 0 · page number 8                       a page of zeros
//!                          1 · address 8 · length 2 · bytes        contents of these pages
//! ```
//!
//! Every input satisfies what the kernel guarantees: regions are whole pages, sorted, without overlap, and below 2^47, and
//! contain all memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use heapbpf::internals::ThreadState;
use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::Tid;
use heapbpf_base::memory::Copied;
use heapbpf_linux::proc::maps::{Region, RegionKind, region_of};

use crate::bytes::Bytes;

pub const PAGE_BYTES: u64 = 4096;
/// End of the user address space.
const ADDRESS_MAX: u64 = 1 << 47;
/// Maximum number of pages, to keep executions short.
const PAGES_MAX: usize = 512;
/// Maximum number of regions and of threads.
const REGIONS_MAX: u8 = 32;
const THREADS_MAX: u8 = 4;
/// Number of registers of a thread.
pub const REGISTERS: usize = 4;
/// Bits of a region's kind beside the number in [`FILES`].
pub const SHARED: u8 = 0x10;
pub const READ_ONLY: u8 = 0x20;
pub const EXECUTABLE: u8 = 0x40;
/// Kinds before those of files: anonymous memory, `brk`'s, the stack, the kernel's.
pub const KINDS: u8 = 4;
/// Files that can be mapped.
pub const FILES: [&str; 4] =
    ["/lib/libc.so.6", "/lib/ld-musl-x86_64.so.1", "/usr/lib/libjemalloc.so.2", "/usr/bin/program"];

/// A stopped process.
pub struct Image {
    /// In ascending order.
    pub regions: Vec<Region>,
    pub threads: Vec<ThreadState>,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Image {
    /// Parses an input, which may be truncated.
    pub fn parse(input: &[u8]) -> Self {
        let mut bytes = Bytes(input);
        let mut image = Self { regions: Vec::new(), threads: Vec::new(), pages: BTreeMap::new() };
        let _ = image.read_regions(&mut bytes);
        let _ = image.read_threads(&mut bytes);
        let _ = image.read_memory(&mut bytes);
        image
    }

    fn read_regions(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let mut end = PAGE_BYTES;
        for _ in 0..bytes.byte()?.min(REGIONS_MAX) {
            let (kind, gap, pages) = (bytes.byte()?, bytes.word()?, bytes.word()?);
            let start = gap.checked_mul(PAGE_BYTES)?.checked_add(end)?;
            end = pages.max(1).checked_mul(PAGE_BYTES)?.checked_add(start).filter(|&end| end <= ADDRESS_MAX)?;
            self.regions.push(region(start, end, kind));
        }
        Some(())
    }

    fn read_threads(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        for number in 0..bytes.byte()?.min(THREADS_MAX) {
            let (instruction, thread_pointer) = (TargetAddr(bytes.word()?), TargetAddr(bytes.word()?));
            let registers = (0..REGISTERS).map(|_| bytes.word()).collect::<Option<Vec<u64>>>()?;
            let stack_pointer = TargetAddr(registers[0]);
            let tid = Tid(u32::from(number) + 1);
            self.threads.push(ThreadState {
                tid,
                in_syscall: instruction.0 & 1 == 1,
                registers,
                instruction,
                stack_pointer,
                thread_pointer,
                exit_status: None,
            });
        }
        Some(())
    }

    fn read_memory(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        loop {
            if bytes.byte()? & 1 == 0 {
                let page = bytes.word()?;
                let address = page.checked_mul(PAGE_BYTES).map(TargetAddr);
                let is_mapped = address.is_some_and(|address| region_of(&self.regions, address).is_some());
                if is_mapped && self.pages.len() < PAGES_MAX {
                    self.pages.entry(page).or_insert_with(|| vec![0; 4096].into_boxed_slice());
                }
            } else {
                let (address, length) = (bytes.word()?, bytes.half()?);
                for (at, &byte) in (address..ADDRESS_MAX).zip(bytes.slice(length.into())) {
                    if let Some(page) = self.pages.get_mut(&(at / PAGE_BYTES)) {
                        page[(at % PAGE_BYTES) as usize] = byte;
                    }
                }
            }
        }
    }

    /// Returns the memory in the form that walkers read.
    pub fn copied(&self) -> Copied {
        Copied::new(self.pages.iter().map(|(page, bytes)| (TargetAddr(page * PAGE_BYTES), bytes.clone())))
    }
}

fn region(start: u64, end: u64, kind: u8) -> Region {
    let file = |number: u8| PathBuf::from(FILES[usize::from(number) % FILES.len()]);
    Region {
        start: TargetAddr(start),
        end: TargetAddr(end),
        readable: true,
        writable: kind & READ_ONLY == 0,
        executable: kind & EXECUTABLE != 0,
        shared: kind & SHARED != 0,
        offset: FileOffset(0),
        kind: match kind & 0xf {
            0 => RegionKind::Anonymous { name: None },
            1 => RegionKind::Brk,
            2 => RegionKind::Stack,
            3 => RegionKind::Kernel,
            file_number => RegionKind::File { path: file(file_number - KINDS) },
        },
    }
}
