//! Numbers of interpreters and virtual machines in the kernel's maps. Forked children share that of their parent, with the same
//! addresses.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::Arc;

use heapbpf_base::ids::Pid;
use heapbpf_base::language::Language;
use heapbpf_base::language::facts::Functions;
use heapbpf_linux::bpf_map::ArrayValue;

/// Where a runtime has its structures in a process.
#[derive(Clone, Debug)]
pub(crate) struct RuntimePlace {
    pub(crate) language: Language,
    /// Those of the language.
    pub(crate) functions: &'static Functions,
    /// For the kernel's map.
    pub(crate) value: Arc<dyn ArrayValue>,
}

impl PartialEq for RuntimePlace {
    fn eq(&self, other: &Self) -> bool {
        self.functions.runtime == other.functions.runtime && self.value.equals(&*other.value)
    }
}

impl Eq for RuntimePlace {}

impl Hash for RuntimePlace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.functions.runtime.hash(state);
        self.value.hash(state);
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
        self.of_processes.get(&pid).map_or(0, |&index| self.places[index as usize].0.functions.runtime.number(index))
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
                self.places.push((runtime.clone(), 0));
                index
            }
            None => {
                let index = self.free.pop_front()?;
                self.known.remove(&self.places[index as usize].0);
                self.places[index as usize] = (runtime.clone(), 0);
                index
            }
        };
        self.known.insert(runtime.clone(), index);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::interpreter::Interpreter;
    use profiler_common::limits::RUNTIMES_MAX;
    use profiler_common::php::Php;

    fn place_of(language: Language, value: Arc<dyn ArrayValue>) -> RuntimePlace {
        RuntimePlace { language, functions: language.functions().expect("stacks have words for them"), value }
    }

    fn interpreter(key: u64) -> RuntimePlace {
        let value = Arc::new(Interpreter { key, ..Interpreter::default() });
        place_of(Language::Python, value)
    }

    #[test]
    fn places_of_two_runtimes_differ() {
        let php = place_of(Language::Php, Arc::new(Php::default()));
        assert!(php == php.clone() && php != interpreter(0) && interpreter(0) != interpreter(1));
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
