//! Counts of blocks and bytes, and the ledgers that targets print them in.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Exact counts of blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Counts {
    pub alloc_count: u64,
    pub alloc_bytes: u64,
    pub free_count: u64,
    pub free_bytes: u64,
    pub live_count: u64,
    pub live_bytes: u64,
}

/// Estimated counts of blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Estimates {
    pub alloc_count: f64,
    pub alloc_bytes: f64,
    pub live_count: f64,
    pub live_bytes: f64,
}

/// A target's own counts for one command.
#[derive(Debug, Deserialize)]
pub struct Ledger {
    /// The most bytes that were live at once, of those allocated for this line.
    pub peak_bytes: u64,
    /// Its functions that allocate.
    pub sites: Vec<Site>,
}

/// One function of a target that allocates.
#[derive(Debug, Deserialize)]
pub struct Site {
    /// Its name.
    pub function: String,
    /// The line of its call to the allocator; 0 where that is not known.
    pub line: u32,
    /// What it did.
    #[serde(flatten)]
    pub counts: Counts,
}

impl Ledger {
    /// What each function did.
    pub fn by_function(&self) -> BTreeMap<String, Counts> {
        self.sites.iter().map(|site| (site.function.clone(), site.counts)).collect()
    }

    /// The site of this name.
    #[track_caller]
    pub fn site(&self, function: &str) -> &Site {
        self.sites.iter().find(|site| site.function == function).unwrap_or_else(|| panic!("no site `{function}`"))
    }

    /// Over all functions.
    pub fn sum(&self) -> Counts {
        self.sum_of(|_| true)
    }

    /// Over the functions of these names.
    pub fn sum_of(&self, is_meant: impl Fn(&str) -> bool) -> Counts {
        let mut sum = Counts::default();
        self.sites.iter().filter(|site| is_meant(&site.function)).for_each(|site| sum.add(site.counts));
        sum
    }
}

impl Counts {
    /// So many blocks of together so many bytes, all of which are kept.
    pub const fn kept(count: u64, bytes: u64) -> Self {
        Self {
            alloc_count: count,
            alloc_bytes: bytes,
            free_count: 0,
            free_bytes: 0,
            live_count: count,
            live_bytes: bytes,
        }
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: Self) {
        self.alloc_count += other.alloc_count;
        self.alloc_bytes += other.alloc_bytes;
        self.free_count += other.free_count;
        self.free_bytes += other.free_bytes;
        self.live_count += other.live_count;
        self.live_bytes += other.live_bytes;
    }
}

impl Estimates {
    pub(super) fn add(&mut self, other: Self) {
        self.alloc_count += other.alloc_count;
        self.alloc_bytes += other.alloc_bytes;
        self.live_count += other.live_count;
        self.live_bytes += other.live_bytes;
    }
}
