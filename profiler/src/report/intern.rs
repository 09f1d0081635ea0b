//! Tables of distinct values, numbered in order of first use: string tables, locations, stacks.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

pub(super) struct Interner<T> {
    pub(super) values: Vec<T>,
    indices: HashTable<u32>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: Vec::new(), indices: HashTable::new() }
    }
}

impl<T: Hash + Eq> Interner<T> {
    /// Returns the index of the value, which is added if it is new.
    pub(super) fn intern(&mut self, value: T) -> u32 {
        self.get(&value).unwrap_or_else(|| self.push(value))
    }

    /// Like [`Self::intern`], for borrowed values: allocates only if the value is new.
    pub(super) fn intern_ref<Q>(&mut self, value: &Q) -> u32
    where
        T: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned: Into<T>> + ?Sized,
    {
        self.get(value).unwrap_or_else(|| self.push(value.to_owned().into()))
    }

    pub(super) fn get<Q>(&self, value: &Q) -> Option<u32>
    where
        T: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let is_equal = |&index: &u32| self.values[index as usize].borrow() == value;
        self.indices.find(FxBuildHasher.hash_one(value), is_equal).copied()
    }

    fn push(&mut self, value: T) -> u32 {
        let index = u32::try_from(self.values.len()).expect("profiles number their frames in 32 bits");
        let hash = FxBuildHasher.hash_one(&value);
        self.values.push(value);
        self.indices.insert_unique(hash, index, |&index| FxBuildHasher.hash_one(&self.values[index as usize]));
        index
    }
}

impl<T: Hash + Eq> FromIterator<T> for Interner<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut interner = Self::default();
        for value in values {
            interner.intern(value);
        }
        interner
    }
}
