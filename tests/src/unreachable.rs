//! Leaks of programs in `targets/leaks/`, according to the programs, to be compared with the output of `heapbpf leaks`.

mod check;

use std::collections::{BTreeMap, BTreeSet};

use check::is_named;
pub use check::{Check, Heap, Leak, Sum, TypeName};

/// A block allocated by a program of `targets/leaks/`.
#[derive(Clone, Debug)]
pub struct Made {
    /// The function that allocated it.
    pub function: String,
    /// Its address.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Bytes reserved by the allocator.
    pub usable: u64,
    /// See `targets/leaks/truth.h`.
    pub fate: Fate,
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Reachable.
    Held,
    /// Unreachable.
    Leaked,
    /// Referenced by blocks only that it references (a cycle).
    Circle,
    /// Referenced by a leaked block only.
    Under,
}

/// All blocks of a program.
#[derive(Debug)]
pub struct Truth {
    made: Vec<Made>,
}

/// How heapbpf knows a program's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// By recording: requested size, with a stack.
    Watched,
    /// By walking the heap: the allocator's size.
    Walked,
}

/// An expected entry: for blocks of the same function, any of them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The function, if it is known.
    function: String,
    addresses: BTreeSet<u64>,
    sizes: BTreeSet<u64>,
    cycle_count: u64,
    count: u64,
}

impl Truth {
    /// Parses lines of `truth`.
    #[track_caller]
    pub fn of<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> Self {
        Self { made: lines.into_iter().map(|line| Made::of(line.as_ref())).collect() }
    }

    /// Removes the blocks of these functions.
    pub fn without(mut self, functions: &[&str]) -> Self {
        self.made.retain(|made| !functions.contains(&made.function.as_str()));
        self
    }

    /// Returns the only block of this function.
    #[track_caller]
    pub fn block(&self, function: &str) -> &Made {
        let made: Vec<&Made> = self.made.iter().filter(|made| made.function == function).collect();
        let [made] = made.as_slice() else { panic!("{} blocks of `{function}`", made.len()) };
        made
    }

    /// Returns the sums of all leaked blocks, and of those with an entry.
    pub fn sums(&self, known: Known) -> (Sum, Sum) {
        let mut sums = (Sum::default(), Sum::default());
        for made in self.made.iter().filter(|made| made.fate != Fate::Held) {
            let bytes = made.bytes(known);
            sums.0 = Sum::of(sums.0.count + 1, sums.0.bytes + bytes);
        }
        for first in self.direct() {
            sums.1 = Sum::of(sums.1.count + 1, sums.1.bytes + first.bytes(known));
        }
        sums
    }

    /// Blocks that no other leaked one references, and the first one of each cycle.
    fn direct(&self) -> Vec<&Made> {
        let mut cycles: BTreeMap<&str, &Made> = BTreeMap::new();
        for made in self.made.iter().filter(|made| made.fate == Fate::Circle) {
            let first = cycles.entry(cycle(&made.function)).or_insert(made);
            if made.address < first.address {
                *first = made;
            }
        }
        self.made.iter().filter(|made| made.fate == Fate::Leaked).chain(cycles.into_values()).collect()
    }

    /// Returns the addresses of leaked blocks.
    pub fn lost(&self) -> BTreeSet<u64> {
        self.made.iter().filter(|made| made.fate != Fate::Held).map(|made| made.address).collect()
    }

    /// Returns the leaked bytes of each function.
    pub fn leaked_bytes(&self) -> BTreeMap<String, u64> {
        let mut bytes = BTreeMap::new();
        for made in self.made.iter().filter(|made| made.fate != Fate::Held) {
            *bytes.entry(made.function.clone()).or_default() += made.bytes(Known::Watched);
        }
        bytes
    }

    /// Fails unless a check has exactly these entries, by address, size and leaf function, and these sums.
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

    /// Fails unless these are the entries of a check.
    #[track_caller]
    pub fn assert_entries(&self, check: &Check, known: Known) {
        let mut expected = self.entries(known);
        assert_eq!(check.leak_count, check.leaks.len() as u64, "a limit");
        for leak in &check.leaks {
            let place = expected.iter().position(|entry| entry.is_of(leak));
            let entry = place.map(|place| expected.swap_remove(place));
            let entry = entry.unwrap_or_else(|| panic!("{} is reported and did not leak: {leak:#?}", self.say(leak)));
            assert_eq!(leak.similar.count, entry.count - 1, "{entry:?}");
            if entry.cycle_count == 1 && entry.count <= 100 {
                assert_eq!(leak.addresses(), entry.addresses, "{entry:?}");
            }
            // A container may be in a cycle with its elements, which is not part of the truth.
            assert!(leak.cycle_count == entry.cycle_count || entry.cycle_count == 1, "{entry:?}: {leak:?}");
            assert_eq!(leak.watched, known == Known::Watched, "{leak:?}");
            if known == Known::Watched {
                let functions = leak.functions();
                assert!(
                    functions
                        .iter()
                        .any(|name| is_named(name, &entry.function) || is_named(name, cycle(&entry.function))),
                    "{entry:?}: {functions:?}"
                );
            }
        }
        assert!(expected.is_empty(), "missed: {expected:#?}");
    }

    /// Describes a leak with its function, if any.
    fn say(&self, leak: &Leak) -> String {
        let made = self.made.iter().find(|made| made.address == leak.address());
        made.map_or_else(|| format!("{}, which is none of the program's,", leak.address), |made| made.function.clone())
    }

    fn entries(&self, known: Known) -> Vec<Entry> {
        let mut groups: BTreeMap<String, Vec<&Made>> = BTreeMap::new();
        for made in self.made.iter().filter(|made| matches!(made.fate, Fate::Leaked | Fate::Circle)) {
            let name = match (made.fate, known) {
                (Fate::Circle, _) => format!("cycle {}", cycle(&made.function)),
                (_, Known::Watched) => made.function.clone(),
                // Without a stack and a type, blocks of one size are one entry.
                (_, Known::Walked) => format!("{} bytes", made.bytes(known)),
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

/// Name of the cycle of a block.
fn cycle(function: &str) -> &str {
    function.rsplit_once('_').map_or(function, |(cycle, _)| cycle)
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

    /// Returns its size in a check, at least one.
    pub fn bytes(&self, known: Known) -> u64 {
        match known {
            Known::Watched => self.size.max(1),
            Known::Walked => self.usable.max(1),
        }
    }
}
