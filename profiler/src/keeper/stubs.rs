//! Stubs of the inline engine: maps them into a stopped process, and changes its slots. Each slot has its former value or a
//! stub's address at any time, so the process works whenever the keeper is killed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::known;
use heapbpf_linux::pidfd::PidFd;
use heapbpf_linux::proc::maps::regions;
use heapbpf_linux::proc::process::{entry_path, thread_name};
use heapbpf_linux::proc::{stat, writable};
use heapbpf_linux::process_memory::{read_words, share_memory};
use heapbpf_linux::ptrace::Tracee;
use heapbpf_linux::scheduling::RealTime;
use rustix::fs::makedev;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::control;
use super::protocol::{FunctionPlace, Installation, Installed};
use crate::collect::inject::InjectedThread;
use crate::collect::stop::Stopped;
use crate::collect::{CollectError, StopLimit};

const WORD_BYTES: usize = 8;

/// Reason why a process cannot have stubs.
pub(crate) const NO_FIRST_THREAD: &str =
    "its main thread has exited, by which the kernel finds its memory and descriptors";

/// Installed stubs by process.
#[derive(Debug, Default)]
pub(super) struct Stubs(BTreeMap<Pid, Installation>);

impl Stubs {
    pub(super) fn install(&mut self, plan: Installation, descriptors: &[OwnedFd]) -> Result<Installed, CollectError> {
        let installed = on_own_thread(plan.pid, || install(&plan, descriptors))?;
        match self.0.entry(plan.pid) {
            Entry::Occupied(mut known) if descriptors.is_empty() => known.get_mut().add_slots(plan.slots),
            Entry::Occupied(mut known) => *known.get_mut() = plan,
            Entry::Vacant(vacant) => drop(vacant.insert(plan)),
        }
        Ok(installed)
    }

    /// Takes over the stubs that a process has copied.
    pub(super) fn adopt(&mut self, plan: Installation) {
        self.0.insert(plan.pid, plan);
    }

    pub(super) fn remove(&mut self, pid: Pid) {
        let Some(plan) = self.0.remove(&pid) else { return };
        if let Err(error) = remove(pid, &plan) {
            tracing::debug!("process {pid} keeps its stubs: {error}");
            // Another thread may trace the process until the end, or its threads may be able to stop then.
            if matches!(error, CollectError::Traced { .. } | CollectError::Waiting { .. }) {
                self.0.insert(pid, plan);
            }
        }
    }

    /// Removes the stubs of a process whose recording goes on. On errors, the stubs and slots stay as they are.
    pub(super) fn hand_back(&mut self, pid: Pid) -> Result<(), CollectError> {
        if let Some(plan) = self.0.get(&pid) {
            remove(pid, plan)?;
            self.0.remove(&pid);
        }
        Ok(())
    }

    pub(super) fn remove_all(&mut self) {
        let pids: Vec<Pid> = self.0.keys().copied().collect();
        pids.into_iter().for_each(|pid| self.remove(pid));
    }
}

/// Runs `work`, which stops threads, on a thread of its own. When that thread exits, the kernel detaches threads that have not
/// stopped in time, such as one that waits for a child of `vfork`: with a tracer that lives on, they would stop later, and for
/// good.
fn on_own_thread<T: Send>(pid: Pid, work: impl FnOnce() -> Result<T, CollectError> + Send) -> Result<T, CollectError> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("heapbpf-stubs".to_owned()).spawn_scoped(scope, work);
        let worker = worker.map_err(CollectError::refused(pid, "start a thread to stop"))?;
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Time limit for stopping all threads. A thread that waits for a child of `vfork` does not stop, while the others wait for it.
const STOP_MAX: Duration = Duration::from_millis(500);
/// Time limit, and period of polling, for threads that cannot be stopped now; all threads run meanwhile.
const PATIENCE: Duration = Duration::from_millis(200);
const PATIENCE_PERIOD: Duration = Duration::from_millis(2);

/// Stops all threads, unless one of them waits for so long that the others would have to wait for it.
fn stop(pid: Pid) -> Result<Stopped, CollectError> {
    let begun = Instant::now();
    let mut waiting = stat::waiting_threads(pid);
    while let Some(&tid) = waiting.first() {
        if begun.elapsed() >= PATIENCE {
            return Err(CollectError::Waiting { pid, tid });
        }
        thread::sleep(PATIENCE_PERIOD);
        let still = stat::waiting_threads(pid);
        waiting.retain(|tid| still.contains(tid));
    }
    Stopped::new_within(pid, Vec::new(), Some(StopLimit::begin(STOP_MAX)), &|| true)
}

/// Installs stubs completely or not at all, but slots that have changed meanwhile stay as they are. All threads are stopped, so
/// that no module is unmapped meanwhile, and no thread meets the descriptors that the process has for a time: descriptors that
/// threads open later have the same numbers as without them.
pub(super) fn install(plan: &Installation, descriptors: &[OwnedFd]) -> Result<Installed, CollectError> {
    let urgent = RealTime::begin();
    let stopped = stop(plan.pid)?;
    let slots = install_held(&stopped, plan, descriptors)?;
    let stopped = stopped.release();
    drop(urgent);
    Ok(Installed { slots, stopped })
}

/// Installs stubs in a process whose threads are all stopped. Mapped stubs stay if slots cannot be changed then: later, the
/// process may have mapped something else there.
fn install_held(stopped: &Stopped, plan: &Installation, descriptors: &[OwnedFd]) -> Result<usize, CollectError> {
    if let [code, filter] = descriptors {
        map(stopped, plan, code, filter)?;
    }
    change_slots(stopped, plan)
}

/// Changes slots to stubs, only from values that are entry addresses of functions that match their stubs' assumptions. So each
/// new value is equivalent to the old one, whatever the memory with the slot is by now.
fn change_slots(stopped: &Stopped, plan: &Installation) -> Result<usize, CollectError> {
    let thread = stopped.living_thread();
    let memory = writable::memory(thread).map_err(CollectError::refused(plan.pid, "change pointers of"))?;
    // The process may have executed another program, or unloaded the allocator.
    if !has_stubs(&memory, plan) || !plan.functions.iter().all(|function| is_unchanged(thread, &memory, function)) {
        return Ok(0);
    }
    switch(&memory, plan, true).map_err(CollectError::refused(plan.pid, "change data of"))?;
    let addresses: Vec<u64> = plan.slots.iter().map(|slot| slot.address).collect();
    let values = read_words(thread, &addresses);
    let unchanged = plan.slots.iter().zip(values).filter(|(slot, value)| *value == Some(slot.before));
    let changed = unchanged.filter(|(slot, _)| memory.write_all_at(&slot.after.to_ne_bytes(), slot.address).is_ok());
    Ok(changed.count())
}

/// Whether a function is in the same mapping of the same file, and has the code that its stub executes.
fn is_unchanged(thread: Pid, memory: &File, function: &FunctionPlace) -> bool {
    let mut code = vec![0; function.codes[0].len()];
    let is_read = memory.read_exact_at(&mut code, function.address).is_ok();
    is_read && function.codes.contains(&code) && file_of(thread, function.mapping) == function.file
}

/// Device and inode of the file that is mapped at exactly these addresses.
pub(crate) fn file_of(pid: Pid, (start, end): (u64, u64)) -> Option<(u64, u64)> {
    let found = known::at(&entry_path(pid, &format!("map_files/{start:x}-{end:x}"))).ok()?;
    Some((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

/// Switches all stubs of a process on or off. Stubs that are off continue at their functions' entries, where other probes are.
/// The code of stubs never changes, because a thread may stand anywhere in it, also behind the signal handler that it executes
/// now.
fn switch(memory: &File, plan: &Installation, on: bool) -> io::Result<()> {
    let field = |offset: usize| plan.control_address() + offset as u64;
    let mut countdowns = [0; WORD_BYTES];
    memory.read_exact_at(&mut countdowns, field(if on { control::LIVE } else { control::IDLE }))?;
    if !(plan.data_address()..plan.control_address()).contains(&u64::from_ne_bytes(countdowns)) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    memory.write_all_at(&countdowns, field(control::BASE))?;
    let bypassed = if on { 0 } else { control::BYPASS };
    memory.write_all_at(&bypassed.to_ne_bytes(), field(control::BYPASSED))
}

/// Restores all slots that still lead to stubs. Stubs stay mapped, because the process may have copied their addresses, but are
/// switched off. Makes no system calls in the process, which would crash if the keeper were killed meanwhile; so the filter stays
/// mapped too.
fn remove(pid: Pid, plan: &Installation) -> Result<(), CollectError> {
    on_own_thread(pid, || {
        let _urgent = RealTime::begin();
        let stopped = stop(pid)?;
        restore_held(&stopped, plan)?;
        stopped.release();
        Ok(())
    })
}

/// Removes stubs that another heapbpf has left, or that a process has copied. Fails for a child of `vfork`, which uses the memory
/// of its parent, whose other threads run.
pub(super) fn remove_left(plan: &Installation) -> Result<(), CollectError> {
    let pid = plan.pid;
    let parent = stat::status(pid, Tid(pid.0)).map(|status| status.parent);
    if let Some(parent) = parent.filter(|parent| share_memory(pid, *parent)) {
        return Err(CollectError::Waiting { pid: parent, tid: Tid(pid.0) });
    }
    remove(pid, plan)
}

/// Restores slots in a process whose threads are all stopped.
fn restore_held(stopped: &Stopped, plan: &Installation) -> Result<(), CollectError> {
    let refused = CollectError::refused(plan.pid, "change pointers of");
    let memory = writable::memory(stopped.living_thread()).map_err(refused)?;
    // The process may have executed another program.
    if !has_stubs(&memory, plan) {
        return Ok(());
    }
    for slot in plan.slots.iter().rev() {
        replace(&memory, slot.address, slot.after, slot.restored);
    }
    switch(&memory, plan, false).map_err(CollectError::refused(plan.pid, "change data of"))
}

const STOP_WAIT: Duration = Duration::from_secs(1);

/// Finds the offset of `struct rseq` from the thread pointer. Stops only the first thread of the process.
pub(super) fn rseq_offset(pid: Pid) -> io::Result<Option<i32>> {
    on_own_thread(pid, || Ok(rseq_offset_of_process(pid))).map_err(io::Error::other)?
}

fn rseq_offset_of_process(pid: Pid) -> io::Result<Option<i32>> {
    let tracee = Tracee::seize(pid).map_err(|error| reason_of(pid).unwrap_or(error))?;
    tracee.interrupt()?;
    let stop = tracee.wait(STOP_WAIT)?.ok_or(io::ErrorKind::TimedOut)?;
    let offset = rseq_offset_of(&tracee);
    tracee.restart_syscall(stop)?;
    tracee.detach(stop)?;
    offset
}

/// Reason why a process cannot be traced: its first thread has exited, or has another tracer.
fn reason_of(pid: Pid) -> Option<io::Error> {
    if stat::first_thread_has_exited(pid) {
        return Some(io::Error::other(NO_FIRST_THREAD));
    }
    let tracer = stat::status(pid, Tid(pid.0))?.tracer?;
    let name = thread_name(Pid(tracer.0), tracer).unwrap_or_default();
    Some(io::Error::other(format!("it is traced by `{}`, and can have only one tracer", name.escape_debug())))
}

fn rseq_offset_of(tracee: &Tracee) -> io::Result<Option<i32>> {
    let area = tracee.rseq_area()?;
    let pointer = tracee.registers()?.map(|registers| registers.thread_pointer());
    let offset = area.zip(pointer).map(|(area, pointer)| area.wrapping_sub(pointer).cast_signed());
    Ok(offset.and_then(|offset| i32::try_from(offset).ok()))
}

fn has_stubs(memory: &File, plan: &Installation) -> bool {
    let mut list = vec![0; plan.list.bytes.len()];
    memory.read_exact_at(&mut list, plan.list.address).is_ok() && list == plan.list.bytes
}

/// Replaces a word that has the value `before`, also in protected memory: slots are in pages that the dynamic linker has made
/// read-only.
fn replace(memory: &File, address: u64, before: u64, after: u64) -> bool {
    let mut word = [0; WORD_BYTES];
    let is_before = memory.read_exact_at(&mut word, address).is_ok() && u64::from_ne_bytes(word) == before;
    is_before && memory.write_all_at(&after.to_ne_bytes(), address).is_ok()
}

fn map(stopped: &Stopped, plan: &Installation, code: &OwnedFd, filter: &OwnedFd) -> Result<(), CollectError> {
    let pid = plan.pid;
    let memory = writable::memory(stopped.living_thread()).map_err(CollectError::refused(pid, "write to"))?;
    stopped.inject(&regions(stopped.living_thread())?, &mut |thread| {
        let [code, filter] = pass(pid, thread, &memory, [code.as_fd(), filter.as_fd()])?;
        let mapped = map_parts(thread, plan, code, filter);
        for descriptor in [code, filter] {
            thread.checked(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
        }
        mapped
    })?;
    memory.write_all_at(&plan.data, plan.data_address()).map_err(CollectError::refused(pid, "write to"))
}

fn map_parts(thread: &mut InjectedThread, plan: &Installation, code: u64, filter: u64) -> io::Result<()> {
    let Installation { address, code_bytes, data_bytes, filter_bytes, is_mapped, .. } = *plan;
    let map_filter = |thread: &mut InjectedThread| {
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        thread.map(plan.filter_address(), filter_bytes, libc::PROT_READ, shared, Some(filter))
    };
    // Code and countdowns may be in use: the process may have copied addresses of stubs.
    if is_mapped {
        // By now the process may have mapped something else there, which this would replace.
        let memory = writable::memory(plan.pid)?;
        return if has_stubs(&memory, plan) { map_filter(thread) } else { Err(io::ErrorKind::AlreadyExists.into()) };
    }
    let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    thread.map(address, code_bytes + data_bytes + filter_bytes, libc::PROT_NONE, reserve, None)?;
    let private = libc::MAP_PRIVATE | libc::MAP_FIXED;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let mapped = thread
        .map(plan.data_address(), data_bytes, writable, private | libc::MAP_ANONYMOUS, None)
        .and_then(|()| map_filter(thread))
        .and_then(|()| thread.map(address, code_bytes, libc::PROT_READ | libc::PROT_EXEC, private, Some(code)));
    if mapped.is_err() {
        thread.checked(libc::SYS_munmap, [address, code_bytes + data_bytes + filter_bytes, 0, 0, 0, 0])?;
    }
    mapped
}

/// Passes descriptors to the process through a socket, and returns their numbers there.
fn pass(
    pid: Pid,
    thread: &mut InjectedThread,
    memory: &File,
    descriptors: [std::os::fd::BorrowedFd<'_>; 2],
) -> io::Result<[u64; 2]> {
    let scratch = thread.scratch();
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC).unsigned_abs();
    thread.checked(libc::SYS_socketpair, [libc::AF_UNIX.unsigned_abs().into(), kind.into(), 0, scratch, 0, 0])?;
    let mut pair = [0; WORD_BYTES];
    memory.read_exact_at(&mut pair, scratch)?;
    let ends = [0, 4].map(|at| u32::from_ne_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]));
    let received = send(pid, ends[0], descriptors).and_then(|()| receive(thread, memory, scratch, ends[1]));
    for end in ends {
        thread.checked(libc::SYS_close, [end.into(), 0, 0, 0, 0, 0])?;
    }
    received
}

fn send(pid: Pid, end: u32, descriptors: [std::os::fd::BorrowedFd<'_>; 2]) -> io::Result<()> {
    let end = PidFd::open(pid)?.descriptor(end)?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(end, &[io::IoSlice::new(b"h")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Receives two descriptors in the process. The scratch memory has `struct msghdr` of 56 bytes, `struct iovec` of 16, a byte of
/// data, and a control message with the descriptors.
fn receive(thread: &mut InjectedThread, memory: &File, scratch: u64, end: u32) -> io::Result<[u64; 2]> {
    const IOVEC: u64 = 56;
    const BYTE: u64 = 72;
    const CONTROL: u64 = 80;
    /// Size of a control message: a header of 16 bytes and two descriptors.
    const CONTROL_BYTES: u64 = 24;
    let words = [0, 0, scratch + IOVEC, 1, scratch + CONTROL, CONTROL_BYTES, 0, scratch + BYTE, 1];
    memory.write_all_at(words.map(u64::to_ne_bytes).as_flattened(), scratch)?;
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT).unsigned_abs();
    thread.checked(libc::SYS_recvmsg, [end.into(), scratch, flags.into(), 0, 0, 0])?;
    let mut numbers = [0; WORD_BYTES];
    memory.read_exact_at(&mut numbers, scratch + CONTROL + 16)?;
    let number =
        |at: usize| u64::from(u32::from_ne_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]));
    Ok([number(0), number(4)])
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use heapbpf_linux::proc::maps::Region;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::param::page_size;

    use super::*;
    use crate::keeper::protocol::Patch;

    /// A program that waits. Killed when dropped.
    struct Sleeping(Child);

    impl Sleeping {
        fn start() -> Self {
            let sleeping = Self(Command::new("sleep").arg("1000").spawn().expect("it starts"));
            let is_waiting = || {
                let path = entry_path(sleeping.pid(), "syscall");
                std::fs::read_to_string(path).is_ok_and(|text| text.starts_with(&libc::SYS_clock_nanosleep.to_string()))
            };
            while !is_waiting() {
                thread::yield_now();
            }
            sleeping
        }

        fn pid(&self) -> Pid {
            Pid(self.0.id())
        }

        fn regions(&self) -> Vec<Region> {
            regions(self.pid()).expect("it runs")
        }
    }

    impl Drop for Sleeping {
        fn drop(&mut self) {
            self.0.kill().expect("it runs");
            self.0.wait().expect("it is ours");
        }
    }

    fn memory() -> OwnedFd {
        let file = memfd_create("code", MemfdFlags::CLOEXEC).expect("there is memory");
        ftruncate(&file, page_size() as u64).expect("there is memory");
        file
    }

    fn plan(pid: Pid, address: u64, is_mapped: bool) -> Installation {
        let page = page_size() as u64;
        Installation {
            pid,
            address,
            code_bytes: page,
            data: vec![0; page_size()],
            data_bytes: page,
            filter_bytes: page,
            list: Patch { address, bytes: vec![1; 100] },
            functions: Vec::new(),
            is_mapped,
            slots: Vec::new(),
        }
    }

    /// A process that runs may map memory where a place for stubs was chosen: that memory is its own.
    #[test]
    fn what_a_process_has_mapped_in_the_place_of_stubs_is_left_alone() {
        let sleeping = Sleeping::start();
        let before = sleeping.regions();
        let places: Vec<u64> = before.iter().filter(|region| region.writable).map(|region| region.start.0).collect();
        assert!(places.len() > 3, "{before:?}");
        for (address, is_mapped) in places.into_iter().flat_map(|place| [(place, false), (place, true)]) {
            let plan = plan(sleeping.pid(), address, is_mapped);
            let error = install(&plan, &[memory(), memory()]).expect_err("it is not free");
            assert!(error.is_occupied(), "{error}");
            assert_eq!(sleeping.regions(), before, "{address:#x}, {is_mapped}");
        }
        // Where it is free, they are mapped.
        let free = before.windows(2).find(|two| two[1].start.0 - two[0].end.0 > 1 << 30).expect("the space is large");
        install(&plan(sleeping.pid(), free[0].end.0 + (1 << 29), false), &[memory(), memory()]).expect("it is free");
        assert_eq!(sleeping.regions().len(), before.len() + 3);
    }
}
