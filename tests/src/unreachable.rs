//! What `heapbpf leaks` tells, and the truth that programs of `targets/leaks/` tell. Refuses to know how either came about.

mod check;

use std::collections::{BTreeMap, BTreeSet};

use check::is_called;
pub use check::{Check, Heap, Leak, Sum, TypeName};

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
    #[track_caller]
    pub fn of<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> Self {
        Self { made: lines.into_iter().map(|line| Made::of(line.as_ref())).collect() }
    }

    /// Without blocks of these functions.
    pub fn without(mut self, functions: &[&str]) -> Self {
        self.made.retain(|made| !functions.contains(&made.function.as_str()));
        self
    }

    /// The only block of this function.
    ///
    /// # Panics
    ///
    /// When there is another number of them.
    #[track_caller]
    pub fn block(&self, function: &str) -> &Made {
        let made: Vec<&Made> = self.made.iter().filter(|made| made.function == function).collect();
        let [made] = made.as_slice() else { panic!("{} blocks of `{function}`", made.len()) };
        made
    }

    /// The blocks that leaked, and those of them that entries are of.
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

    /// Where blocks leaked.
    pub fn lost(&self) -> BTreeSet<u64> {
        self.made.iter().filter(|made| made.fate != Fate::Held).map(|made| made.address).collect()
    }

    /// Leaked bytes of each function.
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
    pub fn bytes(&self, known: Known) -> u64 {
        match known {
            Known::Watched => self.size.max(1),
            Known::Walked => self.usable.max(1),
        }
    }
}
