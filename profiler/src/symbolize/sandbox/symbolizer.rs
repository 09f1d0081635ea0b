//! The symbolizer process (`heapbpf symbolizer`, started only by the agent) reads one module at a time: debug information with
//! addr2line, symbol tables with blazesym. Its input may be forged by a target: it can crash, exhaust memory or never end.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use addr2line::gimli::{UnitOffset, UnitRef};
use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use heapbpf_linux::companion::{self, Channel, Message};
use heapbpf_linux::confinement::{Limits, Root, close_inherited, confine};
use object::elf::{SHF_COMPRESSED, SHT_DYNSYM, SHT_STRTAB, SHT_SYMTAB};

use super::dwarf::{self, Companions, DebugInfo, Found, Reader};
use super::remainder::Remainder;
use super::scopes::{Scopes, whole_name};
use super::sections::Sections;
use super::source_map::{NoMap, SourceMap};
use super::{
    ADDRESSES_MAX, CPU_TIME_MAX, Defect, Depth, FRAMES_MAX, MEMORY_BYTES_MAX, MISSING_MAX, Names, PROCESS_NAME,
    REQUEST_BYTES_MAX, Reply, Request, Role, STRINGS_BYTES, decode, encode,
};
use crate::object::debug_files::{ALTERNATIVE_LINK, shared_link};
use crate::object::elf::{Elf, Section};
use crate::object::image::Image;
use crate::object::script::Spot;
use crate::symbolize::demangle::demangle;
use crate::symbolize::generated::{CodeIndex, Place};
use crate::symbolize::names::ResolvedFrame;

/// As [`ALTERNATIVE_LINK`], of DWARF 5, without a build id.
const SUPPLEMENT: &str = ".debug_sup";
const PART_BYTES: usize = 1 << 18;

/// The files of a module, in order of priority.
#[derive(Debug, Default)]
pub(in crate::symbolize) struct Files {
    opened: Vec<Opened>,
    /// The module itself.
    own: Option<Image>,
    indices: Vec<CodeIndex<File>>,
    source_map: Option<SourceMap>,
    defects: Vec<Defect>,
}

#[derive(Debug)]
struct Opened {
    image: Image,
    role: Role,
    path: PathBuf,
    has_symbols: bool,
    sections: Option<Sections>,
    /// Whether it refers to a file that others refer to as well (dwz(1)), and to which: by build id, in hexadecimal.
    shares: Option<Option<String>>,
}

pub(in crate::symbolize) struct Engine<'a> {
    symbolizer: Symbolizer,
    /// In order of priority; each is consulted for the addresses that are still unknown.
    sources: Vec<NameSource<'a>>,
    /// The module itself, until it is needed.
    own: Option<&'a Image>,
    files: &'a Files,
    /// Consulted after the sources.
    remainder: Option<Remainder>,
    defects: Vec<Defect>,
}

enum NameSource<'a> {
    DebugInfo(Box<DebugInfo<'a>>),
    SymbolTable(Source<'static>),
}

pub(in crate::symbolize) struct ModuleFile {
    pub(in crate::symbolize) role: Role,
    pub(in crate::symbolize) file: File,
    pub(in crate::symbolize) path: PathBuf,
}

impl Files {
    pub(in crate::symbolize) fn open(files: Vec<ModuleFile>, depth: Depth) -> Self {
        let mut opened = Self::default();
        for ModuleFile { role, file, path } in files {
            match role {
                Role::Linked(checksum) if crc32(&file).is_none_or(|found| found != checksum) => {
                    opened.defects.push(Defect::Checksum);
                }
                Role::Generated(format) => opened.add_index(CodeIndex::read(format, file)),
                Role::SourceMap => match SourceMap::read(&file) {
                    Ok(map) => opened.source_map = Some(map),
                    Err(NoMap::TooLarge) => opened.defects.push(Defect::Size),
                    Err(NoMap::Malformed) => opened.defects.push(Defect::NoSourceMap),
                },
                role => {
                    if role == Role::Own {
                        opened.own = file.try_clone().ok().and_then(|file| Image::new(file).ok());
                    }
                    opened.add(role, file, path, depth);
                }
            }
        }
        opened
    }

    /// Checks sizes first: the target may have forged the file.
    fn add(&mut self, role: Role, file: File, path: PathBuf, depth: Depth) {
        let Ok(image) = Image::new(file) else { return };
        let Ok(elf) = Elf::read(&image) else { return };
        let has_symbols = !matches!(role, Role::Shared(_) | Role::Package | Role::Split);
        if has_symbols && !is_readable(&image, &elf) {
            return self.defects.push(Defect::Unreadable);
        }
        let sections = match depth {
            Depth::DebugInformation => Sections::read(&image, &elf).map_err(|defect| self.defects.push(defect)).ok(),
            Depth::SymbolTables => None,
        };
        let refers = [ALTERNATIVE_LINK, SUPPLEMENT].iter().any(|name| elf.section(name).is_some());
        let shares = refers.then(|| shared_link(&image).map(|link| link.build_id.to_string()));
        self.opened.push(Opened { image, role, path, has_symbols, sections, shares });
    }

    fn add_index(&mut self, index: CodeIndex<File>) {
        self.defects.extend((index.malformed > 0).then_some(Defect::Entries(index.malformed)));
        self.defects.extend(index.is_cut.then_some(Defect::Size));
        self.indices.push(index);
    }

    fn with_role(&self, is_it: impl Fn(&Role) -> bool) -> impl Iterator<Item = &Sections> {
        self.opened.iter().filter(move |file| is_it(&file.role)).filter_map(|file| file.sections.as_ref())
    }
}

impl<'a> Engine<'a> {
    pub(in crate::symbolize) fn new(files: &'a Files) -> Self {
        let (sources, defects) = (Vec::new(), files.defects.clone());
        let own = files.own.as_ref();
        let mut engine = Self { symbolizer: symbolizer(), sources, own, files, remainder: None, defects };
        let companions = Companions {
            package: files.with_role(|role| *role == Role::Package).next(),
            split: files.with_role(|role| *role == Role::Split).collect(),
        };
        for file in files.opened.iter().filter(|file| file.has_symbols) {
            if let Some(sections) = file.sections.as_ref().filter(|sections| sections.has_units()) {
                engine.add_debug_info(file, sections, &companions);
            }
            // For symbols that debug information does not have, and for files without it.
            engine.sources.push(NameSource::SymbolTable(source(&file.path)));
        }
        engine
    }

    fn add_debug_info(&mut self, file: &'a Opened, sections: &'a Sections, companions: &Companions<'a>) {
        let find =
            |wanted: &String| self.files.with_role(|role| matches!(role, Role::Shared(id) if id == wanted)).next();
        let shared = file.shares.as_ref().map(|wanted| wanted.as_ref().and_then(find));
        self.defects.extend(matches!(shared, Some(None)).then_some(Defect::Shared));
        match catch_unwind(AssertUnwindSafe(|| DebugInfo::new(sections, shared, companions))) {
            Ok(Ok(info)) => self.sources.push(NameSource::DebugInfo(Box::new(info))),
            Ok(Err(_)) | Err(_) => self.defects.push(Defect::Malformed),
        }
    }

    pub(in crate::symbolize) fn name_generated(&mut self, places: &[Place]) -> Names {
        let frames = |place: &Place| {
            let found = self.files.indices.iter().map(|index| index.frames(*place));
            found.into_iter().find(|frames| !frames.is_empty()).unwrap_or_default()
        };
        // Names are short enough for any reply.
        let answers = places.iter().map(frames).collect();
        let defects = std::mem::take(&mut self.defects);
        Names { starts: vec![None; places.len()], answers, defects, ..Names::default() }
    }

    /// Sources of places in a script.
    pub(in crate::symbolize) fn translate(&mut self, spots: &[Spot]) -> Names {
        let mut defects = std::mem::take(&mut self.defects);
        let (found, malformed) =
            self.files.source_map.as_ref().map_or_else(Default::default, |map| map.originals(spots));
        defects.extend((malformed > 0).then_some(Defect::Entries(malformed)));
        let mut answers: Vec<Chain> = Vec::with_capacity(spots.len());
        let mut bytes = 0;
        for frame in found.into_iter().chain(std::iter::repeat(None)).take(spots.len()) {
            bytes += frame
                .iter()
                .flat_map(|frame| [&frame.function, &frame.file])
                .flatten()
                .map(|it| it.len())
                .sum::<usize>();
            answers.push(frame.into_iter().collect());
            if bytes > STRINGS_BYTES {
                break;
            }
        }
        Names { starts: vec![None; answers.len()], answers, defects, ..Names::default() }
    }

    /// As many addresses as fit into a reply.
    pub(in crate::symbolize) fn name(&mut self, addresses: &[u64]) -> Names {
        let mut chains: Vec<Option<Chain>> = addresses.iter().map(|_| None).collect();
        for at in 0..self.sources.len() {
            let open: Vec<usize> = (0..chains.len()).filter(|&index| chains[index].is_none()).collect();
            let found = self.chains_of(at, addresses, &open);
            found.into_iter().for_each(|(index, chain)| chains[index] = chain);
        }
        let starts = self.complete(addresses, &mut chains);
        let mut names = Names { defects: std::mem::take(&mut self.defects), ..Names::default() };
        for source in &self.sources {
            let NameSource::DebugInfo(info) = source else { continue };
            let (missing, count) = info.missing();
            names.missing.extend(missing);
            names.missing.truncate(MISSING_MAX);
            names.missing_count += count;
        }
        let mut bytes = 0;
        for (chain, start) in chains.into_iter().map(Option::unwrap_or_default).zip(starts) {
            let texts = chain.iter().flat_map(|frame| [&frame.function, &frame.file]).flatten();
            bytes += texts.map(|text| text.len()).sum::<usize>();
            names.answers.push(chain);
            names.starts.push(start);
            if bytes > STRINGS_BYTES {
                break;
            }
        }
        names
    }

    /// Names what the sources do not, and returns the starts of functions that still have no name.
    fn complete(&mut self, addresses: &[u64], chains: &mut [Option<Chain>]) -> Vec<Option<u64>> {
        let mut starts = vec![None; addresses.len()];
        if chains.iter().all(Option::is_some) {
            return starts;
        }
        if let Some(own) = self.own.take() {
            let files = self.files.opened.iter().filter(|file| file.has_symbols).map(|file| &file.image);
            match catch_unwind(AssertUnwindSafe(|| Remainder::read(own, files))) {
                Ok((remainder, mini)) => {
                    self.remainder = Some(remainder);
                    self.defects.extend(mini.is_err().then_some(Defect::MiniDebugInfo));
                }
                Err(_) => self.defects.push(Defect::Malformed),
            }
        }
        let Some(remainder) = &self.remainder else { return starts };
        for ((&address, chain), start) in addresses.iter().zip(chains).zip(&mut starts) {
            if chain.is_some() {
                continue;
            }
            let frame = |name| ResolvedFrame { function: Some(demangle(name).into()), ..ResolvedFrame::default() };
            match remainder.name(address) {
                Some(name) => *chain = Some(vec![frame(name)]),
                None => *start = remainder.start_of(address),
            }
        }
        starts
    }

    /// What one source knows of some of the addresses, by index.
    fn chains_of(&mut self, at: usize, addresses: &[u64], indices: &[usize]) -> Vec<(usize, Option<Chain>)> {
        if indices.is_empty() {
            return Vec::new();
        }
        let asked: Vec<u64> = indices.iter().map(|&index| addresses[index]).collect();
        let chains = || match &self.sources[at] {
            NameSource::DebugInfo(info) => self.described(info, &asked),
            NameSource::SymbolTable(source) => {
                (self.symbols(source, &asked).into_iter().map(symbol_chain).collect(), None)
            }
        };
        match catch_unwind(AssertUnwindSafe(chains)) {
            Ok((found, defect)) => {
                self.defects.extend(defect);
                indices.iter().copied().zip(found).collect()
            }
            Err(_) => {
                self.defects.push(Defect::Malformed);
                // Discard the state after a panic.
                self.symbolizer = symbolizer();
                Vec::new()
            }
        }
    }

    fn described(&self, info: &DebugInfo<'a>, addresses: &[u64]) -> (Vec<Option<Chain>>, Option<Defect>) {
        let symbol = |address| self.symbol(address);
        let scopes = Scopes::new(&symbol);
        let mut defect = None;
        let chain = |&address: &u64| {
            let (frames, is_whole) = info.frames(address);
            defect = defect.or((!is_whole).then_some(Defect::Malformed));
            self.chain(info, &scopes, address, frames)
        };
        (addresses.iter().map(chain).collect(), defect)
    }

    /// Omits inlined functions without a name.
    fn chain<'c>(
        &self,
        info: &'c DebugInfo<'a>,
        scopes: &Scopes<'c, 'a>,
        address: u64,
        frames: Vec<Found<'c>>,
    ) -> Option<Chain> {
        let outermost = frames.len().checked_sub(1)?;
        let unit = OnceCell::new();
        let mut chain = Vec::new();
        for (index, frame) in frames.into_iter().enumerate() {
            let inlined = index < outermost;
            let name = match frame.name {
                Some(name) => {
                    let unit = *unit.get_or_init(|| info.unit_of(address).filter(|unit| scopes.is_cpp(*unit)));
                    self.name_of(scopes, unit.zip(frame.entry), &dwarf::text(name), (!inlined).then_some(address))
                }
                None if inlined => continue,
                // Its lines are known, as of assembly.
                None => self.symbol(address)?,
            };
            if chain.len() < FRAMES_MAX - 1 || !inlined {
                let (function, file, line) = (Some(name.into()), frame.file, frame.line);
                chain.push(ResolvedFrame { function, file, line, inlined, start: None });
            }
        }
        Some(chain)
    }

    /// `described`: where the debug information of a C++ unit describes the function. `own`: the address, in a function that was not
    /// inlined.
    fn name_of<'c>(
        &self,
        scopes: &Scopes<'c, 'a>,
        described: Option<(UnitRef<'c, Reader<'a>>, UnitOffset)>,
        name: &str,
        own: Option<u64>,
    ) -> String {
        let Some((unit, entry)) = described.filter(|_| !name.starts_with("_Z")) else { return demangle(name) };
        let symbol = own.and_then(|address| whole_name(&self.symbol(address)?, name));
        symbol.or_else(|| Some(scopes.name(unit, entry)?.to_string())).unwrap_or_else(|| name.to_owned())
    }

    /// The demangled symbol of a function at an address.
    fn symbol(&self, address: u64) -> Option<String> {
        self.sources.iter().find_map(|source| match source {
            NameSource::SymbolTable(source) => self.symbols(source, &[address]).pop()?,
            NameSource::DebugInfo(_) => None,
        })
    }

    /// The demangled symbols of functions at addresses; fewer if the table cannot be read.
    fn symbols(&self, table: &Source<'static>, addresses: &[u64]) -> Vec<Option<String>> {
        let Ok(answers) = self.symbolizer.symbolize(table, Input::VirtOffset(addresses)) else {
            return Vec::new();
        };
        // A symbol without a size may end before the address.
        let name = |answer: &Symbolized<'_>| match answer {
            Symbolized::Sym(symbol) if symbol.size.is_some() && !symbol.name.is_empty() => Some(demangle(&symbol.name)),
            _ => None,
        };
        answers.iter().map(name).collect()
    }
}

type Chain = Vec<ResolvedFrame>;

fn symbol_chain(name: Option<String>) -> Option<Chain> {
    Some(vec![ResolvedFrame { function: Some(name?.into()), ..ResolvedFrame::default() }])
}

/// Reads symbol tables alone, of files that it is given.
fn symbolizer() -> Symbolizer {
    Symbolizer::builder()
        .enable_code_info(false)
        .enable_inlined_fns(false)
        .enable_demangling(false)
        .enable_auto_reload(false)
        .build()
}

fn source(path: &Path) -> Source<'static> {
    let mut elf = ElfSource::new(path);
    elf.debug_syms = false;
    Source::Elf(elf)
}

fn crc32(file: &File) -> Option<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut part = vec![0; PART_BYTES];
    let mut at = 0;
    loop {
        match file.read_at(&mut part, at).ok()? {
            0 => return Some(hasher.finalize()),
            count => {
                hasher.update(&part[..count]);
                at += count as u64;
            }
        }
    }
}

/// Returns whether blazesym, which maps whole files, can read the symbol tables of a file. It allocates what the headers of compressed
/// sections claim; symbol tables are not compressed.
fn is_readable(image: &Image, elf: &Elf) -> bool {
    let is_table = |section: &&Section| matches!(section.kind, SHT_SYMTAB | SHT_DYNSYM | SHT_STRTAB);
    let size_bytes = image.identity().size_bytes;
    let is_within = |section: &Section| {
        let end = section.offset.0.checked_add(section.size_bytes);
        let is_compressed = section.flags & u64::from(SHF_COMPRESSED) != 0;
        end.is_some_and(|end| end <= size_bytes) && !is_compressed
    };
    size_bytes <= FILE_BYTES_MAX && elf.sections.iter().filter(is_table).all(is_within)
}

/// Address space for mapped files: several of the largest debug files.
const ADDRESS_SPACE_BYTES_MAX: u64 = 64 << 30;
/// Half of it.
const FILE_BYTES_MAX: u64 = ADDRESS_SPACE_BYTES_MAX / 2;
/// Stack size: names and types nest.
const STACK_BYTES: u64 = 16 << 20;

/// Confines this process and answers requests until the agent closes the channel. Must be called on the main thread,
/// before others are started. Fails if standard input is not a channel, or a request is malformed.
pub fn serve() -> io::Result<()> {
    close_inherited();
    let channel = Channel::of_standard_input()?;
    companion::set_name(PROCESS_NAME);
    let confinement = confine(&Limits {
        memory_bytes: MEMORY_BYTES_MAX,
        address_space_bytes: ADDRESS_SPACE_BYTES_MAX,
        stack_bytes: STACK_BYTES,
        cpu_time: CPU_TIME_MAX,
    });
    channel.send(&encode(&Reply::Ready(confinement)), &[])?;
    let mut message = channel.receive(REQUEST_BYTES_MAX)?;
    while let Some(request) = message {
        message = answer(&channel, request, confinement.root)?;
    }
    Ok(())
}

/// Opens a module and answers requests about it, until the next message, which is returned, opens another one.
fn answer(channel: &Channel, message: Message, root: Root) -> io::Result<Option<Message>> {
    let Some(Request::Open { roles, depth }) = decode(&message.bytes) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if roles.len() != message.descriptors.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let path = |file: &File| Path::new(root.descriptors()).join(file.as_raw_fd().to_string());
    // A file of the agent's may be one that is not opened for reading (`O_PATH`).
    let open = |(given, role): (OwnedFd, &Role)| {
        let given = File::from(given);
        match role {
            Role::Generated(_) | Role::SourceMap => (given, true),
            _ => File::open(path(&given)).map_or((given, false), |opened| (opened, true)),
        }
    };
    let (files, may_use): (Vec<File>, Vec<bool>) = message.descriptors.into_iter().zip(&roles).map(open).unzip();
    let refused: Vec<usize> = (0..files.len()).filter(|&index| !may_use[index]).collect();
    channel.send(&encode(&Reply::Opened(refused)), &[])?;
    let usable = roles.into_iter().zip(files).zip(may_use).filter(|(_, may_use)| *may_use);
    let usable = usable.map(|((role, file), _)| ModuleFile { role, path: path(&file), file });
    // blazesym opens files by path, so these stay open.
    let files = Files::open(usable.collect(), depth);
    let mut engine = Engine::new(&files);
    while let Some(message) = channel.receive(REQUEST_BYTES_MAX)? {
        let names = match decode(&message.bytes) {
            Some(Request::Name { addresses }) if (1..=ADDRESSES_MAX).contains(&addresses.len()) => {
                engine.name(&addresses)
            }
            Some(Request::NameGenerated { places }) if (1..=ADDRESSES_MAX).contains(&places.len()) => {
                engine.name_generated(&places)
            }
            Some(Request::Translate { spots }) if (1..=ADDRESSES_MAX).contains(&spots.len()) => {
                engine.translate(&spots)
            }
            _ => return Ok(Some(message)),
        };
        channel.send(&encode(&Reply::Names(names)), &[])?;
    }
    Ok(None)
}
