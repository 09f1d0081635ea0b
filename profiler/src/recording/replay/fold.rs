//! The bytes of a replay's state, which replace the entries that are folded into it.

use std::sync::Arc;

use heapbpf_base::units::Cubes;
use heapbpf_ledger::model::{Inventory, MemoryAccount, MemoryFacts};
use serde::de::DeserializeOwned;

use super::Replay;
use heapbpf_ledger::model::Program;

impl Replay {
    /// Serializes the state, followed by the third cumulants of its estimates, the accounts of resident memory, the inventories,
    /// the programs and the rights, which readers of minor version 0 ignore.
    pub(in crate::recording) fn serialized(&mut self) -> postcard::Result<Vec<u8>> {
        let state = postcard::to_allocvec(self)?;
        let cubes: Vec<Cubes> = self.cubes_mut().map(|cubes| *cubes).collect();
        let memory: Vec<&MemoryAccount> = self.accounts.values().map(|account| &*account.memory).collect();
        let inventories: Vec<Option<&Inventory>> =
            self.accounts.values().map(|account| account.memory.inventory()).collect();
        let facts = || self.accounts.values().map(|account| account.record.as_ref().map(|record| &record.facts));
        let programs: Vec<Option<&Program>> = facts().map(|facts| facts?.program.as_ref()).collect();
        let rights: Vec<_> = facts().map(|facts| facts?.rights.as_ref()).collect();
        let with_memory = postcard::to_extend(&memory, postcard::to_extend(&cubes, state)?)?;
        let with_programs = postcard::to_extend(&programs, postcard::to_extend(&inventories, with_memory)?)?;
        postcard::to_extend(&rights, with_programs)
    }

    pub(in crate::recording) fn from_bytes(bytes: &[u8]) -> postcard::Result<Self> {
        let (mut replay, rest) = postcard::take_from_bytes::<Self>(bytes)?;
        if !rest.is_empty() {
            let (cubes, rest) = postcard::take_from_bytes::<Vec<Cubes>>(rest)?;
            let (memory, rest) = postcard::take_from_bytes::<Vec<MemoryAccount>>(rest)?;
            // Minor version 1 has no inventories, version 2 no programs, and version 4 no rights.
            let (inventories, rest) = of_accounts::<Inventory>(rest, memory.len())?;
            let (programs, rest) = of_accounts::<Program>(rest, memory.len())?;
            let (rights, _) = of_accounts(rest, memory.len())?;
            let counts = [memory.len(), inventories.len(), programs.len(), rights.len()];
            if cubes.len() != replay.cubes_mut().count() || counts != [replay.accounts.len(); 4] {
                return Err(postcard::Error::DeserializeBadEncoding);
            }
            for (account, (program, rights)) in replay.accounts.values_mut().zip(programs.into_iter().zip(rights)) {
                if let Some(record) = &mut account.record {
                    (record.facts.program, record.facts.rights) = (program, rights);
                }
            }
            replay.cubes_mut().zip(cubes).for_each(|(to, from)| *to = from);
            let accounts = replay.accounts.values_mut();
            for ((account, mut memory), inventory) in accounts.zip(memory).zip(inventories) {
                memory.extend(MemoryFacts { inventory, ..MemoryFacts::default() });
                account.memory = Arc::new(memory);
            }
        }
        Ok(replay)
    }
}

/// Reads one value for each account; all values are `None` where the fold ends before.
fn of_accounts<T: Clone + DeserializeOwned>(rest: &[u8], count: usize) -> postcard::Result<(Vec<Option<T>>, &[u8])> {
    if rest.is_empty() { Ok((vec![None; count], rest)) } else { postcard::take_from_bytes(rest) }
}
