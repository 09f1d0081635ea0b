//! The symbolizer process (`heapbpf symbolizer`, started only by the agent) runs blazesym on one module at a time. Its
//! input may be forged by a target: it can crash, exhaust memory or never end.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use flate2::read::ZlibDecoder;
use heapbpf_base::shown;
use heapbpf_linux::companion::{self, Channel, Message};
use heapbpf_linux::confinement::{Limits, Root, close_inherited, confine};
use object::LittleEndian as LE;
use object::elf::{
    CompressionHeader64, ELFCOMPRESS_ZLIB, SHF_COMPRESSED, SHT_DYNSYM, SHT_NOBITS, SHT_STRTAB, SHT_SYMTAB,
};
use object::pod::from_bytes;

use super::remainder::Remainder;
use super::{
    ADDRESSES_MAX, CPU_TIME_MAX, Defect, Depth, FRAMES_MAX, MEMORY_BYTES_MAX, Names, PROCESS_NAME, REQUEST_BYTES_MAX,
    Reply, Request, Role, STRINGS_BYTES, decode, encode,
};
use crate::object::elf::{Elf, Section};
use crate::object::image::Image;
use crate::symbolize::demangle::demangle;
use crate::symbolize::generated::{CodeIndex, Place};
use crate::symbolize::names::ResolvedFrame;

const PATH_BYTES_MAX: usize = 4096;
const REFERENCES: [&str; 3] = [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"];
const PART_BYTES: usize = 1 << 18;

pub(in crate::symbolize) struct Engine {
    symbolizer: Symbolizer,
    /// In order of priority; each is consulted for the addresses that are still unknown.
    sources: Vec<Source<'static>>,
    /// The module itself, until it is needed.
    own: Option<Image>,
    /// All files with symbol tables, until they are needed.
    files: Vec<Image>,
    /// Consulted after the sources.
    remainder: Option<Remainder>,
    /// Files with names of generated code, in order of priority.
    indices: Vec<CodeIndex<File>>,
    defects: Vec<Defect>,
    shared: Option<&'static Path>,
    is_confined: bool,
}

pub(in crate::symbolize) struct ModuleFile {
    pub(in crate::symbolize) role: Role,
    pub(in crate::symbolize) file: File,
    pub(in crate::symbolize) path: PathBuf,
}

impl Engine {
    /// `is_confined`: this process can open passed descriptors only. `shared` is a directory of shared files by build id.
    pub(in crate::symbolize) fn open(
        files: Vec<ModuleFile>,
        depth: Depth,
        is_confined: bool,
        shared: Option<&'static Path>,
    ) -> Self {
        let (sources, indices, defects) = (Vec::new(), Vec::new(), Vec::new());
        let symbolizer = symbolizer(shared);
        let mut engine = Self {
            symbolizer,
            sources,
            own: None,
            files: Vec::new(),
            remainder: None,
            indices,
            defects,
            shared,
            is_confined,
        };
        for ModuleFile { role, file, path } in files {
            match role {
                Role::Own => {
                    engine.own = file.try_clone().ok().and_then(|file| Image::new(file).ok());
                    engine.add_unverified(file, &path, depth);
                }
                // It has the build id, and is in a directory that only root can write.
                Role::DebugFile => {
                    engine.files.extend(Image::new(file));
                    engine.add(&path, depth == Depth::DebugInformation);
                }
                Role::UnverifiedDebugFile => engine.add_unverified(file, &path, depth),
                Role::Linked(checksum) if crc32(&file).is_some_and(|found| found == checksum) => {
                    engine.add_unverified(file, &path, depth);
                }
                Role::Linked(_) => engine.defects.push(Defect::Checksum),
                // blazesym finds it by its name in `shared`.
                Role::Shared(_) => {}
                Role::Generated(format) => engine.add_index(CodeIndex::read(format, file)),
            }
        }
        engine
    }

    /// Checks sizes before decompression: the target may have forged the file. Compressed symbols do not occur.
    fn add_unverified(&mut self, file: File, path: &Path, depth: Depth) {
        let Ok(image) = Image::new(file) else { return };
        let Ok(elf) = Elf::read(&image) else { return };
        if !is_readable(&image, &elf, is_table) {
            return self.defects.push(Defect::Unreadable);
        }
        if !is_bounded(&image, &elf, |name| !name.starts_with(".debug_")) {
            return self.defects.push(Defect::Compressed);
        }
        // blazesym follows these references; only an empty root directory prevents that.
        let refers = REFERENCES.iter().any(|name| elf.section(name).is_some());
        let mut with_debug_information = depth == Depth::DebugInformation && (self.is_confined || !refers);
        if with_debug_information && !is_bounded(&image, &elf, |_| true) {
            self.defects.push(Defect::Compressed);
            with_debug_information = false;
        }
        if with_debug_information && !is_readable(&image, &elf, |section| section.name.starts_with(".debug_")) {
            self.defects.push(Defect::Malformed);
            with_debug_information = false;
        }
        self.files.push(image);
        self.add(path, with_debug_information);
    }

    /// The symbol table serves for symbols that are only in `.dynsym`, and if DWARF is malformed.
    fn add(&mut self, path: &Path, with_debug_information: bool) {
        if with_debug_information {
            self.sources.push(source(path, true));
        }
        self.sources.push(source(path, false));
    }

    fn add_index(&mut self, index: CodeIndex<File>) {
        self.defects.extend((index.malformed > 0).then_some(Defect::Entries(index.malformed)));
        self.defects.extend(index.is_cut.then_some(Defect::Size));
        self.indices.push(index);
    }

    pub(in crate::symbolize) fn name_generated(&mut self, places: &[Place]) -> Names {
        let frames = |place: &Place| {
            let found = self.indices.iter().map(|index| index.frames(*place));
            found.into_iter().find(|frames| !frames.is_empty()).unwrap_or_default()
        };
        // Names are short enough for any reply.
        let answers = places.iter().map(frames).collect();
        Names { starts: vec![None; places.len()], answers, defects: std::mem::take(&mut self.defects) }
    }

    /// As many addresses as fit into a reply.
    pub(in crate::symbolize) fn name(&mut self, addresses: &[u64]) -> Names {
        let mut chains: Vec<Option<Chain>> = addresses.iter().map(|_| None).collect();
        for at in 0..self.sources.len() {
            let open: Vec<usize> = (0..chains.len()).filter(|&index| chains[index].is_none()).collect();
            let found = self.chains_of(at, addresses, &open);
            found.into_iter().for_each(|(index, chain)| chains[index] = chain);
        }
        self.qualify(addresses, &mut chains);
        let starts = self.complete(addresses, &mut chains);
        let mut names = Names { defects: std::mem::take(&mut self.defects), ..Names::default() };
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
            let files = std::mem::take(&mut self.files);
            match catch_unwind(AssertUnwindSafe(|| Remainder::read(&own, &files))) {
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

    /// DWARF of gcc lacks the linkage names of lambdas in functions that are not inline, such as `main`: `operator()` alone. The
    /// symbol table has those of lambdas that are not inlined.
    fn qualify(&mut self, addresses: &[u64], chains: &mut [Option<Chain>]) {
        for at in 0..self.sources.len() {
            if !matches!(&self.sources[at], Source::Elf(elf) if !elf.debug_syms) {
                continue;
            }
            let is_open = |index: &usize| chains[*index].as_deref().and_then(outermost) == Some(CALL_OPERATOR);
            let open: Vec<usize> = (0..chains.len()).filter(is_open).collect();
            for (index, symbol) in self.chains_of(at, addresses, &open) {
                let name = symbol.and_then(|mut chain| chain.pop()?.function);
                // Suffixes of a copy that the compiler specialised are not part of the name.
                let name = name.map(|name| Arc::from(name.split(" [.").next().unwrap_or(&name)));
                let name = name.filter(|name: &Arc<str>| name.contains(CALL_OPERATOR));
                if let (Some(name), Some(frame)) = (name, chains[index].as_mut().and_then(|chain| chain.last_mut())) {
                    frame.function = Some(name);
                }
            }
        }
    }

    /// What one source knows of some of the addresses, by index.
    fn chains_of(&mut self, at: usize, addresses: &[u64], indices: &[usize]) -> Vec<(usize, Option<Chain>)> {
        if indices.is_empty() {
            return Vec::new();
        }
        let asked: Vec<u64> = indices.iter().map(|&index| addresses[index]).collect();
        match catch_unwind(AssertUnwindSafe(|| self.chains(at, &asked))) {
            Ok(found) => indices.iter().copied().zip(found).collect(),
            Err(_) => {
                self.defects.push(Defect::Malformed);
                // Discard the state after a panic.
                self.symbolizer = symbolizer(self.shared);
                Vec::new()
            }
        }
    }

    /// Fewer answers if the source cannot be read.
    fn chains(&self, at: usize, addresses: &[u64]) -> Vec<Option<Chain>> {
        let Ok(answers) = self.symbolizer.symbolize(&self.sources[at], Input::VirtOffset(addresses)) else {
            return Vec::new();
        };
        let chain = |answer: &Symbolized<'_>| match answer {
            Symbolized::Sym(symbol) if holds(symbol) => Some(expand(symbol)),
            _ => None,
        };
        answers.iter().map(chain).collect()
    }
}

type Chain = Vec<ResolvedFrame>;

/// Name of a lambda's function without its scope.
const CALL_OPERATOR: &str = "operator()";

fn outermost(chain: &[ResolvedFrame]) -> Option<&str> {
    chain.last()?.function.as_deref()
}

/// Without a directory, references to other files are not followed.
fn symbolizer(shared: Option<&Path>) -> Symbolizer {
    Symbolizer::builder()
        .enable_code_info(true)
        .enable_inlined_fns(true)
        .enable_demangling(false)
        .enable_auto_reload(false)
        .set_debug_dirs(Some(shared))
        .build()
}

fn source(path: &Path, debug_syms: bool) -> Source<'static> {
    let mut elf = ElfSource::new(path);
    elf.debug_syms = debug_syms;
    Source::Elf(elf)
}

/// Returns whether an answer has a name and covers this address. A symbol without a size may end before it. A
/// function that DWARF describes by several ranges has no size either, but was found by them: it has address 0.
fn holds(symbol: &Sym<'_>) -> bool {
    !symbol.name.is_empty() && (symbol.size.is_some() || symbol.addr == 0)
}

/// Omits inlined functions without a name: their names are in a shared file (dwz) that is not installed.
fn expand(symbol: &Sym<'_>) -> Chain {
    let inlined = symbol.inlined.iter().rev().filter(|call| !call.name.is_empty()).take(FRAMES_MAX - 1);
    let inlined = inlined.map(|call| (&*call.name, call.code_info.as_ref(), true));
    let outer = (&*symbol.name, symbol.code_info.as_deref(), false);
    let frame = |(name, code, inlined): (&str, Option<&CodeInfo<'_>>, bool)| ResolvedFrame {
        function: Some(demangle(name).into()),
        file: code.and_then(source_path),
        // Compilers use line 0 for code without a line.
        line: code.and_then(|code| code.line).filter(|&line| line != 0),
        inlined,
        start: None,
    };
    inlined.chain([outer]).map(frame).collect()
}

fn source_path(code: &CodeInfo<'_>) -> Option<Arc<str>> {
    let path = code.to_path();
    let bytes = path.as_os_str().as_encoded_bytes();
    (!code.file.is_empty() && bytes.len() <= PATH_BYTES_MAX).then(|| shown::os_text(&*path).into())
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

fn is_table(section: &Section) -> bool {
    matches!(section.kind, SHT_SYMTAB | SHT_DYNSYM | SHT_STRTAB)
}

/// Returns whether blazesym, which maps whole files, can read these sections.
fn is_readable(image: &Image, elf: &Elf, about: impl Fn(&Section) -> bool) -> bool {
    let size_bytes = image.identity().size_bytes;
    let is_within = |section: &Section| {
        let end = section.offset.0.checked_add(section.size_bytes);
        section.kind == SHT_NOBITS || end.is_some_and(|end| end <= size_bytes)
    };
    size_bytes <= FILE_BYTES_MAX && elf.sections.iter().filter(|section| about(section)).all(is_within)
}

/// Limit for all decompressed sections of a module together.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// Returns whether the compressed sections selected by `about` have the sizes that they claim, and do not exceed the
/// limit. blazesym allocates what the headers claim and decompresses everything, so it must not read other files.
fn is_bounded(image: &Image, elf: &Elf, about: impl Fn(&str) -> bool) -> bool {
    let compressed = |section: &&Section| {
        let flagged = section.flags & u64::from(SHF_COMPRESSED) != 0;
        flagged && section.kind != SHT_NOBITS && about(&section.name)
    };
    let mut left = UNPACKED_BYTES_MAX;
    elf.sections.iter().filter(compressed).all(|section| {
        let unpacked = unpacked_bytes(image, section, left);
        unpacked.and_then(|unpacked| left.checked_sub(unpacked)).map(|rest| left = rest).is_some()
    })
}

/// Returns the decompressed size; `None` if it is not the claimed one or exceeds `bytes_max`.
fn unpacked_bytes(image: &Image, section: &Section, bytes_max: u64) -> Option<u64> {
    let bytes = image.read(section.offset, section.size_bytes, UNPACKED_BYTES_MAX).ok()?;
    let (header, packed) = from_bytes::<CompressionHeader64<LE>>(&bytes).ok()?;
    let claimed = header.ch_size.get(LE);
    if claimed > bytes_max {
        return None;
    }
    if header.ch_type.get(LE) != ELFCOMPRESS_ZLIB {
        // Support for other formats is not built in, so blazesym does not decompress them.
        return Some(0);
    }
    let real = io::copy(&mut ZlibDecoder::new(packed).take(claimed + 1), &mut io::sink()).ok()?;
    (real == claimed).then_some(claimed)
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
    let mut engine = None;
    while let Some(message) = channel.receive(REQUEST_BYTES_MAX)? {
        let reply = answer(message, confinement.root, &mut engine).ok_or(io::ErrorKind::InvalidData)?;
        channel.send(&encode(&reply), &[])?;
    }
    Ok(())
}

/// The process's private root directory.
const SHARED_DIRECTORY: &str = "/";

/// Links by which blazesym finds shared files. Returns whether there are any.
fn share(roles: &[Role], files: &[File], path: impl Fn(&File) -> PathBuf) -> bool {
    let mut any = false;
    for (role, file) in roles.iter().zip(files) {
        let Role::Shared(build_id) = role else { continue };
        let Some((first, rest)) = build_id.split_at_checked(2) else { continue };
        let directory = Path::new(SHARED_DIRECTORY).join(".build-id").join(first);
        let name = directory.join(format!("{rest}.debug"));
        // The name may be that of a previous module, whose descriptors are closed.
        let _ = fs::create_dir_all(&directory);
        let _ = fs::remove_file(&name);
        any |= symlink(path(file), name).is_ok();
    }
    any
}

fn answer(message: Message, root: Root, engine: &mut Option<(Engine, Vec<File>)>) -> Option<Reply> {
    match decode(&message.bytes)? {
        Request::Open { roles, depth } if roles.len() == message.descriptors.len() => {
            *engine = None;
            let path = |file: &File| Path::new(root.descriptors()).join(file.as_raw_fd().to_string());
            // blazesym opens files by path. A file of the agent's may be one that is not opened for reading (`O_PATH`).
            let open = |(given, role): (OwnedFd, &Role)| {
                let given = File::from(given);
                match role {
                    Role::Generated(_) => (given, true),
                    _ => File::open(path(&given)).map_or((given, false), |opened| (opened, true)),
                }
            };
            let (files, may_use): (Vec<File>, Vec<bool>) =
                message.descriptors.into_iter().zip(&roles).map(open).unzip();
            let refused: Vec<usize> = (0..files.len()).filter(|&index| !may_use[index]).collect();
            let shared = (root == Root::Private && share(&roles, &files, path)).then_some(Path::new(SHARED_DIRECTORY));
            let usable = roles.iter().zip(&files).enumerate().filter(|(index, _)| !refused.contains(index));
            let input = |(_, (role, file)): (usize, (&Role, &File))| {
                Some(ModuleFile { role: role.clone(), path: path(file), file: file.try_clone().ok()? })
            };
            let inputs = usable.filter_map(input).collect();
            *engine = Some((Engine::open(inputs, depth, root != Root::Shared, shared), files));
            Some(Reply::Opened(refused))
        }
        Request::Name { addresses } if (1..=ADDRESSES_MAX).contains(&addresses.len()) => {
            let names = engine.as_mut().map_or_else(Names::default, |(engine, _)| engine.name(&addresses));
            Some(Reply::Names(names))
        }
        Request::NameGenerated { places } if (1..=ADDRESSES_MAX).contains(&places.len()) => {
            let names = engine.as_mut().map_or_else(Names::default, |(engine, _)| engine.name_generated(&places));
            Some(Reply::Names(names))
        }
        _ => None,
    }
}
