//! Perf maps of Java virtual machines (`--jvm-perfmap`): requested on threads, because a machine answers when it likes.

use std::collections::BTreeMap;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use heapbpf_base::ids::Pid;
use tracing::{debug, warn};

use super::target::Target;
use crate::interpreter::java::perf_map::{JvmError, is_machine, write_perf_map};
use crate::object::module::ModuleStore;

/// Time between requests to a machine: doubles up to the maximum, because most methods are compiled early.
const PERIOD: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(30);
/// Time limit of all requests at the end of a recording.
const END_TIME_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(super) struct JvmMaps {
    is_enabled: bool,
    machines: BTreeMap<Pid, Machine>,
}

struct Machine {
    due: Instant,
    period: Duration,
    request: Option<JoinHandle<Result<(), JvmError>>>,
    /// Whether the machine has refused a request, and would refuse another.
    has_failed: bool,
}

impl JvmMaps {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self { is_enabled, machines: BTreeMap::new() }
    }

    pub(super) fn poll<'a>(&mut self, targets: impl Iterator<Item = &'a Target>, modules: &ModuleStore) {
        if !self.is_enabled {
            return;
        }
        for target in targets.filter(|target| target.was_recorded()) {
            let ids = target.mappings.space.modules();
            if !self.machines.contains_key(&target.pid) && ids.iter().any(|id| is_machine(modules.get(*id).path())) {
                self.machines.insert(target.pid, Machine::new());
            }
        }
        for (pid, machine) in &mut self.machines {
            machine.poll(*pid, Instant::now());
        }
    }

    /// Requests the maps of machines that still run, and waits for them.
    pub(super) fn finish<'a>(&mut self, targets: impl Iterator<Item = &'a Target>, modules: &ModuleStore) {
        let running: Vec<&Target> = targets.collect();
        self.machines.retain(|pid, _| running.iter().any(|target| target.pid == *pid));
        self.poll(running.into_iter(), modules);
        let deadline = Instant::now() + END_TIME_MAX;
        let mut waiting: Vec<(&Pid, &mut Machine)> = self.machines.iter_mut().collect();
        // A request that is already in progress may have been made too early.
        for (pid, machine) in &mut waiting {
            machine.wait(**pid, deadline);
            machine.start(**pid);
        }
        waiting.into_iter().for_each(|(pid, machine)| machine.wait(*pid, deadline));
    }
}

impl Machine {
    fn new() -> Self {
        Self { due: Instant::now(), period: PERIOD, request: None, has_failed: false }
    }

    fn poll(&mut self, pid: Pid, now: Instant) {
        self.take(pid);
        if self.request.is_none() && now >= self.due {
            self.start(pid);
            self.due = now + self.period;
            self.period = (self.period * 2).min(PERIOD_MAX);
        }
    }

    fn start(&mut self, pid: Pid) {
        if self.has_failed || self.request.is_some() {
            return;
        }
        let request = thread::Builder::new().name("heapbpf-jvm".to_owned()).spawn(move || write_perf_map(pid));
        self.request = request.inspect_err(|error| debug!("perf map of process {pid}: {error}")).ok();
    }

    fn take(&mut self, pid: Pid) {
        let Some(request) = self.request.take_if(|request| request.is_finished()) else { return };
        match request.join() {
            Ok(Ok(())) => debug!("process {pid} has written its perf map"),
            Ok(Err(JvmError::Gone)) | Err(_) => self.has_failed = true,
            Ok(Err(error)) => {
                self.has_failed = true;
                warn!("process {pid} writes no perf map: {error}; its Java methods have no names");
            }
        }
    }

    fn wait(&mut self, pid: Pid, deadline: Instant) {
        while self.request.as_ref().is_some_and(|request| !request.is_finished()) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        self.take(pid);
    }
}
