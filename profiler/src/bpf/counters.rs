//! The kernel side's counters, summed over CPUs.

use aya::maps::{MapData, MapError, PerCpuArray};
use profiler_common::counter::Counter;

use super::load::{Kernel, LoadError};

const COUNTERS: &str = "COUNTERS";

#[derive(Clone, Debug)]
pub struct Counters([u64; Counter::COUNT as usize]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; Counter::COUNT as usize])
    }
}

impl Counters {
    pub fn read(kernel: &Kernel) -> Result<Self, LoadError> {
        let map = map(kernel)?;
        let mut counters = [0; Counter::COUNT as usize];
        for &counter in Counter::ALL {
            let values = map.get(&(counter as u32), 0).map_err(failed)?;
            counters[counter as usize] = values.iter().copied().fold(0, u64::saturating_add);
        }
        Ok(Self(counters))
    }

    /// Reads one counter, which takes a system call.
    pub fn read_one(kernel: &Kernel, counter: Counter) -> Result<u64, LoadError> {
        Ok(map(kernel)?.get(&(counter as u32), 0).map_err(failed)?.iter().sum())
    }

    /// Adds events that the agent has counted itself.
    pub fn add(&mut self, counter: Counter, count: u64) {
        self.0[counter as usize] += count;
    }

    /// Subtracts events that the kernel side has counted although they did not happen.
    pub fn subtract(&mut self, counter: Counter, count: u64) {
        let counted = &mut self.0[counter as usize];
        *counted = counted.saturating_sub(count);
    }

    /// Counts `count` events of one counter as those of another.
    pub fn recount(&mut self, from: Counter, to: Counter, count: u64) {
        let count = count.min(self.get(from));
        self.0[from as usize] -= count;
        self.0[to as usize] += count;
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    pub fn losses(&self) -> impl Iterator<Item = (Counter, u64)> {
        self.nonzero().filter(|(counter, _)| counter.is_loss())
    }

    pub fn stack_ends(&self) -> impl Iterator<Item = (Counter, u64)> {
        self.nonzero().filter(|(counter, _)| counter.is_stack_end())
    }

    fn nonzero(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter))).filter(|(_, count)| *count > 0)
    }
}

fn map(kernel: &Kernel) -> Result<PerCpuArray<&MapData, u64>, LoadError> {
    PerCpuArray::try_from(kernel.map(COUNTERS)?).map_err(failed)
}

fn failed(source: MapError) -> LoadError {
    LoadError::Map { name: COUNTERS, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;

    #[test]
    fn the_agents_own_drops_are_added() {
        let mut counters = Counters::read(&fixture::kernel(LinkKind::Perf)).expect("the map is there");
        assert_eq!(counters.losses().count(), 0);
        counters.add(Counter::TargetsFull, 0);
        assert_eq!(counters.losses().count(), 0, "zero is no loss");
        counters.add(Counter::TargetsFull, 2);
        counters.add(Counter::TargetsFull, 1);
        assert_eq!(counters.losses().collect::<Vec<_>>(), [(Counter::TargetsFull, 3)]);
        counters.subtract(Counter::TargetsFull, 2);
        assert_eq!(counters.get(Counter::TargetsFull), 1);
        counters.subtract(Counter::TargetsFull, 2);
        assert_eq!(counters.get(Counter::TargetsFull), 0, "not below zero");
    }
}
