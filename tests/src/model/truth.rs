//! What a program of `targets/scripted.c` counts, from the lines that it prints.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

/// Blocks of one size of one function.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    /// Size of a block.
    pub(super) size: u64,
    /// Allocated while recording, by this process.
    pub(super) allocated: u64,
    /// Freed of these and of inherited ones.
    pub(super) freed: u64,
    /// Live at the fork of this process, allocated while recording.
    pub(super) inherited: u64,
    /// Live when the recording began or, in a child, at the fork.
    pub(super) old: u64,
    /// Freed of these.
    pub(super) old_freed: u64,
}

/// A program in a process, until it exits or executes another one.
#[derive(Clone, Debug, Default)]
pub(super) struct Instance {
    /// The process.
    pub(super) pid: u32,
    /// `begins`, `child` or `executed`.
    pub(super) origin: String,
    /// Whether it waited until it was recorded, as all earlier programs of the process and its parent have.
    pub(super) is_held: bool,
    /// Blocks by function.
    pub(super) cells: BTreeMap<String, Vec<Cell>>,
    /// Blocks and bytes, by function, that other processes have allocated in its memory or, before a fork, in its parent's.
    pub(super) borrowed: BTreeMap<String, [u64; 2]>,
    /// Highest sum of live bytes.
    pub(super) peak_bytes: u64,
    /// When it ended; `None` if it has not reported its counts.
    pub(super) ended_unix_ns: Option<u64>,
}

/// All programs of a script.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth {
    /// In the order of their starts.
    pub(super) instances: Vec<Instance>,
    /// Processes that shared the memory of another one, and that one.
    pub(super) sharers: HashMap<u32, u32>,
    /// Those that run now, by process.
    current: HashMap<u32, usize>,
}

/// A line that needs an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A process waits until something has happened.
    Wait(u32, String),
    /// A new program is in this process.
    Begins(u32),
    /// This process executes another program now; whether it waits for a signal before.
    Executes(u32, bool),
    /// This process has ended.
    Ends(u32),
}

impl Truth {
    /// Enters a line.
    pub(super) fn read(&mut self, line: &str) -> Option<Request> {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        let number = |name: &str| value[name].as_u64().unwrap_or_default();
        let pid = u32::try_from(number("pid")).expect("pids are small");
        for origin in ["begins", "child", "executed"] {
            if let Some(how) = value.get(origin) {
                // What heapbpf logs about a program that did not wait can be taken for a line about the next one of the process, and a
                // child lacks what its parent's first calls have allocated.
                let parent = u32::try_from(number("parent")).unwrap_or_default();
                let earlier = [pid, parent].map(|pid| self.current.get(&pid).map(|&index| &self.instances[index]));
                let was_held = |it: &Instance| it.is_held || it.origin == "begins";
                let is_held = how == "held" && earlier.into_iter().flatten().all(was_held);
                let mut instance = Instance { pid, origin: origin.to_owned(), is_held, ..Instance::default() };
                // A child inherits these blocks, too.
                if let Some(&parent) = self.current.get(&parent) {
                    instance.borrowed.clone_from(&self.instances[parent].borrowed);
                }
                // Its number may have been that of a process in the memory of another.
                self.sharers.remove(&pid);
                self.current.insert(pid, self.instances.len());
                self.instances.push(instance);
                return Some(Request::Begins(pid));
            }
        }
        if let Some(what) = value["wait"].as_str() {
            return Some(Request::Wait(pid, what.to_owned()));
        }
        if value.get("ends").is_some() {
            return Some(Request::Ends(pid));
        }
        if let Some(how) = value["executes"].as_str() {
            return Some(Request::Executes(pid, how == "held"));
        }
        if let Some(sharer) = value["shares"].as_u64() {
            self.sharers.insert(u32::try_from(sharer).expect("pids are small"), pid);
        }
        let instance = self.current.get(&pid).map(|&index| &mut self.instances[index])?;
        if let Some(function) = value["allocates"].as_str() {
            let [blocks, bytes] = instance.borrowed.entry(function.to_owned()).or_default();
            *blocks += number("blocks");
            *bytes += number("blocks") * number("size");
        } else if let Some(function) = value["function"].as_str() {
            instance.cells.entry(function.to_owned()).or_default().push(Cell {
                size: number("size"),
                allocated: number("allocated"),
                freed: number("freed"),
                inherited: number("inherited"),
                old: number("old"),
                old_freed: number("old_freed"),
            });
        } else if value.get("peak_bytes").is_some() {
            instance.peak_bytes = number("peak_bytes");
            instance.ended_unix_ns = Some(number("unix_ns"));
        }
        None
    }

    /// The program that a process ran at a time: the first that has not ended before.
    pub(super) fn index_at(&self, pid: u32, unix_ns: u64) -> Option<usize> {
        let has_not_ended = |index: &usize| self.instances[*index].ended_unix_ns.is_none_or(|ended| ended >= unix_ns);
        self.of_process(self.owner(pid)).into_iter().find(has_not_ended)
    }

    /// The programs of a process, in their order.
    pub(super) fn of_process(&self, pid: u32) -> Vec<usize> {
        (0..self.instances.len()).filter(|&index| self.instances[index].pid == pid).collect()
    }

    /// The process whose memory a process has.
    pub(super) fn owner(&self, pid: u32) -> u32 {
        self.sharers.get(&pid).copied().unwrap_or(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_one_process_are_told_apart_by_their_ends() {
        let mut truth = Truth::default();
        for (line, request) in [
            (r#"{"begins":true,"pid":7}"#, Some(Request::Begins(7))),
            (r#"{"wait":"attach","pid":7}"#, Some(Request::Wait(7, "attach".to_owned()))),
            (r#"{"pid":7,"function":"f","size":8,"allocated":3,"freed":1,"inherited":0,"old":0,"old_freed":0}"#, None),
            (r#"{"pid":7,"peak_bytes":24,"unix_ns":100}"#, None),
            (r#"{"executes":"free","pid":7}"#, Some(Request::Executes(7, false))),
            (r#"{"executed":"held","pid":7,"image":1}"#, Some(Request::Begins(7))),
            (r#"{"shares":9,"pid":7,"allocates":"f","blocks":2,"size":8}"#, None),
            (r#"{"pid":7,"peak_bytes":0,"unix_ns":200}"#, None),
            (r#"{"ends":true,"pid":7}"#, Some(Request::Ends(7))),
        ] {
            assert_eq!(truth.read(line), request, "{line}");
        }
        assert_eq!(truth.instances[0].cells["f"][0].allocated, 3);
        assert_eq!(truth.instances.iter().map(|it| it.is_held).collect::<Vec<_>>(), [false, true]);
        assert_eq!(truth.instances[1].borrowed["f"], [2, 16]);
        assert_eq!([50, 100, 101, 201].map(|time| truth.index_at(7, time)), [Some(0), Some(0), Some(1), None]);
        assert_eq!((truth.index_at(9, 150), truth.index_at(8, 1)), (Some(1), None));
    }
}
