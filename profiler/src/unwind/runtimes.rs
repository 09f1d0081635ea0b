//! Numbers of interpreters and virtual machines in the kernel's maps. Forked children share that of their parent, with the same
//! addresses.

use std::collections::{HashMap, VecDeque};
use std::io;

use profiler_common::hotspot::Hotspot;
use profiler_common::interpreter::{Interpreter, Runtime};
use profiler_common::php::Php;
use profiler_common::ruby::Ruby;
use profiler_common::v8::V8;

use crate::ids::Pid;

/// Where a runtime has its structures in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RuntimePlace {
    Cpython(Interpreter),
    Hotspot(Hotspot),
    V8(V8),
    Ruby(Ruby),
    Php(Php),
}

impl RuntimePlace {
    fn runtime(&self) -> Runtime {
        match self {
            Self::Cpython(_) => Runtime::Cpython,
            Self::Hotspot(_) => Runtime::Hotspot,
            Self::V8(_) => Runtime::V8,
            Self::Ruby(_) => Runtime::Ruby,
            Self::Php(_) => Runtime::Php,
        }
    }
}

/// Places in one of the maps of each runtime: those of one kind share their indices.
#[derive(Debug)]
pub(super) struct Runtimes {
    /// Number of places in the kernel's map.
    capacity: u32,
    places: Vec<(RuntimePlace, u32)>,
    known: HashMap<RuntimePlace, u32>,
    of_processes: HashMap<Pid, u32>,
    /// Places without users, which children that are not registered yet may still use: the oldest is taken first.
    free: VecDeque<u32>,
}

/// A place in the kernel's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    index: u32,
    /// Its content must be written.
    is_new: bool,
}

impl Runtimes {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            places: Vec::new(),
            known: HashMap::new(),
            of_processes: HashMap::new(),
            free: VecDeque::new(),
        }
    }

    /// As in [`ProcessMappings`](profiler_common::unwind::ProcessMappings): 0 for a process without one.
    pub(super) fn number(&self, pid: Pid) -> u32 {
        self.of_processes.get(&pid).map_or(0, |&index| self.places[index as usize].0.runtime().number(index))
    }

    /// Assigns a place to a process, and writes it if it is new; `None` releases the process's. Returns false if the map is full.
    pub(super) fn set(
        &mut self,
        pid: Pid,
        place: Option<&RuntimePlace>,
        write: impl FnOnce(u32, &RuntimePlace) -> io::Result<()>,
    ) -> io::Result<bool> {
        let Some(runtime) = place else {
            self.release(pid);
            return Ok(true);
        };
        let Some(place) = self.assign(pid, runtime) else { return Ok(false) };
        if place.is_new {
            write(place.index, runtime)?;
        }
        Ok(true)
    }

    /// `None` if the map is full.
    fn assign(&mut self, pid: Pid, runtime: &RuntimePlace) -> Option<Place> {
        self.release(pid);
        let known = self.known.get(runtime).copied();
        let place = match known {
            Some(index) => Place { index, is_new: false },
            None => Place { index: self.take(runtime)?, is_new: true },
        };
        self.places[place.index as usize].1 += 1;
        self.free.retain(|free| *free != place.index);
        self.of_processes.insert(pid, place.index);
        Some(place)
    }

    pub(super) fn release(&mut self, pid: Pid) {
        let Some(index) = self.of_processes.remove(&pid) else { return };
        let users = &mut self.places[index as usize].1;
        *users -= 1;
        if *users == 0 {
            self.free.push_back(index);
        }
    }

    fn take(&mut self, runtime: &RuntimePlace) -> Option<u32> {
        let index = u32::try_from(self.places.len()).ok().filter(|&index| index < self.capacity);
        let index = match index {
            Some(index) => {
                self.places.push((*runtime, 0));
                index
            }
            None => {
                let index = self.free.pop_front()?;
                self.known.remove(&self.places[index as usize].0);
                self.places[index as usize] = (*runtime, 0);
                index
            }
        };
        self.known.insert(*runtime, index);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::limits::RUNTIMES_MAX;

    fn interpreter(key: u64) -> RuntimePlace {
        RuntimePlace::Cpython(Interpreter { key, ..Interpreter::default() })
    }

    #[test]
    fn equal_interpreters_share_a_place_and_free_ones_are_reused_last() {
        let mut interpreters = Runtimes::new(RUNTIMES_MAX);
        assert_eq!(interpreters.assign(Pid(1), &interpreter(10)), Some(Place { index: 0, is_new: true }));
        assert_eq!(interpreters.assign(Pid(2), &interpreter(10)), Some(Place { index: 0, is_new: false }));
        assert_eq!([1, 2, 3].map(|pid| interpreters.number(Pid(pid))), [1, 1, 0]);
        interpreters.release(Pid(1));
        interpreters.release(Pid(2));
        interpreters.release(Pid(2));
        // A child that is registered later finds it.
        assert_eq!(interpreters.assign(Pid(3), &interpreter(10)), Some(Place { index: 0, is_new: false }));
        interpreters.release(Pid(3));
        for key in 1..RUNTIMES_MAX {
            let place = interpreters.assign(Pid(100 + key), &interpreter(100 + u64::from(key)));
            assert_eq!(place, Some(Place { index: key, is_new: true }));
        }
        assert_eq!(interpreters.assign(Pid(4), &interpreter(11)), Some(Place { index: 0, is_new: true }));
        assert_eq!(interpreters.assign(Pid(5), &interpreter(12)), None, "all are in use");
        assert_eq!(interpreters.number(Pid(5)), 0);
        // A process that executes another program replaces its own.
        assert_eq!(interpreters.assign(Pid(4), &interpreter(12)), Some(Place { index: 0, is_new: true }));
        assert_eq!(interpreters.assign(Pid(6), &interpreter(11)), None);
    }
}
