//! The kernel side's counters, summed over CPUs.

use aya::maps::PerCpuArray;
use profiler_common::counter::Counter;

use super::load::{Kernel, LoadError};

/// All counters at an instant.
#[derive(Clone, Debug)]
pub struct Counters([u64; Counter::COUNT as usize]);

impl Counters {
    /// Reads them.
    pub fn read(kernel: &Kernel) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Map { name: "COUNTERS", source };
        let map: PerCpuArray<_, u64> = PerCpuArray::try_from(kernel.map("COUNTERS")?).map_err(failed)?;
        let mut counters = [0; Counter::COUNT as usize];
        for &counter in Counter::ALL {
            let values = map.get(&(counter as u32), 0).map_err(failed)?;
            counters[counter as usize] = values.iter().sum();
        }
        Ok(Self(counters))
    }

    /// Reads one of them, which takes a system call.
    pub fn read_one(kernel: &Kernel, counter: Counter) -> Result<u64, LoadError> {
        let failed = |source| LoadError::Map { name: "COUNTERS", source };
        let map: PerCpuArray<_, u64> = PerCpuArray::try_from(kernel.map("COUNTERS")?).map_err(failed)?;
        Ok(map.get(&(counter as u32), 0).map_err(failed)?.iter().sum())
    }

    /// Adds what the agent has met of the same.
    pub fn add(&mut self, counter: Counter, count: u64) {
        self.0[counter as usize] += count;
    }

    /// One of them.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Losses by reason, those that happened.
    pub fn losses(&self) -> impl Iterator<Item = (Counter, u64)> {
        self.nonzero().filter(|(counter, _)| counter.is_loss())
    }

    /// Stacks by how they ended, those that occurred.
    pub fn stack_ends(&self) -> impl Iterator<Item = (Counter, u64)> {
        self.nonzero().filter(|(counter, _)| counter.is_stack_end())
    }

    fn nonzero(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter))).filter(|(_, count)| *count > 0)
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;

    #[test]
    fn what_the_agent_met_is_a_loss_like_the_kernels() {
        let mut counters = Counters::read(&fixture::kernel(LinkKind::Perf)).expect("the map is there");
        assert_eq!(counters.losses().count(), 0);
        counters.add(Counter::TargetsFull, 0);
        assert_eq!(counters.losses().count(), 0, "nothing is no loss");
        counters.add(Counter::TargetsFull, 2);
        counters.add(Counter::TargetsFull, 1);
        assert_eq!(counters.losses().collect::<Vec<_>>(), [(Counter::TargetsFull, 3)]);
    }
}
