//! Types of parameters and classes, spelled as the demangler spells them.

use std::rc::Rc;

use addr2line::gimli;

use super::basic::in_template;
use super::entry::{Entry, Facts, is_class};
use super::{NESTING_MAX, Scopes, text};
use crate::symbolize::demangle::NAME_BYTES_MAX;

/// Names for linkers of lambdas' functions have this name.
const CALL_OPERATOR: &[u8] = b"operator()";
/// gcc's names of lambdas' classes begin with it.
const LAMBDA: &[u8] = b"<lambda";

impl<'c, 'a> Scopes<'c, 'a> {
    /// Types of a function's parameters in parentheses, and ` const` of a function that is.
    pub(super) fn parameters(&self, function: &Entry<'c, 'a>, depth: u32) -> Option<String> {
        let (mut types, mut is_const, mut is_whole) = (Vec::new(), false, true);
        let mut bytes = 0;
        function.children(|_, facts| {
            match facts.tag {
                gimli::DW_TAG_formal_parameter if facts.is_artificial => is_const |= self.is_const_this(facts),
                gimli::DW_TAG_formal_parameter => match self.spell(facts, depth + 1) {
                    Some(spelled) => {
                        bytes += spelled.len();
                        types.push(spelled);
                    }
                    None => is_whole = false,
                },
                gimli::DW_TAG_unspecified_parameters => types.push("...".to_owned()),
                _ => {}
            }
            is_whole && bytes <= NAME_BYTES_MAX
        })?;
        is_whole.then(|| format!("({}){}", types.join(", "), if is_const { " const" } else { "" }))
    }

    /// Whether `this` points to what is constant.
    fn is_const_this(&self, this: Facts<'c, 'a>) -> bool {
        let target = |facts: Facts<'c, 'a>| self.units.resolved(facts.kind?)?.facts();
        // In a definition, `this` itself is constant, too.
        let pointer = target(this);
        let pointer = match pointer {
            Some(facts) if facts.tag == gimli::DW_TAG_const_type => target(facts),
            pointer => pointer,
        };
        pointer.and_then(target).is_some_and(|facts| facts.tag == gimli::DW_TAG_const_type)
    }

    /// The type of a parameter, of an array's elements, and the like: `void` if there is none.
    fn spell(&self, of: Facts<'c, 'a>, depth: u32) -> Option<String> {
        self.declare(of, "", depth)
    }

    /// The type, as in the declaration of something: `int (*)[3]` is a declaration of `(*)`.
    fn declare(&self, of: Facts<'c, 'a>, declared: &str, depth: u32) -> Option<String> {
        if depth >= NESTING_MAX || declared.len() > NAME_BYTES_MAX {
            return None;
        }
        self.step()?;
        let Some(reference) = of.kind else { return Some(format!("void{declared}")) };
        let entry = self.units.resolved(reference)?;
        let facts = entry.facts()?;
        let depth = depth + 1;
        let behind = |facts, suffix: &str| Some(format!("{}{suffix}{declared}", self.spell(facts, depth)?));
        match facts.tag {
            gimli::DW_TAG_const_type => behind(facts, " const"),
            gimli::DW_TAG_volatile_type => behind(facts, " volatile"),
            gimli::DW_TAG_restrict_type | gimli::DW_TAG_atomic_type => behind(facts, ""),
            gimli::DW_TAG_typedef | gimli::DW_TAG_template_alias => self.declare(facts, declared, depth),
            gimli::DW_TAG_pointer_type => self.point(facts, "*", declared, depth),
            gimli::DW_TAG_reference_type => self.point(facts, "&", declared, depth),
            gimli::DW_TAG_rvalue_reference_type => self.point(facts, "&&", declared, depth),
            gimli::DW_TAG_ptr_to_member_type => {
                let class = self.class(&self.units.resolved(facts.containing.clone()?)?, depth)?;
                if self.tag_of(&facts) == Some(gimli::DW_TAG_subroutine_type) {
                    self.declare(facts, &format!("({class}::*{declared})"), depth)
                } else {
                    behind(facts, &format!(" {class}::*"))
                }
            }
            gimli::DW_TAG_subroutine_type => {
                let parameters = self.parameters(&entry, depth)?;
                let returned = self.spell(facts, depth)?;
                Some(format!("{returned} {declared}{parameters}"))
            }
            gimli::DW_TAG_array_type => {
                let mut lengths = String::new();
                entry.children(|_, child| {
                    if child.tag == gimli::DW_TAG_subrange_type {
                        lengths += &child.count.map_or_else(|| "[]".to_owned(), |count| format!("[{count}]"));
                    }
                    lengths.len() <= NAME_BYTES_MAX
                })?;
                let space = if declared.is_empty() { "" } else { " " };
                Some(format!("{}{space}{declared} {lengths}", self.spell(facts, depth)?))
            }
            tag if is_class(tag) => Some(format!("{}{declared}", self.class(&entry, depth)?)),
            // Of the language.
            _ => Some(format!("{}{declared}", in_template(&text(facts.name?.slice())))),
        }
    }

    fn point(&self, facts: Facts<'c, 'a>, sign: &str, declared: &str, depth: u32) -> Option<String> {
        match self.tag_of(&facts) {
            Some(gimli::DW_TAG_subroutine_type | gimli::DW_TAG_array_type) => {
                self.declare(facts, &format!("({sign}{declared})"), depth)
            }
            _ => Some(format!("{}{sign}{declared}", self.spell(facts, depth)?)),
        }
    }

    /// What kind of type it refers to.
    fn tag_of(&self, facts: &Facts<'c, 'a>) -> Option<gimli::DwTag> {
        Some(self.units.resolved(facts.kind.clone()?)?.facts()?.tag)
    }

    /// The qualified name of a class or enumeration.
    pub(super) fn class(&self, entry: &Entry<'c, 'a>, depth: u32) -> Option<Rc<str>> {
        self.remembered(entry, depth, |depth| self.class_name(entry, depth))
    }

    fn class_name(&self, entry: &Entry<'c, 'a>, depth: u32) -> Option<String> {
        let facts = entry.facts()?;
        if let (false, Some(next)) = (facts.is_named, facts.next) {
            return Some(self.class(&self.units.resolved(next)?, depth + 1)?.to_string());
        }
        let (scope, _) = self.scope(entry, depth)?;
        let name = match facts.name {
            Some(name) if !name.slice().starts_with(LAMBDA) => {
                return Some(format!("{scope}{}", in_template(&text(name.slice()))));
            }
            None if facts.is_named => return None,
            name => name,
        };
        if let Some(signature) = self.lambda(entry, depth) {
            let by_parameters = entry.unit().counts_by_parameters();
            let is_like = |other: &Entry<'c, 'a>| {
                self.lambda(other, depth).is_some_and(|other| !by_parameters || other == signature)
            };
            return Some(format!("{scope}{{lambda{signature}#{}}}", self.number_of(entry, is_like)));
        }
        if let Some(name) = name {
            return Some(format!("{scope}{}", text(name.slice())));
        }
        let number = self.number_of(entry, |other| self.lambda(other, depth).is_none());
        Some(format!("{scope}{{unnamed type#{number}}}"))
    }

    /// Parameters of a lambda, if the class is one.
    fn lambda(&self, class: &Entry<'c, 'a>, depth: u32) -> Option<String> {
        self.step()?;
        let mut function = None;
        class.children(|child, facts| {
            if facts.tag == gimli::DW_TAG_subprogram && facts.name.is_some_and(|name| name.slice() == CALL_OPERATOR) {
                function = Some(child);
            }
            function.is_none()
        })?;
        let parameters = self.parameters(&function?, depth)?;
        Some(parameters.strip_suffix(" const").unwrap_or(&parameters).to_owned())
    }

    /// Which one of the classes like it in its scope it is, in the order of the source, as names for linkers count them: from 1.
    fn number_of(&self, class: &Entry<'c, 'a>, is_like: impl Fn(&Entry<'c, 'a>) -> bool) -> usize {
        let place = |entry: &Entry<'c, 'a>| {
            let facts = entry.facts()?;
            Some((facts.place, entry.key().1))
        };
        let Some(own) = place(class) else { return 1 };
        let has_no_name = |entry: &Entry<'c, 'a>| {
            let facts = entry.facts();
            facts.is_some_and(|facts| match facts.name {
                Some(name) => name.slice().starts_with(LAMBDA),
                None => !facts.is_named && facts.next.is_none(),
            })
        };
        let before = class.classes_beside().into_iter();
        let before = before.filter(|other| place(other).is_some_and(|other| other < own));
        1 + before.filter(|other| has_no_name(other) && is_like(other)).count()
    }
}
