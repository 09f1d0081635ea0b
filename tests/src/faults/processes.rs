//! Facts about processes in `/proc`: descendants, stopped and traced threads, and orphans. Any process may exit meanwhile.

use std::fs;

use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

pub(super) fn comm(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// A process's threads; none when it has exited.
pub(super) fn threads(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// A process's children, zombies included.
pub(super) fn children(pid: u32) -> Vec<u32> {
    let lists = threads(pid)
        .into_iter()
        .filter_map(|thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().filter_map(|it| it.parse().ok()).collect::<Vec<_>>()).collect()
}

/// A process and all its descendants.
pub(super) fn family(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut at = 0;
    while at < family.len() {
        family.extend(children(family[at]));
        at += 1;
    }
    family
}

/// Whether a process exists and is not a zombie.
pub(super) fn is_alive(pid: u32) -> bool {
    field(&format!("/proc/{pid}/status"), "State:").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Threads of a process that are stopped or traced, with their states.
pub(super) fn held_threads(pid: u32) -> Vec<String> {
    let held = |thread: u32| {
        let path = format!("/proc/{pid}/task/{thread}/status");
        let (state, tracer) = (field(&path, "State:")?, field(&path, "TracerPid:")?);
        (state.starts_with(['T', 't']) || tracer != "0")
            .then(|| format!("thread {thread} of process {pid}: state {state}, tracer {tracer}"))
    };
    threads(pid).into_iter().filter_map(held).collect()
}

fn field(path: &str, name: &str) -> Option<String> {
    let status = fs::read_to_string(path).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
}

/// Exit status of a child of this process; `None` while it runs, or if it is not a child.
pub(super) fn reap(pid: u32) -> Option<WaitStatus> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    waitpid(Some(pid), WaitOptions::NOHANG).ok().flatten().map(|(_, status)| status)
}

/// Processes that became children of this one because their parents exited, without those of `known`. Reaps zombies.
pub(super) fn orphans(known: &[u32]) -> Vec<u32> {
    let children = children(std::process::id()).into_iter().filter(|pid| !known.contains(pid));
    children.filter(|&pid| is_alive(pid) || reap(pid).is_none() && is_alive(pid)).collect()
}

/// Whether another heapbpf on this machine profiles all processes, and has probes in the target, too.
pub(super) fn another_profiles_all() -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| comm(pid).is_some_and(|name| name == "heapbpf")).any(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == b"--all" || word == b"-a")
    })
}
