//! Executable mappings of a process. Unmapped modules are remembered, because stacks outlive `dlclose` and the process. Where the
//! kernel side reports what is mapped, each piece of code at an address has [addresses of its own](places); else a reused address
//! is attributed to the later one. A process that calls exec needs a new [`AddressSpace`].

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_ledger::ingest::event::Stack;
use heapbpf_ledger::ingest::record::Mapped;
use heapbpf_linux::proc::ProcError;
use heapbpf_linux::proc::maps::{Device, Mapping, MappingName, executable_mappings, file_mappings};
use heapbpf_linux::process_memory;
use profiler_common::mapped::{Changes, FileKey};
use rustc_hash::{FxHashMap, FxHashSet};
use tracing::debug;

use self::places::{Code, FIRST, Found, Named, Places};
use crate::object::module::{ModuleStore, Modules};
use crate::object::{ObjectError, elf};

mod places;

/// Maximum number of files whose identity differs between `maps` and the kernel side.
const SHOWN_MAX: usize = 1024;

/// Maximum number of remembered unmapped ranges, which just-in-time compilers create; the oldest are dropped.
const RETIRED_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    pub module: ModuleId,
    pub offset: FileOffset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOrigin {
    Module(Location),
    Generated,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedModule {
    pub mapping: Mapping,
    /// Module of the code; `None` for generated code.
    pub module: Option<ModuleId>,
}

impl MappedModule {
    fn code(&self) -> Code {
        let Mapping { device, inode, start, offset, .. } = self.mapping;
        let offset = if inode == 0 { 0 } else { offset.0 };
        Code { file: FileKey::new(device.major, device.minor, inode), base: start.0.wrapping_sub(offset) }
    }

    fn range(&self) -> (u64, u64) {
        (self.mapping.start.0, self.mapping.end.0)
    }

    /// Whether a process has moved the code of a file there.
    fn is_moved(&self) -> bool {
        self.module.is_some() && self.mapping.name == MappingName::Anonymous && self.mapping.inode == 0
    }

    /// Whether this was the mapping when it was read: code that was moved has the offset in its file since.
    fn is_same(&self, mapping: &Mapping) -> bool {
        let offset = if self.is_moved() { mapping.offset } else { self.mapping.offset };
        *mapping == Mapping { offset, ..self.mapping.clone() }
    }

    fn of_piece(piece: &places::Piece) -> Self {
        let ((start, end), Code { file, .. }) = (piece.placed(), piece.code);
        let device = Device { major: file.device >> 20, minor: file.device & 0xf_ffff };
        let offset = piece.named.map_or(FileOffset(piece.start), |named| piece.offset(piece.start, named));
        let mapping = Mapping { start, end, offset, device, inode: file.inode, name: MappingName::Anonymous };
        Self { mapping, module: piece.named.map(|named| named.module) }
    }

    /// The parts of the mapping that are not in pieces, which are by rising address.
    fn without(&self, pieces: &[Self]) -> Vec<Self> {
        let part = |start: TargetAddr, end: TargetAddr| {
            let offset = FileOffset(self.mapping.offset.0.saturating_add(start.0 - self.mapping.start.0));
            let mapping = Mapping { start, end, offset, ..self.mapping.clone() };
            (start < end).then_some(Self { mapping, module: self.module })
        };
        let (mut from, mut parts) = (self.mapping.start, Vec::new());
        let behind = pieces.partition_point(|piece| piece.mapping.end <= self.mapping.start);
        for piece in pieces[behind..].iter().take_while(|piece| piece.mapping.start < self.mapping.end) {
            parts.extend(part(from, piece.mapping.start.max(from)));
            from = piece.mapping.end;
        }
        parts.extend(part(from, self.mapping.end.max(from)));
        parts
    }

    /// Address of generated code itself that the mapping's first address stands for.
    pub(crate) fn own_start(&self) -> u64 {
        let is_placed = (FIRST..u64::MAX).contains(&self.mapping.start.0) && !self.mapping.start.is_interpreted();
        if is_placed { self.mapping.offset.0 } else { self.mapping.start.0 }
    }

    fn contains(&self, address: TargetAddr) -> bool {
        (self.mapping.start..self.mapping.end).contains(&address)
    }

    fn origin(&self, address: TargetAddr, generated: Option<ModuleId>) -> CodeOrigin {
        let inside = address.0.saturating_sub(self.mapping.start.0);
        match self.module {
            None => match generated {
                Some(module) => CodeOrigin::Module(Location { module, offset: FileOffset(address.0) }),
                None => CodeOrigin::Generated,
            },
            Some(module) => CodeOrigin::Module(Location {
                module,
                offset: FileOffset(self.mapping.offset.0.saturating_add(inside)),
            }),
        }
    }
}

#[derive(Clone, Debug)]
pub struct AddressSpace {
    pid: Pid,
    /// Present mappings by rising address, without overlaps, as of the last refresh.
    current: Vec<MappedModule>,
    /// Unmapped ranges, the oldest first.
    retired: Vec<MappedModule>,
    version: u64,
    /// The module that stands for the process's generated code, once it has any.
    generated: Option<ModuleId>,
    /// Runtimes of the process, once it is known to have them.
    interpreted: Vec<Interpreted>,
    places: Places,
    /// Differences between the address of a file's first byte by its code and by its first segment, by module and the code's offset in
    /// the file; the rest have none.
    deltas: FxHashMap<(ModuleId, FileOffset), u64>,
    /// First addresses of mappings that were new while not all changes had been reported.
    unsettled: Vec<TargetAddr>,
    /// Files as `maps` shows them and as the kernel side has them, where these differ.
    shown: Vec<(FileKey, FileKey)>,
    /// Number of changes that the kernel side had counted before the mappings were read.
    changes: u32,
    /// Number of the last change that the kernel side has reported.
    reported: u32,
    /// Whether all changes had been reported when the mappings were read.
    is_settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// Code of a runtime, which has no addresses of its own in stacks.
pub struct Interpreted {
    /// First word that stands for the runtime's code in stacks.
    pub start: TargetAddr,
    /// End of the words that stand for the runtime's code, exclusive.
    pub end: TargetAddr,
    /// Module that stands for the code.
    pub code: ModuleId,
    /// Module that executes the code: it contains the interpreter loop, or the virtual machine.
    pub interpreter: ModuleId,
}

impl AddressSpace {
    pub fn new(pid: Pid) -> Self {
        Self::of(pid, Vec::new(), Vec::new())
    }

    pub fn of(pid: Pid, current: Vec<MappedModule>, retired: Vec<MappedModule>) -> Self {
        let (generated, interpreted, places) = (None, Vec::new(), Places::default());
        let shown = Vec::new();
        let (changes, reported) = (0, 0);
        Self {
            pid,
            current,
            retired,
            version: 0,
            generated,
            interpreted,
            places,
            deltas: FxHashMap::default(),
            unsettled: Vec::new(),
            shown,
            changes,
            reported,
            is_settled: true,
        }
    }

    pub fn for_child(&self, child: Pid) -> Self {
        Self { pid: child, ..self.clone() }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Reads the mappings again. Returns the modules that were not mapped before, in mapping order. On errors, the former
    /// mappings are kept.
    pub fn refresh(&mut self, modules: &mut ModuleStore) -> Result<Vec<ModuleId>, ProcError> {
        self.refresh_watched(Changes::default, modules)
    }

    /// As [`refresh`](Self::refresh). `changes` counts changes of the mappings.
    pub(crate) fn refresh_watched(
        &mut self,
        changes: impl Fn() -> Changes,
        modules: &mut ModuleStore,
    ) -> Result<Vec<ModuleId>, ProcError> {
        let before = changes();
        if before != Changes::default() {
            process_memory::wait_for_mappings(self.pid);
        }
        let mappings = executable_mappings(self.pid)?;
        // Else stacks that have not arrived may be of other code than what is mapped now.
        let are_reported = before.reported == self.reported && changes() == before;
        (self.changes, self.is_settled) = (before.seen, are_reported);
        if mappings.is_empty() {
            // A zombie has no memory any more. Its former mappings are needed for its stacks.
            return Ok(Vec::new());
        }
        let mapped_before = self.modules();
        let known = std::mem::take(&mut self.current);
        let mut deltas = std::mem::take(&mut self.deltas);
        let mut moved = MovedCode::new(self.pid);
        self.current = mappings
            .into_iter()
            .filter_map(|mapping| {
                let same = known.binary_search_by_key(&mapping.start, |old| old.mapping.start).ok();
                if let Some(old) = same.map(|at| &known[at]).filter(|old| old.is_same(&mapping)) {
                    return Some(old.clone());
                }
                let Some(id) = modules.intern_mapping(self.pid, &mapping) else {
                    return Some(moved.find(mapping, modules));
                };
                let is_replaced = modules.get(id).image().is_err_and(|error| *error == ObjectError::Replaced);
                let delta = modules.get(id).first_segment_delta(mapping.offset).filter(|delta| *delta != 0);
                deltas.extend(delta.map(|delta| ((id, mapping.offset), delta)));
                (!is_replaced).then_some(MappedModule { mapping, module: Some(id) })
            })
            .collect();
        self.deltas = deltas;
        if self.generated.is_none() && self.current.iter().any(|mapped| mapped.module.is_none()) {
            self.generated = Some(modules.add_generated());
        }
        self.version += u64::from(self.current != known);
        let mut new = if known.is_empty() { Vec::new() } else { self.new_mappings(&known) };
        if !are_reported {
            let starts = new.drain(..).map(|at| self.current[at].mapping.start);
            self.unsettled.extend(starts.take(RETIRED_MAX));
            self.unsettled.truncate(RETIRED_MAX);
        }
        self.retire(known);
        if are_reported {
            self.unsettled.clear();
        }
        self.map_unreported(&new);
        self.name_places();
        Ok(self.modules().into_iter().filter(|module| !mapped_before.contains(module)).collect())
    }

    /// The module that stands for the process's generated code; `None` as long as there is none, and in a replay, where mappings
    /// have it.
    pub(crate) fn generated(&self) -> Option<ModuleId> {
        self.generated
    }

    /// The module that stands for the process's generated code, also in a replay.
    pub(crate) fn generated_module(&self, modules: &Modules) -> Option<ModuleId> {
        let mapped = || self.current.iter().chain(&self.retired).filter_map(|mapped| mapped.module);
        self.generated.or_else(|| mapped().find(|&id| modules.get(id).is_generated()))
    }

    /// Sets the module of generated code. A forked child has its parent's until it generates its own.
    pub(crate) fn set_generated(&mut self, module: ModuleId) {
        self.generated = Some(module);
    }

    pub fn interpreted(&self) -> &[Interpreted] {
        &self.interpreted
    }

    /// Sets a runtime. Replaces the one with the same words.
    pub fn set_interpreted(&mut self, interpreted: Interpreted) {
        self.interpreted.retain(|known| known.start != interpreted.start);
        self.interpreted.push(interpreted);
    }

    /// The address of the code that this address stands for, if it was generated at run time.
    pub(crate) fn generated_at(&self, address: TargetAddr) -> Option<TargetAddr> {
        match self.places.find(address) {
            Some(Found::Generated(own)) => Some(TargetAddr(own.0)),
            Some(_) => None,
            None => self.current_at(address).filter(|at| at.module.is_none()).map(|_| address),
        }
    }

    /// Notes what a process has mapped. The stacks that follow may pass through it.
    pub(crate) fn map(&mut self, mapped: &Mapped) {
        self.reported = mapped.number;
        let (code, range) = (code_of(mapped), (mapped.start.0, mapped.end.0));
        let known = self.current.iter().chain(&self.retired).find(|old| self.code_at(old).file == code.file);
        let named = known.filter(|_| !code.is_generated()).and_then(|old| self.named(old));
        self.map_code(code, range, named);
    }

    fn map_code(&mut self, code: Code, range: (u64, u64), named: Option<Named>) {
        let is_replacing = self.has_other(&code, range);
        if is_replacing {
            for old in self.current.iter().chain(self.retired.iter().rev()) {
                let old_code = self.code_at(old);
                if old_code != code && overlap(range, old.range()) {
                    let named = self.named(old);
                    self.places.add_first(old_code, old.range(), named);
                    if old.module.is_none() {
                        self.places.confirm_generated(|range| overlap(range, old.range()));
                    }
                }
            }
        }
        self.places.map(code, range, named, is_replacing);
    }

    /// Whether other code was where a process has mapped some.
    pub(crate) fn replaces(&self, mapped: &Mapped) -> bool {
        self.has_other(&code_of(mapped), (mapped.start.0, mapped.end.0))
    }

    fn has_other(&self, code: &Code, range: (u64, u64)) -> bool {
        let is_other = |old: &MappedModule| {
            let is_generated = old.module.is_none() && code.is_generated();
            overlap(range, old.range()) && !is_generated && !old.is_moved() && self.code_at(old) != *code
        };
        self.places.has_other(code, range) || self.current.iter().chain(&self.retired).any(is_other)
    }

    /// The file at an address, and the address of its first byte, as of the stacks that were entered last; `None` if it has been there
    /// since before, or is not reported.
    pub(crate) fn reported_file(&self, address: TargetAddr) -> Option<(FileKey, u64)> {
        self.places.mapped_at(address).filter(|code| !code.is_generated()).map(|code| (code.file, code.base))
    }

    /// Whether something else may be mapped now where this was. A file whose first segment alone is mapped yet has no code in `maps`.
    pub(crate) fn is_replaced(&self, old: &MappedModule) -> bool {
        !self.is_settled || self.places.is_other_mapped(&self.code_at(old), old.range())
    }

    /// What is mapped, by the file that the kernel side has for it.
    fn code_at(&self, mapped: &MappedModule) -> Code {
        let code = mapped.code();
        let reported = self.shown.iter().find(|(shown, _)| *shown == code.file);
        let delta = self.delta_of(mapped);
        Code { file: reported.map_or(code.file, |(_, reported)| *reported), base: code.base.wrapping_add(delta) }
    }

    fn delta_of(&self, mapped: &MappedModule) -> u64 {
        let key = mapped.module.map(|module| (module, mapped.mapping.offset));
        key.and_then(|key| self.deltas.get(&key)).copied().unwrap_or(0)
    }

    fn named(&self, mapped: &MappedModule) -> Option<Named> {
        let bytes = mapped.mapping.end.0 - mapped.mapping.start.0;
        mapped.module.map(|module| Named { module, delta: self.delta_of(mapped), bytes })
    }

    /// The file of a mapping as the kernel side has it, and the address of its first byte; `None` for memory.
    pub(crate) fn file_of(&self, mapped: &MappedModule) -> Option<(FileKey, u64)> {
        let Code { file, base } = self.code_at(mapped);
        (mapped.mapping.inode != 0).then_some((file, base))
    }

    /// Replaces the addresses of a stack by those that stand for what is mapped there now.
    pub(crate) fn place(&self, stack: &mut Stack) {
        let is_placed = |frame: &TargetAddr| self.place_of(*frame) != *frame;
        if !self.places.is_empty() && stack.frames.iter().any(is_placed) {
            stack.frames = stack.frames.iter().map(|frame| self.place_of(*frame)).collect();
        }
    }

    /// A return address may be the first one behind the code.
    fn place_of(&self, frame: TargetAddr) -> TargetAddr {
        if frame.is_interpreted() {
            return frame;
        }
        let inside = frame.inside_call();
        TargetAddr(self.places.place(inside).0.wrapping_add(frame.0.wrapping_sub(inside.0)))
    }

    /// Gives code that was mapped the modules that have been read since.
    fn name_places(&mut self) {
        if self.places.is_empty() {
            return;
        }
        for mapped in &self.current {
            let Some(named) = self.named(mapped) else { continue };
            let Mapping { start, offset, .. } = &mapped.mapping;
            if mapped.is_moved() {
                self.places.name_moved(start.0, named.module, *offset);
                continue;
            }
            let (code, shown) = (self.code_at(mapped), mapped.code().file);
            // Before Linux 6.8, `maps` shows another file of an overlay than programs have opened.
            let unread = self.places.unread(code.base, mapped.range()).filter(|it| it.file.device != shown.device);
            if let Some(unread) = unread.filter(|_| self.shown.len() < SHOWN_MAX) {
                self.shown.push((shown, unread.file));
            }
            self.places.name(&unread.unwrap_or(code), named);
        }
        let current = &self.current;
        self.places.confirm_generated(|(start, end)| {
            let behind = current.partition_point(|at| at.mapping.start.0 < end);
            let overlapping = current[..behind].iter().rev().take_while(|at| at.mapping.end.0 > start);
            overlapping.into_iter().any(|at| at.module.is_none())
        });
    }

    /// Indices of present mappings that were not there before, and of files where unknown memory was reported.
    fn new_mappings(&self, before: &[MappedModule]) -> Vec<usize> {
        let before: FxHashSet<&Mapping> = before.iter().map(|at| &at.mapping).collect();
        let is_new = |mapped: &MappedModule| {
            let is_file = mapped.module.is_some() && !mapped.is_moved();
            is_file && self.places.is_unknown(mapped.mapping.start)
                || !before.contains(&mapped.mapping)
                || self.unsettled.contains(&mapped.mapping.start)
        };
        self.current.iter().enumerate().filter(|(_, mapped)| is_new(mapped)).map(|(at, _)| at).collect()
    }

    /// Notes code of these mappings, which have just been read, that was mapped at used addresses without being reported, at addresses
    /// that the process has chosen, or without its file: the kernel aligns large files within a range that it has searched.
    fn map_unreported(&mut self, new: &[usize]) {
        for &at in new {
            let mapped = &self.current[at];
            let (code, range, named) = (self.code_at(mapped), mapped.range(), self.named(mapped));
            if !mapped.is_moved() && !self.places.is_mapped(&code, range) && self.has_other(&code, range) {
                self.map_code(code, range, named);
            }
        }
    }

    /// Origin of the code that this address stands for.
    pub fn origin(&self, address: TargetAddr) -> Option<CodeOrigin> {
        if address.is_interpreted() {
            let contains = |it: &&Interpreted| it.start <= address && address < it.end;
            let module = self.interpreted.iter().find(contains)?.code;
            return Some(CodeOrigin::Module(Location { module, offset: FileOffset(address.0) }));
        }
        match self.places.find(address) {
            Some(Found::Module(module, offset)) => return Some(CodeOrigin::Module(Location { module, offset })),
            Some(Found::Generated(offset)) => {
                let located = |module| CodeOrigin::Module(Location { module, offset });
                return Some(self.generated.map_or(CodeOrigin::Generated, located));
            }
            // If it is still there, it is what has been read since.
            Some(Found::Unread) if !self.places.is_at(address) => return None,
            Some(Found::Unread) => return self.current_at(address).map(|at| at.origin(address, self.generated)),
            None => {}
        }
        let now = self.current_at(address);
        let at = now.or_else(|| self.retired.iter().rev().find(|old| old.contains(address)));
        at.map(|at| at.origin(address, self.generated))
    }

    /// Returns the module at this address and the file offset; `None` outside of code, and in generated code without a module.
    pub fn lookup(&self, address: TargetAddr) -> Option<Location> {
        match self.origin(address)? {
            CodeOrigin::Module(location) => Some(location),
            CodeOrigin::Generated => None,
        }
    }

    /// Whether the address is in mapped code. If not, refresh once for several stacks: mappings may have changed.
    pub fn covers(&self, address: TargetAddr) -> bool {
        let is_placed = || self.places.find(address).is_some_and(|found| found != Found::Unread);
        self.current_at(address).is_some() || address.is_interpreted() || is_placed()
    }

    /// Number of changes that the mappings have, as the kernel side counts them.
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// Increases whenever a refresh finds other mappings than before.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn is_known(&self) -> bool {
        !self.current.is_empty()
    }

    pub fn mappings(&self) -> &[MappedModule] {
        &self.current
    }

    /// What addresses of stacks stand for, except unmapped code at addresses that nothing else has used: by rising address, without
    /// overlaps.
    pub(crate) fn placed(&self) -> Vec<MappedModule> {
        if self.places.is_empty() {
            return self.current.clone();
        }
        let pieces: Vec<MappedModule> = self.places.pieces().map(MappedModule::of_piece).collect();
        let mut placed: Vec<MappedModule> = self.current.iter().flat_map(|at| at.without(&pieces)).collect();
        let named = self.places.pieces().zip(&pieces).filter(|(it, _)| it.named.is_some() || it.is_generated);
        placed.extend(named.map(|(_, piece)| piece.clone()));
        placed.sort_by_key(|at| at.mapping.start);
        placed
    }

    pub fn retired(&self) -> &[MappedModule] {
        &self.retired
    }

    /// Mapped modules without duplicates, in the order of their first mapping.
    pub fn modules(&self) -> Vec<ModuleId> {
        let mut seen = FxHashSet::default();
        self.current.iter().filter_map(|at| at.module).filter(|&module| seen.insert(module)).collect()
    }

    fn current_at(&self, address: TargetAddr) -> Option<&MappedModule> {
        let behind = self.current.partition_point(|at| at.mapping.start <= address);
        self.current[..behind].last().filter(|at| at.contains(address))
    }

    fn retire(&mut self, known: Vec<MappedModule>) {
        let current: FxHashSet<&Mapping> = self.current.iter().map(|at| &at.mapping).collect();
        let gone: Vec<MappedModule> = known.into_iter().filter(|old| !current.contains(&old.mapping)).collect();
        if gone.is_empty() {
            return;
        }
        // Ranges that are unmapped again count as new, so that repeated dlopen of a library does not grow the list.
        let again: FxHashSet<&Mapping> = gone.iter().map(|old| &old.mapping).collect();
        self.retired.retain(|old| !again.contains(&old.mapping));
        self.retired.extend(gone);
        let excess = self.retired.len().saturating_sub(RETIRED_MAX);
        self.retired.drain(..excess);
    }
}

fn code_of(mapped: &Mapped) -> Code {
    Code { file: mapped.file, base: mapped.start.0.wrapping_sub(mapped.offset.0) }
}

fn overlap(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// Code of a file that its process has moved into memory without a file, as for huge pages: `node --use-largepages`, iodlr,
/// BOLT's `-hugify`.
struct MovedCode {
    pid: Pid,
    /// Mappings of files, once they are needed.
    files: Option<Vec<Mapping>>,
}

impl MovedCode {
    fn new(pid: Pid) -> Self {
        Self { pid, files: None }
    }

    /// Describes a mapping without a file. It has the code of a file if the file's other mappings show that its code is there.
    fn find(&mut self, mapping: Mapping, modules: &mut ModuleStore) -> MappedModule {
        let pid = self.pid;
        let files = self.files.get_or_insert_with(|| {
            file_mappings(pid).unwrap_or_else(|error| {
                debug!("process {pid}: {error}");
                Vec::new()
            })
        });
        // The nearest below and above: a file's mappings are beside each other.
        let behind = files.partition_point(|file| file.start < mapping.start);
        let nearest = files[..behind].last().into_iter().chain(files[behind..].first());
        for file in nearest {
            let Some(id) = modules.intern_mapping(pid, file) else { continue };
            let module = modules.get(id);
            let Ok(elf) = module.elf() else { continue };
            let bias = elf::bias(elf.segments.iter(), file.start, file.offset);
            if let Some(offset) = bias.and_then(|bias| elf.code_at(bias, mapping.start, mapping.end)) {
                return MappedModule { mapping: Mapping { offset, ..mapping }, module: Some(id) };
            }
        }
        MappedModule { mapping, module: None }
    }
}

#[cfg(test)]
mod tests;
