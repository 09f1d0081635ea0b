//! What `heapbpf leaks` writes as JSON, as its readers know it, and the truth that programs of `targets/leaks/` tell. Refuses to know how
//! either came about.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::heapbpf::text;
use crate::report::{Frame, Health};

/// A check.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Check {
    pub version: u32,
    pub kind: String,
    pub pid: u32,
    pub command: String,
    pub taken_unix_ns: u64,
    pub pause_ns: u64,
    pub method: String,
    pub interval_bytes: u64,
    pub watched_ns: Option<u64>,
    pub at_exit: bool,
    pub known: Sum,
    pub leaked: Sum,
    pub direct: Sum,
    pub indirect: Sum,
    pub suppressed: Sum,
    pub heaps: Vec<Heap>,
    pub caveats: Vec<String>,
    pub leak_count: u64,
    pub leaks: Vec<Leak>,
    pub health: Health,
}

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Sum {
    pub count: u64,
    pub bytes: u64,
}

/// What is known of a heap.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Heap {
    pub name: String,
    pub precision: String,
    pub known: Sum,
    pub gaps: Vec<String>,
}

/// An entry.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Leak {
    pub address: String,
    pub size_bytes: u64,
    pub heap: Option<String>,
    pub stack: Vec<Frame>,
    pub watched: bool,
    #[serde(rename = "type")]
    pub type_name: Option<TypeName>,
    pub age_ns: Option<u64>,
    pub contents: Option<String>,
    pub cycle_count: u64,
    pub referenced: Sum,
    pub similar: Sum,
    pub similar_referenced: Sum,
    pub total_bytes: u64,
}

/// A type, and how it is known.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct TypeName {
    pub name: String,
    pub evidence: String,
}

impl Sum {
    /// This many blocks of this many bytes altogether.
    #[must_use]
    pub fn of(count: u64, bytes: u64) -> Self {
        Self { count, bytes }
    }
}

impl Check {
    /// Reads one.
    ///
    /// # Panics
    ///
    /// When it cannot be read or is none.
    #[must_use]
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let text = text(path);
        let check: Self = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:.2000}"));
        assert_eq!((check.version, check.kind.as_str()), (1, "leaks"));
        assert_eq!(check.indirect.count, check.leaked.count - check.direct.count);
        assert_eq!(check.indirect.bytes, check.leaked.bytes - check.direct.bytes);
        check
    }

    /// The entry of which a frame's function is called this.
    ///
    /// # Panics
    ///
    /// When there is another number of them.
    #[must_use]
    #[track_caller]
    pub fn leak_of(&self, function: &str) -> &Leak {
        let mut leaks = self.leaks.iter().filter(|leak| leak.functions().iter().any(|name| is_called(name, function)));
        match (leaks.next(), leaks.next()) {
            (Some(leak), None) => leak,
            (first, _) => panic!("{} leaks of `{function}`: {:#?}", usize::from(first.is_some()) * 2, self.leaks),
        }
    }
}

impl Leak {
    /// Where it is.
    ///
    /// # Panics
    ///
    /// When the address is none.
    #[must_use]
    #[track_caller]
    pub fn address(&self) -> u64 {
        let digits = self.address.strip_prefix("0x").unwrap_or_else(|| panic!("`{}`", self.address));
        u64::from_str_radix(digits, 16).unwrap_or_else(|error| panic!("{error}: `{}`", self.address))
    }

    /// The functions of its stack, from the leaf.
    #[must_use]
    pub fn functions(&self) -> Vec<&str> {
        self.stack.iter().filter_map(|frame| frame.function.as_deref()).collect()
    }
}

/// Whether a function's demangled name is of this function, whatever its namespace and arguments.
fn is_called(name: &str, function: &str) -> bool {
    let name = name.split('(').next().unwrap_or(name);
    name == function || name.ends_with(&format!("::{function}"))
}

/// A block that a program of `targets/leaks/` has made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The function that asked for it.
    pub function: String,
    /// Where it is.
    pub address: u64,
    /// Bytes that were asked for.
    pub size: u64,
    /// Bytes that the allocator gave.
    pub usable: u64,
    /// See `targets/leaks/truth.h`.
    pub fate: Fate,
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Something reaches it.
    Held,
    /// Nothing does.
    Leaked,
    /// Others hold it that it holds, and nothing else does.
    Circle,
    /// A leaked block holds it, and nothing else does.
    Under,
}

/// All that a program has made.
#[derive(Debug)]
pub struct Truth {
    made: Vec<Made>,
}

/// How a program's blocks are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// By what was asked for, with the stack that did.
    Watched,
    /// By the allocator's books.
    Walked,
}

/// An entry, as far as a program knows it: for those of the same function, any of them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// Of the function, where that is known.
    function: String,
    addresses: BTreeSet<u64>,
    sizes: BTreeSet<u64>,
    cycle_count: u64,
    count: u64,
}

impl Truth {
    /// Reads lines of `truth`.
    ///
    /// # Panics
    ///
    /// When one is none.
    #[must_use]
    #[track_caller]
    pub fn of<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> Self {
        Self { made: lines.into_iter().map(|line| Made::of(line.as_ref())).collect() }
    }

    /// Without blocks of these functions.
    #[must_use]
    pub fn without(mut self, functions: &[&str]) -> Self {
        self.made.retain(|made| !functions.contains(&made.function.as_str()));
        self
    }

    /// The only block of this function.
    ///
    /// # Panics
    ///
    /// When there is another number of them.
    #[must_use]
    #[track_caller]
    pub fn block(&self, function: &str) -> &Made {
        let made: Vec<&Made> = self.made.iter().filter(|made| made.function == function).collect();
        let [made] = made.as_slice() else { panic!("{} blocks of `{function}`", made.len()) };
        made
    }

    /// The blocks that leaked, and those of them that entries are of.
    #[must_use]
    pub fn sums(&self, known: Known) -> (Sum, Sum) {
        let mut sums = (Sum::default(), Sum::default());
        for made in self.made.iter().filter(|made| made.fate != Fate::Held) {
            let bytes = made.bytes(known);
            sums.0 = Sum::of(sums.0.count + 1, sums.0.bytes + bytes);
            if made.fate != Fate::Under {
                sums.1 = Sum::of(sums.1.count + 1, sums.1.bytes + bytes);
            }
        }
        sums
    }

    /// Leaked bytes of each function.
    #[must_use]
    pub fn leaked_bytes(&self) -> BTreeMap<String, u64> {
        let mut bytes = BTreeMap::new();
        for made in self.made.iter().filter(|made| made.fate != Fate::Held) {
            *bytes.entry(made.function.clone()).or_default() += made.bytes(Known::Watched);
        }
        bytes
    }

    /// Fails unless a check tells this and nothing else: entries by address, size and leaf function, and the sums.
    ///
    /// # Panics
    ///
    /// When it does otherwise.
    #[track_caller]
    pub fn assert_is(&self, check: &Check, known: Known) {
        self.assert_entries(check, known);
        let circles = check.leaks.iter().map(|leak| leak.cycle_count).filter(|count| *count > 1).sum::<u64>();
        assert_eq!(circles, self.made.iter().filter(|made| made.fate == Fate::Circle).count() as u64);
        for leak in check.leaks.iter().filter(|_| known == Known::Watched) {
            let leaf = self.made.iter().find(|made| made.address == leak.address()).map(|made| made.function.as_str());
            assert_eq!(leak.functions().first().copied(), leaf, "{leak:#?}");
        }
        assert_eq!((check.leaked, check.direct), self.sums(known), "leaked, direct of {:#?}", check.heaps);
    }

    /// Fails unless a check's entries are these.
    ///
    /// # Panics
    ///
    /// When they are others.
    #[track_caller]
    pub fn assert_entries(&self, check: &Check, known: Known) {
        let mut expected = self.entries(known);
        assert_eq!(check.leak_count, check.leaks.len() as u64, "a limit");
        for leak in &check.leaks {
            let place = expected.iter().position(|entry| entry.is_of(leak));
            let entry = place.map(|place| expected.swap_remove(place));
            let entry = entry.unwrap_or_else(|| panic!("{} is told and did not leak: {leak:#?}", self.say(leak)));
            assert_eq!(leak.similar.count, entry.count - 1, "{entry:?}");
            // A container may be in a circle with what is in it, which is not noted.
            assert!(leak.cycle_count == entry.cycle_count || entry.cycle_count == 1, "{entry:?}: {leak:?}");
            assert_eq!(leak.watched, known == Known::Watched, "{leak:?}");
            if known == Known::Watched {
                let functions = leak.functions();
                assert!(
                    functions
                        .iter()
                        .any(|name| is_called(name, &entry.function) || is_called(name, circle(&entry.function))),
                    "{entry:?}: {functions:?}"
                );
            }
        }
        assert!(expected.is_empty(), "missed: {expected:#?}");
    }

    /// The function of a leak that may be none.
    fn say(&self, leak: &Leak) -> String {
        let made = self.made.iter().find(|made| made.address == leak.address());
        made.map_or_else(|| format!("{}, which is none of the program's,", leak.address), |made| made.function.clone())
    }

    fn entries(&self, known: Known) -> Vec<Entry> {
        let mut groups: BTreeMap<String, Vec<&Made>> = BTreeMap::new();
        for made in self.made.iter().filter(|made| matches!(made.fate, Fate::Leaked | Fate::Circle)) {
            let name = match (made.fate, known) {
                (Fate::Circle, _) => format!("circle {}", circle(&made.function)),
                (_, Known::Watched) => made.function.clone(),
                (_, Known::Walked) => format!("{:x}", made.address),
            };
            groups.entry(name).or_default().push(made);
        }
        groups.into_values().map(|group| Entry::of(&group, known)).collect()
    }
}

impl Entry {
    fn of(group: &[&Made], known: Known) -> Self {
        let first = group.iter().min_by_key(|made| made.address).expect("groups are not empty");
        let is_circle = first.fate == Fate::Circle;
        let told = if is_circle { std::slice::from_ref(first) } else { group };
        let count = group.len() as u64;
        Self {
            function: first.function.clone(),
            addresses: told.iter().map(|made| made.address).collect(),
            sizes: told.iter().map(|made| made.bytes(known)).collect(),
            cycle_count: if is_circle { count } else { 1 },
            count: if is_circle { 1 } else { count },
        }
    }

    fn is_of(&self, leak: &Leak) -> bool {
        self.addresses.contains(&leak.address()) && self.sizes.contains(&leak.size_bytes)
    }
}

/// What the circle of a block is called.
fn circle(function: &str) -> &str {
    function.rsplit_once('_').map_or(function, |(circle, _)| circle)
}

impl Made {
    #[track_caller]
    fn of(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        let [function, address, size, usable, fate] = words[..] else { panic!("no line of truth: {line}") };
        let number =
            |digits, radix| u64::from_str_radix(digits, radix).unwrap_or_else(|error| panic!("{error}: {line}"));
        let fate = match fate {
            "held" => Fate::Held,
            "leaked" => Fate::Leaked,
            "circle" => Fate::Circle,
            "under" => Fate::Under,
            _ => panic!("no fate: {line}"),
        };
        let function = function.to_owned();
        Self { function, address: number(address, 16), size: number(size, 10), usable: number(usable, 10), fate }
    }

    /// Its bytes as a check tells them: one of no bytes takes one.
    #[must_use]
    pub fn bytes(&self, known: Known) -> u64 {
        match known {
            Known::Watched => self.size.max(1),
            Known::Walked => self.usable.max(1),
        }
    }
}
