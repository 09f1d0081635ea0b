//! What CRuby's machine code shows where it has no symbols: most builds are stripped, and `vm_exec`, `ruby_current_ec` and
//! `ruby_global_symbols` are local.

use std::ops::Range;

use heapbpf_base::address::LinkAddr;

use crate::interpreter::arch::{self, ThreadLocal, branches_out};
use crate::object::elf::Elf;
use crate::object::image::Image;
use crate::object::symbols::{Definition, local_definitions};
use crate::unwind::ranges::{Ranges, inner_parts};

/// Code of a module: the largest libraries of CRuby have 4 MiB.
const CODE_BYTES_MAX: u64 = 64 << 20;
/// A function that reads `errno`-like state, and one that counts symbols.
const SHORT_BYTES: u64 = 128;
/// `vm_exec_core` has an indirect jump for each of some hundred instructions, less those that the compiler has merged; at least 10
/// KiB of code.
const CORE_JUMPS_MIN: usize = 48;
const CORE_BYTES_MIN: u64 = 8 << 10;
/// A function that returns what `vm_exec_core` returns without a context: the addresses of instructions.
const STUB_BYTES_MAX: u64 = 32;
/// Functions that execute an execution context, by their symbols: the second name is a macro's.
const LOOPS: [&str; 2] = ["vm_exec", "rb_vm_exec"];

/// The pointer to the execution context, as this function finds it, or the one that it calls: on arm64, 3.3 and later have one for it
/// (`rb_current_ec_noinline`).
pub(super) fn context(image: &Image, elf: &Elf, errinfo: &Definition) -> Option<ThreadLocal> {
    let (code, start) = (short_function(image, elf, errinfo)?, errinfo.address.0);
    arch::thread_local(&code, start).or_else(|| {
        let called = arch::first_call(&code, start)?;
        let code = image.read(elf.file_offset(LinkAddr(called))?, SHORT_BYTES, SHORT_BYTES).ok()?;
        arch::thread_local(&code, called)
    })
}

/// The array with the names of symbols, which follows the hash table that this function counts.
pub(super) fn names(image: &Image, elf: &Elf, all_symbols: &Definition) -> Option<LinkAddr> {
    const COUNT: u64 = 16;
    let table = arch::read_through(&short_function(image, elf, all_symbols)?, all_symbols.address.0, COUNT)?;
    Some(LinkAddr(table.wrapping_add(8)))
}

fn short_function(image: &Image, elf: &Elf, function: &Definition) -> Option<Vec<u8>> {
    let offset = elf.file_offset(function.address)?;
    image.read(offset, function.size_bytes.min(SHORT_BYTES), SHORT_BYTES).ok()
}

/// The ranges of `vm_exec`: the function, then the part of it that the compiler considered cold.
pub(super) fn loops(image: &Image, elf: &Elf) -> Option<Vec<Range<u64>>> {
    let segment = elf.code().max_by_key(|segment| segment.size_bytes)?;
    let bytes = image.read(segment.offset, segment.size_bytes, CODE_BYTES_MAX).ok()?;
    let code = Code { start: segment.address.0, bytes };
    let ranges = Ranges::read(image);
    let of_symbol = local_definitions(image, elf, &LOOPS).into_iter().next();
    let function = of_symbol.and_then(|definition| ranges.range_of(definition.address.0));
    let hot = function.or_else(|| code.find_loop(&ranges))?;
    let outside = branches_out(code.of(&hot)?, hot.start);
    // Jumps also lead to other functions.
    let cold = inner_parts(image, &outside).into_iter().max_by_key(|range| range.end - range.start);
    Some([Some(hot), cold].into_iter().flatten().collect())
}

struct Code {
    /// Link address.
    start: u64,
    bytes: Vec<u8>,
}

impl Code {
    fn of(&self, range: &Range<u64>) -> Option<&[u8]> {
        let at = |address: u64| usize::try_from(address.checked_sub(self.start)?).ok();
        self.bytes.get(at(range.start)?..at(range.end)?)
    }

    /// Finds `vm_exec` as the function that calls `vm_exec_core`; of two, the one that calls the other (`vm_exec_loop`).
    fn find_loop(&self, ranges: &Ranges) -> Option<Range<u64>> {
        let mut cores: Vec<(usize, Range<u64>)> = ranges
            .iter()
            .filter(|range| range.end - range.start >= CORE_BYTES_MIN)
            .filter_map(|range| Some((arch::indirect_jumps(self.of(&range)?), range)))
            .filter(|(jumps, _)| *jumps >= CORE_JUMPS_MIN)
            .collect();
        cores.sort_by_key(|(jumps, _)| std::cmp::Reverse(*jumps));
        cores.into_iter().find_map(|(_, core)| {
            let callers = self.callers(ranges, core.start);
            let (stubs, functions): (Vec<_>, Vec<_>) =
                callers.into_iter().partition(|caller| caller.end - caller.start <= STUB_BYTES_MAX);
            let is_core = stubs.iter().any(|stub| self.of(stub).is_some_and(arch::passes_zero));
            let outer = |function: &&Range<u64>| {
                let callers = self.callers(ranges, function.start);
                functions.iter().all(|other| other == *function || !callers.contains(other))
            };
            functions.iter().filter(|_| is_core).find(outer).cloned()
        })
    }

    /// Functions that call this one directly, or end in a jump to it.
    fn callers(&self, ranges: &Ranges, function: u64) -> Vec<Range<u64>> {
        let mut callers: Vec<Range<u64>> =
            arch::direct_calls(&self.bytes, self.start, function).filter_map(|at| ranges.range_of(at)).collect();
        callers.dedup();
        callers
    }
}
