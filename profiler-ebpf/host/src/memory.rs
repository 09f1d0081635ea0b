//! Memory of a copied process.

use std::collections::BTreeMap;

use profiler_common::limits::PAGE_BYTES;

const PAGE: usize = PAGE_BYTES as usize;

/// A page.
pub type Page = Box<[u8; PAGE]>;

/// Pages by their addresses. Reads of others fail, as of unmapped ones.
#[derive(Default)]
pub struct Memory {
    pages: BTreeMap<u64, Page>,
    /// Where other pages are.
    source: Option<Box<dyn Fn(u64) -> Option<Page> + Send>>,
}

impl Memory {
    pub(crate) const fn new() -> Self {
        Self { pages: BTreeMap::new(), source: None }
    }

    /// Memory whose pages are copied when they are first read, by their addresses.
    pub fn of(source: impl Fn(u64) -> Option<Page> + Send + 'static) -> Self {
        Self { pages: BTreeMap::new(), source: Some(Box::new(source)) }
    }

    /// The pages that were written, or copied.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8; PAGE])> {
        self.pages.iter().map(|(address, page)| (*address, &**page))
    }

    /// Writes bytes, for which pages of zeros are added where there are none.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let (mut at, mut left) = (address, bytes);
        while !left.is_empty() {
            let offset = (at % PAGE_BYTES) as usize;
            let (now, later) = left.split_at(left.len().min(PAGE - offset));
            let page = self.pages.entry(at - offset as u64).or_insert_with(|| Box::new([0; PAGE]));
            page[offset..offset + now.len()].copy_from_slice(now);
            (at, left) = (at.wrapping_add(now.len() as u64), later);
        }
    }

    /// Writes words, as above.
    pub fn write_words(&mut self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.write(address, &bytes);
    }

    /// Reads all of the bytes or, as `bpf_probe_read_user`, none: then they are 0.
    pub fn read(&mut self, address: u64, target: &mut [u8]) -> bool {
        let (mut at, mut done) = (address, 0);
        while done < target.len() {
            let offset = (at % PAGE_BYTES) as usize;
            let start = at - offset as u64;
            if !self.pages.contains_key(&start)
                && let Some(page) = self.source.as_ref().and_then(|source| source(start))
            {
                self.pages.insert(start, page);
            }
            let Some(page) = self.pages.get(&start) else {
                target.fill(0);
                return false;
            };
            let now = (target.len() - done).min(PAGE - offset);
            target[done..done + now].copy_from_slice(&page[offset..offset + now]);
            (at, done) = (at.wrapping_add(now as u64), done + now);
        }
        true
    }
}
