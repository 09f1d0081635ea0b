//! Signals: dispositions, masks and limits to be inherited, senders, a descriptor for SIGCHLD, and deferral of Ctrl-Z.

#![expect(unsafe_code, reason = "rustix has neither sigaction nor sigprocmask for programs with a libc")]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, ptr};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook_registry::SigId;

/// The name of a signal that ends processes by default, such as `SIGSEGV`.
pub fn name(number: i32) -> String {
    let names = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGSTKFLT, "SIGSTKFLT"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGVTALRM, "SIGVTALRM"),
        (libc::SIGPROF, "SIGPROF"),
        (libc::SIGIO, "SIGIO"),
        (libc::SIGPWR, "SIGPWR"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    let known = names.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}

/// State that heapbpf changes for itself, and that a launched program must inherit. Captured before heapbpf installs
/// any handler: exec resets handlers to the default action, also where a shell or `nohup` had ignored the signal.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// Ignored signals, bit n for signal n.
    ignored: u128,
    blocked: libc::sigset_t,
    locked_memory: Rlimit,
    descriptors: Rlimit,
    /// Descriptors for the input, and for both output streams, where they are not heapbpf's.
    streams: Option<[RawFd; 2]>,
}

impl Inherited {
    /// Captures the state. `SIGPIPE` counts as not ignored: Rust's runtime ignores it before `main`, and its former disposition is unknown.
    pub fn now() -> Self {
        let is_ignored = |signal: i32| signal != libc::SIGPIPE && disposition(signal) == Some(libc::SIG_IGN);
        let ignored = (1..=SIGNAL_MAX).filter(|&signal| is_ignored(signal)).fold(0, |set, signal| set | 1 << signal);
        let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: without a new set this only fills the old one, which is also valid when zeroed.
        let blocked = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), blocked.as_mut_ptr());
            blocked.assume_init()
        };
        let (locked_memory, descriptors) = (getrlimit(Resource::Memlock), getrlimit(Resource::Nofile));
        Self { ignored, blocked, locked_memory, descriptors, streams: None }
    }

    pub fn ignores(&self, signal: i32) -> bool {
        (1..=SIGNAL_MAX).contains(&signal) && self.ignored & (1 << signal) != 0
    }

    /// Gives launched programs other streams than heapbpf's, whose terminal shows something else. The files stay open.
    pub fn with_streams(self, input: OwnedFd, output: OwnedFd) -> Self {
        Self { streams: Some([input, output].map(IntoRawFd::into_raw_fd)), ..self }
    }

    /// Replaces the standard streams. Async-signal-safe, for a child between fork and exec.
    pub(super) fn set_streams(&self) -> io::Result<()> {
        let Some([input, output]) = self.streams else { return Ok(()) };
        // SAFETY: `with_streams` keeps both open for as long as the process runs.
        let [input, output] = [input, output].map(|number| unsafe { BorrowedFd::borrow_raw(number) });
        rustix::stdio::dup2_stdin(input)?;
        rustix::stdio::dup2_stdout(output)?;
        Ok(rustix::stdio::dup2_stderr(output)?)
    }

    /// Restores dispositions and mask. Async-signal-safe, for a child between fork and exec.
    pub(super) fn restore_signals(&self) {
        for signal in 1..=SIGNAL_MAX {
            let action = if self.ignores(signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: neither ignoring a signal nor its default action runs code of this program. The call fails for
            // signals that cannot be changed, which is correct.
            unsafe { libc::signal(signal, action) };
        }
        // SAFETY: the set was filled by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.blocked, ptr::null_mut()) };
    }

    /// Restores resource limits. Async-signal-safe, for a child between fork and exec. No other descriptors may be opened
    /// afterwards.
    pub(super) fn restore_limits(&self) {
        // The calls fail where a lower limit was set meanwhile, which then stays in force.
        let _ = setrlimit(Resource::Memlock, self.locked_memory);
        let _ = setrlimit(Resource::Nofile, self.descriptors);
    }
}

/// Makes writes beyond the file size limit (`ulimit -f`) fail instead of killing this process by SIGXFSZ.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Signals last sent by a process (`kill`), and not by the kernel for a terminal's group. Bit n for signal n.
static FROM_PROCESS: AtomicU64 = AtomicU64::new(0);

/// Number of SIGINTs since senders are recorded.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// Starts recording senders of these signals. Call it before other handlers are registered, so that they find the sender
/// recorded.
pub fn record_senders(signals: &[i32]) -> io::Result<()> {
    for &signal in signals {
        // `SI_FROMUSER` in include/uapi/asm-generic/siginfo.h: signals sent by processes have codes of 0 and below.
        let action = move |info: &libc::siginfo_t| {
            if signal == libc::SIGINT {
                INTERRUPTS.fetch_add(1, Ordering::Relaxed);
            }
            if info.si_code <= 0 {
                FROM_PROCESS.fetch_or(1 << signal, Ordering::Relaxed);
            } else {
                FROM_PROCESS.fetch_and(!(1 << signal), Ordering::Relaxed);
            }
        };
        // SAFETY: the action changes atomics, which is async-signal-safe.
        unsafe { signal_hook_registry::register_sigaction(signal, action) }?;
    }
    Ok(())
}

/// Number of SIGINTs since senders are recorded.
pub fn interrupts() -> u32 {
    INTERRUPTS.load(Ordering::Relaxed)
}

/// Whether the user has interrupted more than once, and waits for the end.
pub fn is_interrupted_again() -> bool {
    interrupts() > 1
}

/// Function that writes a line to standard error. It must be async-signal-safe.
pub type Farewell = fn();

/// RAII guard during which a signal exits at once, with a line. For times at which heapbpf cannot handle it soon, and has nothing
/// to lose: the keeper detaches what heapbpf has attached.
#[derive(Debug)]
pub struct ExitAtSignal(Vec<SigId>);

impl ExitAtSignal {
    /// Exits at the first SIGINT or SIGTERM, unless this process ignores it.
    pub fn first(code: u8, farewell: Farewell) -> io::Result<Self> {
        let heeded: Vec<i32> = [libc::SIGINT, libc::SIGTERM]
            .into_iter()
            .filter(|signal| disposition(*signal) != Some(libc::SIG_IGN))
            .collect();
        Self::listen(&heeded, 0, code, farewell)
    }

    /// Exits at the second SIGINT.
    pub fn second_interrupt(code: u8, farewell: Farewell) -> io::Result<Self> {
        Self::listen(&[libc::SIGINT], 1, code, farewell)
    }

    fn listen(signals: &[i32], tolerated: u32, code: u8, farewell: Farewell) -> io::Result<Self> {
        let mut listening = Self(Vec::new());
        for &signal in signals {
            let received = AtomicU32::new(0);
            let action = move || {
                if received.fetch_add(1, Ordering::Relaxed) >= tolerated {
                    farewell();
                    // SAFETY: it may be called at any time.
                    unsafe { libc::_exit(code.into()) };
                }
            };
            // SAFETY: the action changes an atomic, writes and calls `_exit`, which are async-signal-safe.
            listening.0.push(unsafe { signal_hook_registry::register(signal, action) }?);
        }
        Ok(listening)
    }
}

impl Drop for ExitAtSignal {
    fn drop(&mut self) {
        for id in self.0.drain(..) {
            signal_hook_registry::unregister(id);
        }
    }
}

pub fn is_from_process(signal: i32) -> bool {
    FROM_PROCESS.load(Ordering::Relaxed) & (1 << signal) != 0
}

const SIGNAL_MAX: i32 = 64;

fn disposition(signal: i32) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action this only fills the old one.
    let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: filled by the call, or zeroed, which is valid.
    (result == 0).then(|| unsafe { action.assume_init() }.sa_sigaction)
}

/// A descriptor that becomes readable when a child or tracee changes state. Every instance receives every SIGCHLD.
#[derive(Debug)]
pub struct ChildSignal {
    event: Arc<std::os::fd::OwnedFd>,
    id: SigId,
}

impl ChildSignal {
    /// Creates the descriptor. Also unblocks SIGCHLD in the calling thread.
    pub fn listen() -> io::Result<Self> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let handled = Arc::clone(&event);
        let action = move || {
            // `EAGAIN` means that the descriptor is readable already.
            let _ = rustix::io::write(&*handled, &1_u64.to_ne_bytes());
        };
        // SAFETY: the action makes a system call, which is async-signal-safe.
        let id = unsafe { signal_hook_registry::register(libc::SIGCHLD, action) }?;
        mask(libc::SIG_UNBLOCK);
        Ok(Self { event, id })
    }

    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
    }
}

impl AsFd for ChildSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for ChildSignal {
    fn drop(&mut self) {
        signal_hook_registry::unregister(self.id);
    }
}

/// Blocks SIGCHLD in the calling thread and in threads that it starts: it would interrupt their system calls.
pub fn block_child_signal() {
    mask(libc::SIG_BLOCK);
}

fn mask(how: libc::c_int) {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is initialised by the first call, and only read by the last.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut());
    }
}

static CAME: AtomicBool = AtomicBool::new(false);

static DEFERRING: Mutex<Deferring> = Mutex::new(Deferring { depth: 0, is_default: false });

struct Deferring {
    depth: usize,
    /// Whether the signal would stop this process: it has no handler and is not ignored.
    is_default: bool,
}

/// RAII guard that defers the signal while at least one guard exists; the last one to be dropped sends it again.
#[derive(Debug)]
pub struct Deferral(());

impl Deferral {
    pub fn begin() -> Self {
        let mut deferring = deferring();
        if deferring.depth == 0 {
            deferring.is_default = disposition(libc::SIGTSTP) == Some(libc::SIG_DFL);
            if deferring.is_default {
                set(note as *const () as libc::sighandler_t);
            }
        }
        deferring.depth += 1;
        Self(())
    }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        let mut deferring = deferring();
        deferring.depth -= 1;
        if deferring.depth > 0 || !deferring.is_default {
            return;
        }
        set(libc::SIG_DFL);
        drop(deferring);
        if CAME.swap(false, Ordering::Relaxed) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP);
        }
    }
}

/// Stops this process, as a terminal's Ctrl-Z does, until it is continued. Waits while the signal is deferred. Does nothing where
/// no shell would continue the process: the kernel discards the signal in an orphaned process group.
pub fn stop_process() {
    loop {
        let deferring = deferring();
        if deferring.depth == 0 {
            let before = set(libc::SIG_DFL);
            // SAFETY: the default action runs no code. The signal is the calling thread's, which stops before this returns.
            unsafe { libc::raise(libc::SIGTSTP) };
            // SAFETY: it was in force before.
            unsafe { libc::sigaction(libc::SIGTSTP, &raw const before, ptr::null_mut()) };
            return;
        }
        drop(deferring);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn deferring() -> MutexGuard<'static, Deferring> {
    DEFERRING.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn note(_signal: libc::c_int) {
    CAME.store(true, Ordering::Relaxed);
}

/// Sets the action of SIGTSTP. Returns the previous action.
fn set(action: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: zero is valid for every field.
    let [mut new, mut before]: [libc::sigaction; 2] = unsafe { MaybeUninit::zeroed().assume_init() };
    (new.sa_sigaction, new.sa_flags) = (action, libc::SA_RESTART);
    // SAFETY: the action is the default, or `note`, which is async-signal-safe.
    unsafe { libc::sigaction(libc::SIGTSTP, &raw const new, &raw mut before) };
    before
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn every_listener_receives_sigchld() {
        let both = [ChildSignal::listen().expect("descriptors"), ChildSignal::listen().expect("descriptors")];
        Command::new("true").status().expect("it runs");
        for signal in both {
            let mut polled = [PollFd::new(&signal, PollFlags::IN)];
            while poll(&mut polled, None).is_err() {}
            signal.clear();
        }
    }

    /// Does not test that the process stops: that depends on whether its process group is orphaned.
    #[test]
    #[ignore = "part of another test, because it changes how its process handles a signal"]
    fn a_deferred_signal_is_sent_again_at_the_end() {
        let outer = Deferral::begin();
        let inner = Deferral::begin();
        // SAFETY: sends a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTSTP) };
        while !CAME.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        drop(inner);
        assert_ne!(disposition(libc::SIGTSTP), Some(libc::SIG_DFL));
        assert!(CAME.swap(false, Ordering::Relaxed), "it is sent again at the end");
        drop(outer);
        assert_eq!(disposition(libc::SIGTSTP), Some(libc::SIG_DFL));
    }

    #[test]
    fn ctrl_z_is_deferred() {
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command.args(["--ignored", "--exact", "linux::signals::tests::a_deferred_signal_is_sent_again_at_the_end"]);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
    }
}
