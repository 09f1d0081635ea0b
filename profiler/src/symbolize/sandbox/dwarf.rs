//! Debug information of a module: functions, inlined calls and lines of addresses, also of units whose functions are in files of their
//! own (split DWARF: `.dwo` files, or a `.dwp` file with all of them), and with strings and types in a file that several share (dwz(1)).

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use addr2line::gimli::{
    self, Dwarf, DwarfPackage, DwoId, EndianSlice, FileEntry, LittleEndian, SectionId, UnitOffset, UnitRef,
};
use addr2line::{Context, Location, LookupContinuation, LookupResult, SplitDwarfLoad};
use heapbpf_base::shown;
use rustc_hash::FxHashMap;

use super::sections::Sections;
use super::{MISSING_MAX, PATH_BYTES_MAX};

pub(super) type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Files that belong to the debug information of a module.
#[derive(Debug, Default)]
pub(super) struct Companions<'a> {
    pub(super) package: Option<&'a Sections>,
    pub(super) split: Vec<&'a Sections>,
}

pub(super) struct DebugInfo<'a> {
    context: Context<Reader<'a>>,
    package: Option<DwarfPackage<Reader<'a>>>,
    split: FxHashMap<u64, &'a Sections>,
    missing: RefCell<Vec<String>>,
    missing_count: Cell<u64>,
    /// Whether it refers to a file that is not here.
    lacks_shared: bool,
}

/// A function at an address, or the one that a call of it was inlined into.
#[derive(Debug)]
pub(super) struct Found<'a> {
    /// Name in the debug information: the one for linkers, if it has that.
    pub(super) name: Option<&'a [u8]>,
    /// Where it is described, in the unit of the address.
    pub(super) entry: Option<UnitOffset>,
    pub(super) file: Option<Arc<str>>,
    pub(super) line: Option<u32>,
}

impl Found<'_> {
    fn at(location: Option<&Location<'_>>) -> Self {
        let file = location.and_then(|location| location.file).filter(|file| is_path(file));
        // Compilers use line 0 for code without a line.
        let line = location.and_then(|location| location.line).filter(|&line| line != 0);
        Self { name: None, entry: None, file: file.map(Arc::from), line }
    }
}

impl<'a> DebugInfo<'a> {
    /// `shared`: whether this file refers to another one, and that one.
    pub(super) fn new(
        own: &'a Sections,
        shared: Option<Option<&'a Sections>>,
        companions: &Companions<'a>,
    ) -> gimli::Result<Self> {
        let mut dwarf = load(own, false)?;
        if let Some(Some(shared)) = shared {
            dwarf.set_sup(load(shared, false)?);
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let context = Context::from_dwarf(dwarf)?;
        let package = companions.package.and_then(|package| {
            let section = |id| Ok::<_, gimli::Error>(EndianSlice::new(package.get(id, true), LittleEndian));
            DwarfPackage::load(section, EndianSlice::new(&[], LittleEndian)).ok()
        });
        let split = companions.split.iter().filter_map(|split| Some((id_of(&load(split, true).ok()?)?.0, *split)));
        let (missing, missing_count) = (RefCell::default(), Cell::default());
        let lacks_shared = shared.is_some_and(|shared| shared.is_none());
        Ok(Self { context, package, split: split.collect(), missing, missing_count, lacks_shared })
    }

    /// Innermost function first; none if nothing is known. And whether all of it could be read.
    pub(super) fn frames(&self, address: u64) -> (Vec<Found<'_>>, bool) {
        match self.try_frames(address) {
            Ok(found) => (found, true),
            // Descriptions of functions may refer to a file that is not here.
            Err(_) => {
                let location = self.context.find_location(address).ok().flatten();
                (location.iter().map(|location| Found::at(Some(location))).collect(), self.lacks_shared)
            }
        }
    }

    fn try_frames(&self, address: u64) -> gimli::Result<Vec<Found<'_>>> {
        let mut lookup = self.context.find_frames(address);
        let mut frames = loop {
            match lookup {
                LookupResult::Output(frames) => break frames?,
                LookupResult::Load { load, continuation } => lookup = continuation.resume(self.load_split(&load)),
            }
        };
        let mut found = Vec::new();
        while let Some(frame) = frames.next()? {
            let name = frame.function.map(|function| function.name.slice()).filter(|name| !name.is_empty());
            let mut it = Found { name, entry: frame.dw_die_offset, ..Found::at(frame.location.as_ref()) };
            if let Some(file) = it.file.as_deref().filter(|file| file.contains(char::REPLACEMENT_CHARACTER)) {
                it.file = self.exact_path(address, file).map(Arc::from).or(it.file);
            }
            found.push(it);
        }
        Ok(found)
    }

    /// The unit in which the functions at an address are described, after they were found.
    pub(super) fn unit_of(&self, address: u64) -> Option<UnitRef<'_, Reader<'a>>> {
        self.context.find_dwarf_and_unit(address).skip_all_loads()
    }

    /// The path of a source, of which addr2line has replaced what is not UTF-8.
    fn exact_path(&self, address: u64, replaced: &str) -> Option<String> {
        let unit = self.unit_of(address)?;
        let header = unit.line_program.as_ref()?.header();
        let bytes = |value| Some(unit.attr_string(value).ok()?.slice());
        let path = |file: &FileEntry<Reader<'a>>| {
            let directory = file.directory(header).and_then(bytes).unwrap_or_default();
            let parts =
                [unit.comp_dir.map_or(&[][..], |directory| directory.slice()), directory, bytes(file.path_name())?];
            // Joins them unless one begins at the root.
            Some(parts.into_iter().map(OsStr::from_bytes).collect::<PathBuf>())
        };
        let paths = header.file_names().iter().filter_map(path);
        let mut found = paths.filter(|path| is_replaced(path.as_os_str().as_bytes(), replaced));
        found.next().map(|path| shown::os_text(&path).into_owned()).filter(|path| is_path(path))
    }

    /// Paths of files with functions of the addresses so far that were not among the companions, and the number of these files.
    pub(super) fn missing(&self) -> (Vec<String>, u64) {
        (self.missing.take(), self.missing_count.take())
    }

    fn load_split(&self, wanted: &SplitDwarfLoad<Reader<'a>>) -> Option<Arc<Dwarf<Reader<'a>>>> {
        let packed = self.package.as_ref().and_then(|package| package.find_cu(wanted.dwo_id, &wanted.parent).ok()?);
        let found = packed.or_else(|| {
            let mut dwarf = load(self.split.get(&wanted.dwo_id.0)?, true).ok()?;
            dwarf.make_dwo(&wanted.parent);
            Some(dwarf)
        });
        if found.is_none() {
            self.missing_count.set(self.missing_count.get() + 1);
            let path =
                |part: Option<Reader<'a>>| PathBuf::from(OsStr::from_bytes(part.map_or(&[], |part| part.slice())));
            let path = path(wanted.comp_dir).join(path(wanted.path));
            let mut missing = self.missing.borrow_mut();
            if let Some(path) = path.to_str().filter(|path| is_path(path) && missing.len() < MISSING_MAX) {
                missing.push(path.to_owned());
            }
        }
        found.map(Arc::new)
    }
}

fn is_path(path: &str) -> bool {
    !path.is_empty() && path.len() <= PATH_BYTES_MAX
}

/// Whether this is the text of a name in which each sequence of bytes that is not UTF-8 is replaced.
fn is_replaced(name: &[u8], text: &str) -> bool {
    let rest = name.utf8_chunks().try_fold(text, |rest, chunk| {
        let rest = rest.strip_prefix(chunk.valid())?;
        if chunk.invalid().is_empty() { Some(rest) } else { rest.strip_prefix(char::REPLACEMENT_CHARACTER) }
    });
    rest.is_some_and(str::is_empty)
}

fn load<'a>(sections: &'a Sections, is_split: bool) -> gimli::Result<Dwarf<Reader<'a>>> {
    Dwarf::load(|id: SectionId| Ok(EndianSlice::new(sections.get(id, is_split), LittleEndian)))
}

/// The number by which a file of split debug information belongs to a unit of the module.
fn id_of(split: &Dwarf<Reader<'_>>) -> Option<DwoId> {
    let mut headers = split.units();
    while let Some(header) = headers.next().ok()? {
        if let Some(id) = split.unit(header).ok()?.dwo_id {
            return Some(id);
        }
    }
    None
}

/// Text of a name in debug information.
pub(super) fn text(name: &[u8]) -> std::borrow::Cow<'_, str> {
    shown::text(name)
}
