//! Entries of debug information (DIEs), with what encloses them.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use addr2line::gimli::{
    self, AttributeValue, DebugInfoOffset, DebuggingInformationEntry, DwTag, Dwarf, Unit, UnitHeader, UnitOffset,
    UnitRef, UnitSectionOffset, UnitType,
};
use rustc_hash::FxHashMap;

use crate::symbolize::sandbox::dwarf::Reader;

/// Units read, of files and of those that they share.
#[derive(Default)]
pub(super) struct Units<'c, 'a> {
    known: RefCell<FxHashMap<UnitKey, Rc<OneUnit<'c, 'a>>>>,
    /// Headers of a file's units, by its address in memory.
    headers: RefCell<FxHashMap<usize, Rc<Headers<'a>>>>,
}

/// The file's address in memory, and where the unit starts.
type UnitKey = (usize, UnitSectionOffset);

#[derive(Default)]
struct Headers<'a> {
    /// By where they start.
    units: Vec<(usize, UnitHeader<Reader<'a>>)>,
    types: FxHashMap<u64, (UnitHeader<Reader<'a>>, UnitOffset)>,
}

pub(super) struct OneUnit<'c, 'a> {
    dwarf: &'c Dwarf<Reader<'a>>,
    unit: Held<'c, 'a>,
    tree: OnceCell<Tree>,
    is_cpp: OnceCell<bool>,
}

enum Held<'c, 'a> {
    Ours(Box<Unit<Reader<'a>>>),
    Known(&'c Unit<Reader<'a>>),
}

/// Entries that can enclose functions and types.
#[derive(Default)]
struct Tree {
    /// By where they are.
    nodes: Vec<Node>,
    /// Addresses of copies of functions that were not inlined, by where the function is described.
    copies: FxHashMap<usize, u64>,
    has_parameters: bool,
}

struct Node {
    offset: usize,
    tag: DwTag,
    parent: Option<usize>,
}

#[derive(Clone)]
pub(super) struct Entry<'c, 'a> {
    unit: Rc<OneUnit<'c, 'a>>,
    offset: UnitOffset,
}

/// What attributes state of an entry.
pub(super) struct Facts<'c, 'a> {
    pub(super) tag: DwTag,
    pub(super) name: Option<Reader<'a>>,
    /// Whether it has a name, which may be in a file that is not here.
    pub(super) is_named: bool,
    pub(super) linkage_name: Option<Reader<'a>>,
    /// Another description of the same.
    pub(super) next: Option<Reference<'c, 'a>>,
    pub(super) kind: Option<Reference<'c, 'a>>,
    pub(super) containing: Option<Reference<'c, 'a>>,
    pub(super) is_external: bool,
    pub(super) is_artificial: bool,
    pub(super) count: Option<u64>,
    /// Line and column.
    pub(super) place: (u64, u64),
}

/// A reference to an entry, perhaps of another unit.
#[derive(Clone)]
pub(super) struct Reference<'c, 'a> {
    from: Rc<OneUnit<'c, 'a>>,
    value: AttributeValue<Reader<'a>>,
}

impl<'c, 'a> Units<'c, 'a> {
    pub(super) fn of(&self, unit: UnitRef<'c, Reader<'a>>) -> Rc<OneUnit<'c, 'a>> {
        self.known(unit.dwarf, unit.unit.header.offset(), || Some(Held::Known(unit.unit)))
            .unwrap_or_else(|| Rc::new(OneUnit::new(unit.dwarf, Held::Known(unit.unit))))
    }

    fn known(
        &self,
        dwarf: &'c Dwarf<Reader<'a>>,
        offset: UnitSectionOffset,
        read: impl FnOnce() -> Option<Held<'c, 'a>>,
    ) -> Option<Rc<OneUnit<'c, 'a>>> {
        let key = (address_of(dwarf), offset);
        if let Some(known) = self.known.borrow().get(&key) {
            return Some(Rc::clone(known));
        }
        let unit = Rc::new(OneUnit::new(dwarf, read()?));
        self.known.borrow_mut().insert(key, Rc::clone(&unit));
        Some(unit)
    }

    pub(super) fn resolved(&self, reference: Reference<'c, 'a>) -> Option<Entry<'c, 'a>> {
        let Reference { from, value } = reference;
        match value {
            AttributeValue::UnitRef(offset) => Some(Entry { unit: from, offset }),
            AttributeValue::DebugInfoRef(offset) => self.at(from.dwarf, offset),
            AttributeValue::DebugInfoRefSup(offset) => self.at(from.dwarf.sup()?, offset),
            AttributeValue::DebugTypesRef(signature) => {
                let headers = self.headers(from.dwarf);
                let (header, offset) = headers.types.get(&signature.0)?;
                let unit = self.read(from.dwarf, header)?;
                Some(Entry { unit, offset: *offset })
            }
            _ => None,
        }
    }

    fn at(&self, dwarf: &'c Dwarf<Reader<'a>>, offset: DebugInfoOffset) -> Option<Entry<'c, 'a>> {
        let headers = self.headers(dwarf);
        let behind = headers.units.partition_point(|(start, _)| *start <= offset.0);
        let (_, header) = headers.units.get(behind.checked_sub(1)?)?;
        let offset = offset.to_unit_offset(header)?;
        Some(Entry { unit: self.read(dwarf, header)?, offset })
    }

    fn read(&self, dwarf: &'c Dwarf<Reader<'a>>, header: &UnitHeader<Reader<'a>>) -> Option<Rc<OneUnit<'c, 'a>>> {
        self.known(dwarf, header.offset(), || Some(Held::Ours(Box::new(dwarf.unit(*header).ok()?))))
    }

    fn headers(&self, dwarf: &'c Dwarf<Reader<'a>>) -> Rc<Headers<'a>> {
        let known = self.headers.borrow().get(&address_of(dwarf)).cloned();
        known.unwrap_or_else(|| {
            let headers = Rc::new(Headers::read(dwarf));
            self.headers.borrow_mut().insert(address_of(dwarf), Rc::clone(&headers));
            headers
        })
    }
}

fn address_of(dwarf: &Dwarf<Reader<'_>>) -> usize {
    std::ptr::from_ref(dwarf).addr()
}

impl<'a> Headers<'a> {
    /// Those before the first malformed one.
    fn read(dwarf: &Dwarf<Reader<'a>>) -> Self {
        let mut found = Self::default();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            found.add_type(&header);
            if let Some(offset) = header.debug_info_offset() {
                found.units.push((offset.0, header));
            }
        }
        let mut types = dwarf.type_units();
        while let Ok(Some(header)) = types.next() {
            found.add_type(&header);
        }
        found
    }

    fn add_type(&mut self, header: &UnitHeader<Reader<'a>>) {
        if let UnitType::Type { type_signature, type_offset } | UnitType::SplitType { type_signature, type_offset } =
            header.type_()
        {
            self.types.insert(type_signature.0, (*header, type_offset));
        }
    }
}

impl<'c, 'a> OneUnit<'c, 'a> {
    fn new(dwarf: &'c Dwarf<Reader<'a>>, unit: Held<'c, 'a>) -> Self {
        Self { dwarf, unit, tree: OnceCell::new(), is_cpp: OnceCell::new() }
    }

    fn unit(&self) -> UnitRef<'_, Reader<'a>> {
        let unit = match &self.unit {
            Held::Ours(unit) => &**unit,
            Held::Known(unit) => unit,
        };
        UnitRef::new(self.dwarf, unit)
    }

    pub(super) fn is_cpp(&self) -> bool {
        *self.is_cpp.get_or_init(|| {
            let root = self.unit().header.root_offset();
            let language = self.unit().unit.entry(root).ok().and_then(|root| root.attr_value(gimli::DW_AT_language));
            matches!(
                language,
                Some(AttributeValue::Language(
                    gimli::DW_LANG_C_plus_plus
                        | gimli::DW_LANG_C_plus_plus_03
                        | gimli::DW_LANG_C_plus_plus_11
                        | gimli::DW_LANG_C_plus_plus_14
                        | gimli::DW_LANG_C_plus_plus_17
                        | gimli::DW_LANG_C_plus_plus_20
                ))
            )
        })
    }

    /// Whether names for linkers count lambdas with each list of parameters by themselves: gcc does since version 13.
    pub(super) fn counts_by_parameters(&self) -> bool {
        let root = self.unit().unit.entry(self.unit().header.root_offset()).ok();
        let producer = root.and_then(|root| root.attr_value(gimli::DW_AT_producer));
        let producer = producer.and_then(|value| self.unit().attr_string(value).ok());
        let producer = producer.and_then(|producer| str::from_utf8(producer.slice()).ok()).unwrap_or_default();
        // As in `GNU C++17 12.2.0 -g`.
        let version =
            producer.strip_prefix("GNU C++").and_then(|rest| rest.split(' ').nth(1)?.split('.').next()?.parse().ok());
        version.is_none_or(|version: u32| version >= 13)
    }

    /// Whether the compiler has described parameters at all.
    pub(super) fn has_parameters(&self) -> bool {
        self.tree().has_parameters
    }

    /// What precedes the first malformed entry.
    fn tree(&self) -> &Tree {
        self.tree.get_or_init(|| {
            let mut tree = Tree::default();
            let _ = tree.read(self.unit());
            tree
        })
    }
}

impl Tree {
    fn read(&mut self, unit: UnitRef<'_, Reader<'_>>) -> gimli::Result<()> {
        let mut entries = unit.entries_raw(None)?;
        let mut enclosing: Vec<(isize, usize)> = Vec::new();
        let mut entry = DebuggingInformationEntry::null();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            if !entries.read_entry(&mut entry)? {
                continue;
            }
            while enclosing.last().is_some_and(|(outer, _)| *outer >= depth) {
                enclosing.pop();
            }
            self.has_parameters |= entry.tag() == gimli::DW_TAG_formal_parameter;
            if !encloses(entry.tag()) {
                continue;
            }
            if entry.tag() == gimli::DW_TAG_subprogram {
                self.add_copy(unit, &entry)?;
            }
            let parent = enclosing.last().map(|(_, node)| *node);
            enclosing.push((depth, self.nodes.len()));
            self.nodes.push(Node { offset: entry.offset().0, tag: entry.tag(), parent });
        }
        Ok(())
    }

    fn add_copy<'a>(
        &mut self,
        unit: UnitRef<'_, Reader<'a>>,
        entry: &DebuggingInformationEntry<Reader<'a>>,
    ) -> gimli::Result<()> {
        let start = match entry.attr_value(gimli::DW_AT_low_pc) {
            Some(value) => unit.attr_address(value)?,
            None if entry.has_attr(gimli::DW_AT_ranges) => unit.die_ranges(entry)?.next()?.map(|range| range.begin),
            None => None,
        };
        let Some(start) = start else { return Ok(()) };
        self.copies.insert(entry.offset().0, start);
        for name in [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification] {
            if let Some(AttributeValue::UnitRef(of)) = entry.attr_value(name) {
                self.copies.entry(of.0).or_insert(start);
            }
        }
        Ok(())
    }

    fn index_of(&self, offset: UnitOffset) -> Option<usize> {
        self.nodes.binary_search_by_key(&offset.0, |node| node.offset).ok()
    }
}

fn encloses(tag: DwTag) -> bool {
    is_namespace(tag) || is_class(tag) || tag == gimli::DW_TAG_subprogram
}

fn is_namespace(tag: DwTag) -> bool {
    tag == gimli::DW_TAG_namespace
}

/// Types that have a scope.
pub(super) fn is_class(tag: DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type
            | gimli::DW_TAG_interface_type
    )
}

impl<'c, 'a> Entry<'c, 'a> {
    pub(super) fn new(unit: Rc<OneUnit<'c, 'a>>, offset: UnitOffset) -> Self {
        Self { unit, offset }
    }

    /// Identifies it among all entries.
    pub(super) fn key(&self) -> (usize, usize) {
        (Rc::as_ptr(&self.unit).addr(), self.offset.0)
    }

    pub(super) fn unit(&self) -> &OneUnit<'c, 'a> {
        &self.unit
    }

    pub(super) fn tag(&self) -> DwTag {
        let tree = self.unit.tree();
        tree.index_of(self.offset).map_or(gimli::DW_TAG_null, |index| tree.nodes[index].tag)
    }

    pub(super) fn is_namespace(&self) -> bool {
        is_namespace(self.tag())
    }

    /// The namespace, class or function that encloses a namespace, class or function; `None` of a unit's own ones.
    pub(super) fn parent(&self) -> Option<Self> {
        let nodes = &self.unit.tree().nodes;
        let parent = nodes[self.unit.tree().index_of(self.offset)?].parent?;
        Some(self.at(nodes[parent].offset))
    }

    /// Classes in the same scope, and this one.
    pub(super) fn classes_beside(&self) -> Vec<Self> {
        let tree = self.unit.tree();
        let Some(own) = tree.index_of(self.offset) else { return Vec::new() };
        let parent = tree.nodes[own].parent;
        let beside = tree.nodes.iter().filter(|node| node.parent == parent && is_class(node.tag));
        beside.map(|node| self.at(node.offset)).collect()
    }

    /// Address of a copy of a function that was not inlined.
    pub(super) fn copy(&self) -> Option<u64> {
        self.unit.tree().copies.get(&self.offset.0).copied()
    }

    pub(super) fn has_parameters(&self) -> bool {
        let is_parameter = |tag| matches!(tag, gimli::DW_TAG_formal_parameter | gimli::DW_TAG_unspecified_parameters);
        let mut has = false;
        self.children(|_, facts| {
            has |= is_parameter(facts.tag);
            !has
        });
        has
    }

    fn at(&self, offset: usize) -> Self {
        Self { unit: Rc::clone(&self.unit), offset: UnitOffset(offset) }
    }

    pub(super) fn facts(&self) -> Option<Facts<'c, 'a>> {
        self.facts_of(&self.unit.unit().unit.entry(self.offset).ok()?)
    }

    fn facts_of(&self, entry: &DebuggingInformationEntry<Reader<'a>>) -> Option<Facts<'c, 'a>> {
        let value = |name| entry.attr_value(name);
        let text = |name| value(name).and_then(|value| self.unit.unit().attr_string(value).ok());
        let reference = |name| {
            let value = value(name)?;
            Some(Reference { from: Rc::clone(&self.unit), value })
        };
        let number = |name| value(name).and_then(|value| value.udata_value());
        let flag = |name| matches!(value(name), Some(AttributeValue::Flag(true)));
        let next =
            [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification, gimli::DW_AT_extension, gimli::DW_AT_signature];
        Some(Facts {
            tag: entry.tag(),
            name: text(gimli::DW_AT_name),
            is_named: entry.has_attr(gimli::DW_AT_name),
            linkage_name: text(gimli::DW_AT_linkage_name).or_else(|| text(gimli::DW_AT_MIPS_linkage_name)),
            next: next.into_iter().find_map(reference),
            kind: reference(gimli::DW_AT_type),
            containing: reference(gimli::DW_AT_containing_type),
            is_external: flag(gimli::DW_AT_external),
            is_artificial: flag(gimli::DW_AT_artificial),
            count: number(gimli::DW_AT_count)
                .or_else(|| number(gimli::DW_AT_upper_bound).and_then(|last| last.checked_add(1))),
            place: (number(gimli::DW_AT_decl_line).unwrap_or(0), number(gimli::DW_AT_decl_column).unwrap_or(0)),
        })
    }

    /// Calls a function for each entry directly below this one, with the entry, until it returns `false`.
    pub(super) fn children(&self, mut visit: impl FnMut(Self, Facts<'c, 'a>) -> bool) -> Option<()> {
        let unit = self.unit.unit();
        let mut entries = unit.entries_raw(Some(self.offset)).ok()?;
        let mut entry = DebuggingInformationEntry::null();
        let own = entries.next_depth();
        entries.read_entry(&mut entry).ok()?;
        if !entry.has_children() {
            return Some(());
        }
        while !entries.is_empty() && entries.next_depth() > own {
            let depth = entries.next_depth();
            if !entries.read_entry(&mut entry).ok()? {
                // The end of some entry's children.
                continue;
            }
            if depth == own + 1 {
                let child = Self { unit: Rc::clone(&self.unit), offset: entry.offset() };
                let facts = child.facts_of(&entry)?;
                if !visit(child, facts) {
                    return Some(());
                }
            }
        }
        Some(())
    }
}
