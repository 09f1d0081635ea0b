//! The JSON report of `heapbpf leaks`.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

use crate::heapbpf::text;
use crate::report::{Frame, Health};

/// The report of one check.
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
    pub signal: Option<String>,
    pub unchecked_children: u64,
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

/// Number and bytes of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Sum {
    pub count: u64,
    pub bytes: u64,
}

/// Coverage of a heap.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Heap {
    pub name: String,
    pub precision: String,
    pub known: Sum,
    pub gaps: Vec<String>,
}

/// A leak.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Leak {
    pub address: String,
    pub size_bytes: u64,
    pub usable_size: bool,
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
    pub similar_addresses: Vec<String>,
    pub similar_referenced: Sum,
    pub total_bytes: u64,
}

/// A type, and the evidence for it.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct TypeName {
    pub name: String,
    pub evidence: String,
}

impl Sum {
    /// This number of blocks with this total size.
    pub fn of(count: u64, bytes: u64) -> Self {
        Self { count, bytes }
    }
}

impl Check {
    /// Reads a report.
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let text = text(path);
        let check: Self = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:.2000}"));
        assert_eq!((check.version, check.kind.as_str()), (1, "leaks"));
        assert_eq!(check.indirect.count, check.leaked.count - check.direct.count);
        assert_eq!(check.indirect.bytes, check.leaked.bytes - check.direct.bytes);
        check
    }

    /// Returns the heap with this name.
    #[track_caller]
    pub fn heap(&self, name: &str) -> &Heap {
        let heap = self.heaps.iter().find(|heap| heap.name == name);
        heap.unwrap_or_else(|| panic!("no `{name}` among {:?}", self.heaps))
    }

    /// Lists the leaks for assertion messages.
    pub fn leak_list(&self) -> String {
        let line = |leak: &Leak| {
            let functions: Vec<&str> = leak.functions().into_iter().take(6).collect();
            format!("  {} {} bytes, similar {:?}: {functions:?}\n", leak.address, leak.size_bytes, leak.similar)
        };
        let lines: String = self.leaks.iter().map(line).collect();
        format!("leaked {:?} of {:?}, caveats {:?}\n{lines}", self.leaked, self.known, self.caveats)
    }

    /// Returns the only leak with a frame of this function.
    #[track_caller]
    pub fn leak_of(&self, function: &str) -> &Leak {
        let mut leaks = self.leaks.iter().filter(|leak| leak.functions().iter().any(|name| is_named(name, function)));
        match (leaks.next(), leaks.next()) {
            (Some(leak), None) => leak,
            (first, _) => panic!("{} leaks of `{function}`: {:#?}", usize::from(first.is_some()) * 2, self.leaks),
        }
    }
}

impl Leak {
    /// Returns its address.
    #[track_caller]
    pub fn address(&self) -> u64 {
        number(&self.address)
    }

    /// Returns the addresses of the leak and of similar ones, as far as they are listed.
    #[track_caller]
    pub fn addresses(&self) -> BTreeSet<u64> {
        std::iter::once(&self.address).chain(&self.similar_addresses).map(|address| number(address)).collect()
    }

    /// Returns the functions of its stack, from the leaf.
    pub fn functions(&self) -> Vec<&str> {
        self.stack.iter().filter_map(|frame| frame.function.as_deref()).collect()
    }
}

#[track_caller]
fn number(address: &str) -> u64 {
    let digits = address.strip_prefix("0x").unwrap_or_else(|| panic!("`{address}`"));
    u64::from_str_radix(digits, 16).unwrap_or_else(|error| panic!("{error}: `{address}`"))
}

/// Whether a demangled name is of this function, in any namespace and with any arguments.
pub(super) fn is_named(name: &str, function: &str) -> bool {
    let name = name.split('(').next().unwrap_or(name);
    name == function || name.ends_with(&format!("::{function}"))
}
