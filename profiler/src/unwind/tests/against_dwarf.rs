//! One step by heapbpf's tables, for every rule of real libraries, compared with framehop, which is independent from the lookup to the
//! registers, and with a direct evaluation of DWARF, which supports any expression. Registers and memory are synthetic, so every
//! difference is detected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EvaluationResult, LittleEndian, Location, Register, RegisterRule, UnwindContext,
    UnwindExpression, UnwindSection, Value, X86_64,
};
use heapbpf_base::address::LinkAddr;
use object::{Object, ObjectSection};
use profiler_common::stack::StackEnd;
use profiler_common::step::{ReadMemory, Registers, Step, step};
use profiler_common::unwind::{CallerBp, Cfa, Rule};

use super::super::arch::Bytes;
use super::super::{Table, build};

/// Memory with a word at every address: positive as signed numbers, since framehop computes with those.
struct Noise(u64);

impl Noise {
    fn word(&self, address: u64) -> u64 {
        let mixed = (address ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)) & 0x7fff_ffff_fff8) | 8
    }
}

impl ReadMemory for Noise {
    fn read_u64(&self, address: u64) -> Option<u64> {
        Some(self.word(address))
    }
}

/// Result of a step of any unwinder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Caller { ip: u64, sp: u64, bp: u64 },
    End,
    Unknown,
}

fn ours(table: &Table, registers: &Registers, memory: &Noise) -> Outcome {
    match step(registers, table.lookup(LinkAddr(registers.lookup_address())), memory) {
        Step::Caller(Registers { ip, sp, bp, .. }) => Outcome::Caller { ip, sp, bp },
        Step::End(StackEnd::Complete) => Outcome::End,
        Step::End(_) => Outcome::Unknown,
    }
}

/// The module for framehop.
struct Framehop<'a> {
    unwinder: UnwinderX86_64<&'a [u8]>,
    cache: CacheX86_64,
}

impl<'a> Framehop<'a> {
    fn new(object: &object::File<'a>) -> Self {
        let range = |name: &str| {
            let section = object.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let bytes = |name: &str| object.section_by_name(name)?.data().ok();
        let sections = ExplicitModuleSectionInfo {
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: bytes(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: bytes(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        };
        let mut unwinder = UnwinderX86_64::new();
        unwinder.add_module(Module::new("module".to_owned(), 0..u64::from(u32::MAX), 0, sections));
        Self { unwinder, cache: CacheX86_64::new() }
    }

    fn step(&mut self, registers: &Registers, memory: &Noise) -> Outcome {
        let address = if registers.is_return_address {
            FrameAddress::from_return_address(registers.ip).expect("not 0")
        } else {
            FrameAddress::from_instruction_pointer(registers.ip)
        };
        let mut state = UnwindRegsX86_64::new(registers.ip, registers.sp, registers.bp);
        let mut read = |address| Ok(memory.word(address));
        match self.unwinder.unwind_frame(address, &mut state, &mut self.cache, &mut read) {
            Ok(Some(ip)) => Outcome::Caller { ip, sp: state.sp(), bp: state.bp() },
            Ok(None) => Outcome::End,
            Err(_) => Outcome::Unknown,
        }
    }
}

/// Direct evaluation of DWARF.
struct Dwarf<'a> {
    section: EhFrame<Bytes<'a>>,
    bases: BaseAddresses,
    /// Functions by address: start, end, offset in the section.
    functions: Vec<(u64, u64, usize)>,
    /// Starts of functions without length.
    empty: BTreeSet<u64>,
    context: UnwindContext<usize>,
}

impl<'a> Dwarf<'a> {
    fn new(object: &object::File<'a>) -> Self {
        let address = |name| object.section_by_name(name).map_or(0, |section| section.address());
        let bytes = object.section_by_name(".eh_frame").expect("has one").data().expect("is readable");
        let bases = BaseAddresses::default()
            .set_eh_frame(address(".eh_frame"))
            .set_text(address(".text"))
            .set_got(address(".got"));
        let section = EhFrame::new(bytes, LittleEndian);
        let mut functions = Vec::new();
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next().expect("well formed") {
            if let gimli::CieOrFde::Fde(partial) = entry {
                let function = partial.parse(EhFrame::cie_from_offset).expect("well formed");
                functions.push((function.initial_address(), function.end_address(), function.offset()));
            }
        }
        functions.sort_unstable();
        let is_empty = |&(start, end, _): &(u64, u64, usize)| start == end;
        let empty = functions.iter().filter(|function| is_empty(function)).map(|&(start, ..)| start).collect();
        functions.retain(|function| !is_empty(function));
        Self { section, bases, functions, empty, context: UnwindContext::new() }
    }

    /// Whether the function at `pc` starts at the same address as an empty one. The linker's index then contains only the empty
    /// one (seen in LLVM 22's library, 191 times), and framehop, which goes by the index, misses the function.
    fn has_empty_twin(&self, pc: u64) -> bool {
        let index = self.functions.partition_point(|&(start, ..)| start <= pc);
        index > 0 && self.empty.contains(&self.functions[index - 1].0)
    }

    fn step(&mut self, registers: &Registers, memory: &Noise) -> Outcome {
        self.try_step(registers, memory).unwrap_or(Outcome::Unknown)
    }

    fn try_step(&mut self, registers: &Registers, memory: &Noise) -> Option<Outcome> {
        let pc = registers.lookup_address();
        let index = self.functions.partition_point(|&(start, ..)| start <= pc).checked_sub(1)?;
        let (_, end, offset) = self.functions[index];
        if pc >= end {
            return None;
        }
        let function = self.section.fde_from_offset(&self.bases, offset.into(), EhFrame::cie_from_offset).ok()?;
        let row = function.unwind_info_for_address(&self.section, &self.bases, &mut self.context, pc).ok()?;
        let encoding = function.cie().encoding();
        let register = |register: Register| match register {
            X86_64::RA => Some(registers.ip),
            X86_64::RSP => Some(registers.sp),
            X86_64::RBP => Some(registers.bp),
            _ => None,
        };
        let evaluate = |expression: &UnwindExpression<usize>, initial: Option<u64>| {
            let mut evaluation = expression.get(&self.section).ok()?.evaluation(encoding);
            if let Some(initial) = initial {
                evaluation.set_initial_value(initial);
            }
            let mut result = evaluation.evaluate().ok()?;
            loop {
                result = match result {
                    EvaluationResult::Complete => break,
                    EvaluationResult::RequiresRegister { register: wanted, .. } => {
                        evaluation.resume_with_register(Value::Generic(register(wanted)?)).ok()?
                    }
                    EvaluationResult::RequiresMemory { address, .. } => {
                        evaluation.resume_with_memory(Value::Generic(memory.word(address))).ok()?
                    }
                    _ => return None,
                };
            }
            match evaluation.as_result().last()?.location {
                Location::Address { address } => Some(address),
                _ => None,
            }
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register: base, offset } => register(*base)?.wrapping_add_signed(*offset),
            CfaRule::Expression(expression) => evaluate(expression, None)?,
        };
        let value = |number: Register, same: u64| match row.register(number) {
            None | Some(RegisterRule::SameValue) => Some(same),
            Some(RegisterRule::Offset(offset)) => Some(memory.word(cfa.wrapping_add_signed(offset))),
            Some(RegisterRule::Expression(expression)) => Some(memory.word(evaluate(&expression, Some(cfa))?)),
            Some(RegisterRule::Register(other)) => register(other),
            _ => None,
        };
        if matches!(row.register(X86_64::RA), None | Some(RegisterRule::Undefined)) {
            return Some(Outcome::End);
        }
        let (ip, bp) = (value(X86_64::RA, 0)?, value(X86_64::RBP, registers.bp)?);
        Some(Outcome::Caller { ip, sp: cfa, bp })
    }
}

/// Addresses to step from: the first and the last of every `stride`th row.
fn addresses(table: &Table, stride: usize) -> Vec<u64> {
    let mut starts = Vec::new();
    for (page, rows) in (table.base.0..).step_by(1 << 16).zip(&table.pages) {
        let rows = &table.rows[rows.first as usize..rows.end as usize];
        starts.extend(rows.iter().map(|row| page + u64::from(row.pc_low)));
    }
    let ends = starts.iter().skip(1).map(|next| next - 1);
    let mut addresses: Vec<u64> =
        starts.iter().copied().zip(ends).step_by(stride).flat_map(|(first, last)| [first, last]).collect();
    addresses.dedup();
    addresses
}

/// Results of the comparison, by kind.
type Counts = BTreeMap<&'static str, u64>;

fn compare(path: &Path, steps: usize) -> Counts {
    let bytes = fs::read(path).expect("is readable");
    let table = build(&super::file(&bytes)).expect("an ELF image");
    let object = object::File::parse(&bytes[..]).expect("an ELF image");
    let (mut framehop, mut dwarf) = (Framehop::new(&object), Dwarf::new(&object));
    let stride = (table.rows.len() * 4 / steps).max(1);
    let mut counts = Counts::new();
    for (i, pc) in (0_u64..).zip(addresses(&table, stride)) {
        let memory = Noise(i);
        let sp = 0x7ffc_0000_0000 + (memory.word(1) & 0xf_fff0);
        let bp = sp + (memory.word(2) & 0xff8);
        for is_return_address in [false, true] {
            let ip = if is_return_address { pc + 1 } else { pc };
            let registers = Registers { ip, sp, bp, link: 0, is_return_address };
            let rule = table.lookup(LinkAddr(pc));
            let got = ours(&table, &registers, &memory);
            let place = format!("{}: {pc:#x} by {rule:?}", path.display());
            let word = dwarf.step(&registers, &memory);
            let bp_lost = rule.caller_bp() == CallerBp::Lost;
            match rule {
                Rule::GAP | Rule::FRAME_POINTER | Rule::UNSUPPORTED => {}
                _ if bp_lost => {}
                // The entry point may be marked without unwind information.
                Rule::END => assert!(matches!(word, Outcome::End | Outcome::Unknown), "{place}: DWARF has {word:?}"),
                _ => assert_eq!(got, word, "{place}: DWARF differs, return address: {is_return_address}"),
            }
            let seen = match (rule, rule.cfa()) {
                (Rule::GAP | Rule::FRAME_POINTER, _) => "gap",
                (Rule::UNSUPPORTED, _) => "unsupported here",
                _ if bp_lost => "rbp in another register",
                // framehop evaluates no expression that reads memory, and follows the frame pointer instead.
                (Rule::SIGNAL, _) | (_, Some(Cfa::AtSp { .. } | Cfa::AtBp { .. })) => "memory in expression",
                (Rule::END, _) if word == Outcome::Unknown => "entry point",
                _ if dwarf.has_empty_twin(pc) => "empty function at the same address",
                // framehop divides offsets by 8.
                (_, Some(Cfa::Sp { offset })) if offset % 8 != 0 => "odd offset",
                _ => {
                    let theirs = framehop.step(&registers, &memory);
                    assert_eq!(got, theirs, "{place}: framehop differs, return address: {is_return_address}");
                    if got == Outcome::End { "equal, end" } else { "equal" }
                }
            };
            *counts.entry(seen).or_default() += 1;
        }
    }
    counts
}

/// The C library, the C++ library, the loader, assembly-rich and large ones, if they are installed; the first
/// three and this test itself always are.
#[test]
fn every_step_agrees_with_framehop_and_dwarf() {
    let maps = fs::read_to_string("/proc/self/maps").expect("procfs is mounted");
    // Executable mappings only: other tests of this process map files to read them.
    let own = maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|rights| rights.contains('x')));
    let own = own.filter_map(|line| line.split_whitespace().nth(5)).filter(|path| path.starts_with('/'));
    let mut paths: Vec<&str> = own.filter(|path| super::installed::is_elf(Path::new(path))).collect();
    for path in [
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib/x86_64-linux-gnu/libgcrypt.so.20",
        "/usr/bin/python3.11",
        "/usr/bin/git",
    ] {
        if Path::new(path).exists() {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    paths.dedup();
    let mut total = Counts::new();
    for path in &paths {
        for (seen, count) in compare(Path::new(path), 20_000) {
            *total.entry(seen).or_default() += count;
        }
    }
    assert!(paths.len() >= 3, "{paths:?} are not much");
    let equal = total.get("equal").copied().unwrap_or(0);
    let all: u64 = total.values().sum();
    let gaps = total.get("gap").copied().unwrap_or(0);
    assert!(equal * 100 > (all - gaps) * 95, "few steps could be compared: {total:?}");
}
