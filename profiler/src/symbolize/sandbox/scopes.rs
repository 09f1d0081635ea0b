//! Qualified names of C++ functions that debug information describes without a name for linkers, as gcc does in unnamed namespaces and
//! in functions: by the symbol of a copy that was not inlined, else by the enclosing entries and the types of the parameters, spelled
//! as `demangle` spells them. So the same function has one name, wherever it was inlined.

mod basic;
mod entry;
mod spelling;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use addr2line::gimli::{self, UnitOffset, UnitRef};
use rustc_hash::FxHashMap;

use self::basic::in_template;
use self::entry::{Entry, Units};
use super::dwarf::{Reader, text};
use crate::symbolize::demangle::{NAME_BYTES_MAX, demangle};

/// Entries read for one name: types nest, and files may be forged.
const STEPS_MAX: u32 = 4096;
/// References from one description of a function to the next.
const REFERENCES_MAX: usize = 16;
const NESTING_MAX: u32 = 32;

pub(super) struct Scopes<'c, 'a> {
    units: Units<'c, 'a>,
    names: RefCell<FxHashMap<(usize, usize), Name>>,
    /// The demangled symbol at an address.
    symbol: &'c dyn Fn(u64) -> Option<String>,
    steps: Cell<u32>,
}

/// `None` if the debug information does not have it.
type Name = Option<Rc<str>>;

/// A function's descriptions, from that of a copy to the declaration.
struct Descriptions<'c, 'a> {
    all: Vec<Entry<'c, 'a>>,
    name: Option<Reader<'a>>,
    linkage_name: Option<Reader<'a>>,
    is_external: bool,
}

impl<'c, 'a> Descriptions<'c, 'a> {
    /// The description that has the parameters: the declaration, unless types are in units of their own.
    fn with_parameters(&self) -> Option<&Entry<'c, 'a>> {
        self.all.iter().rev().find(|entry| entry.has_parameters())
    }
}

impl<'c, 'a> Scopes<'c, 'a> {
    pub(super) fn new(symbol: &'c dyn Fn(u64) -> Option<String>) -> Self {
        Self { units: Units::default(), names: RefCell::default(), symbol, steps: Cell::default() }
    }

    /// Whether names in this unit lack their scope unless they are those for linkers.
    pub(super) fn is_cpp(&self, unit: UnitRef<'c, Reader<'a>>) -> bool {
        self.units.of(unit).is_cpp()
    }

    /// The qualified name of a function, with its parameters; `None` if the debug information does not have it.
    pub(super) fn name(&self, unit: UnitRef<'c, Reader<'a>>, entry: UnitOffset) -> Option<Rc<str>> {
        self.steps.set(STEPS_MAX);
        self.function(&Entry::new(self.units.of(unit), entry), 0)
    }

    fn function(&self, entry: &Entry<'c, 'a>, depth: u32) -> Option<Rc<str>> {
        self.remembered(entry, depth, |depth| self.function_name(&self.describe(entry)?, depth))
    }

    /// Reads a name once. One that was cut short because it nests is whole elsewhere.
    fn remembered(
        &self,
        entry: &Entry<'c, 'a>,
        depth: u32,
        read: impl FnOnce(u32) -> Option<String>,
    ) -> Option<Rc<str>> {
        let key = entry.key();
        if let Some(known) = self.names.borrow().get(&key) {
            return known.clone();
        }
        if depth >= NESTING_MAX {
            return None;
        }
        self.step()?;
        let name: Option<Rc<str>> = read(depth).map(|name| bounded(name).into());
        if name.is_some() || depth == 0 {
            self.names.borrow_mut().insert(key, name.clone());
        }
        name
    }

    fn function_name(&self, found: &Descriptions<'c, 'a>, depth: u32) -> Option<String> {
        if let Some(name) = found.linkage_name {
            return Some(demangle(&text(name.slice())));
        }
        let name = text(found.name?.slice());
        let symbol = found.all.iter().filter_map(Entry::copy).find_map(self.symbol);
        if let Some(symbol) = symbol.and_then(|symbol| whole_name(&symbol, &name)) {
            return Some(symbol);
        }
        let declaration = found.all.last()?;
        let (scope, is_hidden) = self.scope(declaration, depth)?;
        // `main`, and functions with C linkage, have no parameters in their names.
        if found.is_external && !is_hidden && declaration.parent().is_none_or(|parent| parent.is_namespace()) {
            return Some(name.into_owned());
        }
        let parameters = match declaration.unit().has_parameters() {
            true => self.parameters(found.with_parameters().unwrap_or(declaration), depth).unwrap_or_default(),
            // As of `-g1`.
            false => String::new(),
        };
        Some(format!("{scope}{}{parameters}", in_template(&name)))
    }

    /// Names of what encloses an entry, each followed by `::`, and whether some of it has no name, so that other files cannot use it.
    fn scope(&self, entry: &Entry<'c, 'a>, depth: u32) -> Option<(String, bool)> {
        let Some(parent) = entry.parent() else { return Some((String::new(), false)) };
        if depth >= NESTING_MAX {
            return None;
        }
        self.step()?;
        if parent.tag() == gimli::DW_TAG_subprogram {
            return Some((format!("{}::", self.function(&parent, depth + 1)?), true));
        }
        if parent.is_namespace() {
            let (outer, is_hidden) = self.scope(&parent, depth + 1)?;
            let facts = parent.facts()?;
            let name = match facts.name {
                Some(name) => text(name.slice()),
                None if facts.is_named => return None,
                // A namespace may be continued elsewhere.
                None => {
                    let continued = facts.next.and_then(|next| self.units.resolved(next)?.facts()?.name);
                    continued.map_or(ANONYMOUS.into(), |name| text(name.slice()))
                }
            };
            let is_hidden = is_hidden || name == ANONYMOUS;
            return Some((format!("{outer}{name}::"), is_hidden));
        }
        Some((format!("{}::", self.class(&parent, depth + 1)?), false))
    }

    fn describe(&self, entry: &Entry<'c, 'a>) -> Option<Descriptions<'c, 'a>> {
        let mut found = Descriptions { all: Vec::new(), name: None, linkage_name: None, is_external: false };
        let mut next = Some(entry.clone());
        while let Some(entry) = next.take().filter(|_| found.all.len() < REFERENCES_MAX) {
            self.step()?;
            let facts = entry.facts()?;
            found.name = found.name.or(facts.name);
            found.linkage_name = found.linkage_name.or(facts.linkage_name);
            found.is_external |= facts.is_external;
            found.all.push(entry);
            next = facts.next.and_then(|next| self.units.resolved(next));
        }
        Some(found)
    }

    fn step(&self) -> Option<()> {
        self.steps.set(self.steps.get().checked_sub(1)?);
        Some(())
    }
}

const ANONYMOUS: &str = "(anonymous namespace)";

fn bounded(mut name: String) -> String {
    if name.len() > NAME_BYTES_MAX {
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        name.push('…');
    }
    name
}

/// Returns a symbol without suffixes of copies that the compiler has split off, if it is of a function with this name. The symbol of a
/// function with C linkage is its name.
pub(super) fn whole_name(symbol: &str, name: &str) -> Option<String> {
    let symbol = symbol.split(" [.").next().unwrap_or(symbol);
    // As demangled, or as it is.
    if symbol.split('.').next() == Some(name) {
        return Some(name.to_owned());
    }
    // Arguments of templates may be spelled otherwise.
    let base = if name.starts_with("operator") { name } else { name.split('<').next().unwrap_or(name) };
    let is_it = |(at, _): (usize, &str)| {
        let (before, after) = (&symbol[..at], &symbol[at + base.len()..]);
        (before.is_empty() || before.ends_with("::") || before.ends_with(' ')) && after.starts_with(['(', '<'])
    };
    (!base.is_empty() && symbol.match_indices(base).any(is_it)).then(|| symbol.to_owned())
}

#[cfg(test)]
mod tests;
