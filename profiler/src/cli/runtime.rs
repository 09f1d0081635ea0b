//! Environment of a session: privileges, limits, an async runtime, stop signals, and a worker thread.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context, Result, anyhow, bail};
use heapbpf_linux::feature;
use heapbpf_linux::proc::process;
use heapbpf_linux::signals::{self, ExitAtSignal, Inherited};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::task::JoinHandle;

use super::exit;
use super::refusal::command_line;
use super::terminal::say;
use crate::doctor;
use crate::session::{Command, Control, Launched, Session, SessionConfig};
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;
use crate::symbolize::sources::Sources;

pub(super) fn run_session(session: impl Future<Output = Result<u8>>) -> Result<u8> {
    check_privileges()?;
    // Each module, process and link takes a descriptor.
    let maximum = getrlimit(Resource::Nofile).maximum;
    raise(Resource::Nofile, "RLIMIT_NOFILE", Rlimit { current: maximum, maximum });
    async_runtime()?.block_on(session)
}

pub(super) fn async_runtime() -> Result<Runtime> {
    // BPF maps counted as locked memory until Linux 5.11.
    raise(Resource::Memlock, "RLIMIT_MEMLOCK", Rlimit { current: None, maximum: None });
    Builder::new_current_thread().enable_all().build().context("cannot start tokio")
}

/// Creates the runtime for the thread of a view.
pub(super) fn view_runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start tokio")
}

fn raise(resource: Resource, name: &str, limit: Rlimit) {
    if let Err(error) = setrlimit(resource, limit) {
        tracing::debug!("cannot raise {name}: {}", io::Error::from(error));
    }
}

/// Fails where `doctor` would find missing privileges, as far as a few files show that. Other refusals are found when the kernel
/// refuses.
fn check_privileges() -> Result<()> {
    let missing = feature::missing().context("cannot read this process's capabilities")?;
    let is_elsewhere = [process::in_initial_pid_namespace(), process::in_initial_user_namespace()]
        .into_iter()
        .any(|is_initial| !is_initial.unwrap_or(false));
    if missing.is_empty() && !is_elsewhere && !doctor::is_filtered() {
        return Ok(());
    }
    match doctor::explain(&command_line(), None) {
        Some(reason) => bail!("{reason}"),
        None if missing.is_empty() => Ok(()),
        None => bail!("not allowed: missing {}; run `sudo {}`", missing.join(", "), command_line()),
    }
}

/// Starts a session and attaches it. Returns `None` if a signal stopped heapbpf before the first target was attached. From here
/// on, signals do not exit: `early` is dropped.
pub(super) async fn start_session(
    config: SessionConfig,
    command: &[OsString],
    inherited: Inherited,
    early: ExitAtSignal,
) -> Result<Option<(Session, Stops, Control)>> {
    let mut stops = Stops::new(&inherited)?;
    let control = Control::listen().context("cannot listen for signals")?;
    let impatient = exit::exit_when_interrupted_again().context("cannot listen for signals")?;
    drop(early);
    let mut session = Session::start(config)?;
    session.attach(async || stops.pending(None).await).await?;
    drop(impatient);
    if stops.pending(None).await && !session.has_begun() {
        return Ok(None);
    }
    if !command.is_empty() {
        stops.interrupts_left = 1;
        session.launch(command, inherited)?;
        // Earlier signals are for the command too. If they are enough to stop it, the report still covers it.
        stops.pending(session.launched()).await;
    }
    Ok(Some((session, stops, control)))
}

/// Waits until the command exits or the user interrupts. Returns the exit code.
pub(super) async fn wait_for_command(mut command: Command, stops: &mut Stops, quiet: bool) -> u8 {
    let launched = command.launched();
    let report = |text: &str| (!quiet).then(|| say(&format!("heapbpf: {launched} {text}")));
    if !stops.requested && !command.has_ended() {
        report("is still running; waiting for it to exit (Ctrl-C twice stops waiting)");
    }
    tokio::select! {
        biased;
        code = command.wait() => code,
        () = stops.wait(Some(launched)) => {
            report("is still running");
            exit::INTERRUPTED
        }
    }
}

/// Listener for SIGINT, SIGTERM and SIGHUP. With a command, these signals are the command's: heapbpf forwards those sent by a
/// process (a `kill` of the whole group reaches the command twice) and records until it exits. A second SIGINT stops heapbpf.
pub(super) struct Stops {
    listeners: Vec<(Signal, unix::Signal)>,
    /// Number of SIGINTs that are for the command only: 1 with a command.
    interrupts_left: u32,
    pub(super) requested: bool,
    /// Whether to report the interrupt that arrives after the end of the recording.
    is_end_announced: bool,
    /// Whether SIGTERM or SIGHUP was received, also with a command.
    pub(super) terminated: bool,
}

impl Stops {
    /// Starts listening. `inherited` are the dispositions before heapbpf changed any.
    fn new(inherited: &Inherited) -> Result<Self> {
        let mut listeners = Vec::new();
        for (number, kind) in [
            (Signal::INT, SignalKind::interrupt()),
            (Signal::TERM, SignalKind::terminate()),
            (Signal::HUP, SignalKind::hangup()),
        ] {
            // `nohup heapbpf …` must outlive the terminal session.
            if number != Signal::HUP || !inherited.ignores(libc::SIGHUP) {
                signals::record_senders(&[number.as_raw()]).context("cannot listen for signals")?;
                listeners.push((number, signal(kind).context("cannot listen for signals")?));
            }
        }
        // A signal between the two steps has not reached its listener.
        let requested = signals::interrupts() > 0;
        Ok(Self { listeners, interrupts_left: 0, requested, is_end_announced: false, terminated: false })
    }

    pub(super) async fn wait(&mut self, command: Option<Launched>) {
        while !self.requested {
            let signal = std::future::poll_fn(|context| self.poll(context)).await;
            self.receive(signal, command);
        }
    }

    /// Notes the end of the recording. If it has ended by itself, the next interrupt was to end it, and leaves no names out.
    pub(super) fn note_end(&mut self, command: Option<Launched>, quiet: bool) {
        if command.is_none() && !self.requested {
            self.interrupts_left = 1;
            self.is_end_announced = !quiet;
        }
    }

    /// Waits for the next signal. Ignores the interrupt that is for the command, or for the recording: it may have ended before
    /// heapbpf received the interrupt.
    pub(super) async fn next(&mut self, command: Option<Launched>) {
        loop {
            let signal = std::future::poll_fn(|context| self.poll(context)).await;
            let is_for_recording = signal == Signal::INT && self.interrupts_left > 0;
            self.receive(signal, command);
            if !is_for_recording {
                return;
            }
            if self.is_end_announced {
                say("heapbpf: the recording has ended, and its report is being written; Ctrl-C again leaves out names");
            }
        }
    }

    /// Handles signals that have arrived already, like [`wait`](Self::wait). Returns whether to stop.
    async fn pending(&mut self, command: Option<Launched>) -> bool {
        // The runtime delivers signals when a task yields.
        tokio::task::yield_now().await;
        let mut context = TaskContext::from_waker(Waker::noop());
        while let Poll::Ready(signal) = self.poll(&mut context) {
            self.receive(signal, command);
        }
        self.requested
    }

    fn poll(&mut self, context: &mut TaskContext<'_>) -> Poll<Signal> {
        let mut received = self.listeners.iter_mut().filter_map(|(signal, listener)| {
            let is_ready = listener.poll_recv(context).is_ready();
            is_ready.then_some(*signal)
        });
        received.next().map_or(Poll::Pending, Poll::Ready)
    }

    fn receive(&mut self, signal: Signal, command: Option<Launched>) {
        let is_interrupt = signal == Signal::INT;
        self.terminated |= !is_interrupt;
        match command {
            None => self.requested |= !is_interrupt || self.interrupts_left == 0,
            Some(command) => {
                // The kernel sends a terminal's signals to the command too.
                if signals::is_from_process(signal.as_raw()) {
                    command.signal(signal);
                }
                self.requested |= is_interrupt && self.interrupts_left == 0;
            }
        }
        if is_interrupt || command.is_none() {
            self.interrupts_left = self.interrupts_left.saturating_sub(1);
        }
    }
}

/// Worker thread that processes jobs in order, so that the session continues draining. The runtime waits for it when it is
/// dropped.
pub(super) struct Worker<J, R> {
    queue: Sender<Queued<J>>,
    /// Counter of pending jobs: each queued job has a reference.
    pending: Arc<()>,
    thread: JoinHandle<Result<R>>,
    interrupt: Interrupt,
}

/// A job, which is pending until the second part is dropped.
pub(super) type Queued<J> = (J, Arc<()>);

impl<J: Send + 'static, R: Send + 'static> Worker<J, R> {
    /// Starts a thread that runs `work` with the queue, which ends when it is closed, and a resolver of its own.
    pub(super) fn start(
        sources: Sources,
        work: impl FnOnce(Receiver<Queued<J>>, Resolver) -> Result<R> + Send + 'static,
    ) -> Self {
        let (queue, jobs) = mpsc::channel();
        let interrupt = Interrupt::default();
        let of_thread = interrupt.clone();
        // A resolver is not `Send`, so the thread creates it.
        let thread = tokio::task::spawn_blocking(move || work(jobs, Resolver::sandboxed(of_thread, sources)));
        Self { queue, pending: Arc::new(()), thread, interrupt }
    }

    pub(super) fn send(&self, job: J) {
        // A thread that has failed reports its error in `finish`.
        let _ = self.queue.send((job, Arc::clone(&self.pending)));
    }

    pub(super) fn pending(&self) -> usize {
        Arc::strong_count(&self.pending) - 1
    }

    /// Waits for all jobs. When `stop` resolves before all are processed, remaining frames are not symbolized.
    pub(super) async fn finish(self, stop: impl Future<Output = ()>) -> Result<R> {
        let Self { queue, mut thread, interrupt, .. } = self;
        drop(queue);
        let result = tokio::select! {
            result = &mut thread => result,
            () = stop => {
                interrupt.raise();
                thread.await
            }
        };
        result.map_err(|_| anyhow!("internal error: a worker thread panicked; please report it"))?
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpid, kill_process};

    use super::*;

    /// Interrupts this process, and waits until that is handled.
    async fn interrupt(stops: &mut Stops, number: u32) {
        let left = stops.interrupts_left;
        kill_process(getpid(), Signal::INT).expect("it is this process");
        while signals::interrupts() < number || !stops.requested && stops.interrupts_left == left {
            stops.pending(None).await;
        }
    }

    #[tokio::test]
    async fn the_first_interrupt_after_the_end_leaves_no_names_out() {
        let mut stops = Stops::new(&Inherited::now()).expect("it can listen");
        stops.note_end(None, true);
        interrupt(&mut stops, 1).await;
        assert!(!stops.requested);
        kill_process(getpid(), Signal::INT).expect("it is this process");
        stops.next(None).await;
        assert!(stops.requested);
    }

    #[tokio::test]
    async fn an_interrupt_after_one_that_ended_the_recording_leaves_names_out() {
        let mut stops = Stops::new(&Inherited::now()).expect("it can listen");
        interrupt(&mut stops, 1).await;
        assert!(stops.requested);
        stops.note_end(None, true);
        kill_process(getpid(), Signal::INT).expect("it is this process");
        stops.next(None).await;
    }
}
