//! `heapbpf leaks`: watches if that is asked for, looks, tells, and says by its exit code whether there are leaks.

use std::path::Path;

use anyhow::{Context, Result};
use profiler_common::interval::Interval;

use super::args::LeaksArgs;
use super::checking::{Checking, Telling};
use super::output::{Access, Output};
use super::progress::ProgressLine;
use super::record::{UsageError, see_off, suppressions};
use super::stops::Stops;
use super::{exit, privilege, say};
use crate::check::heap_snapshot::HeapSnapshot;
use crate::check::{Plan, heap_snapshot};
use crate::ids::Pid;
use crate::keeper::Keeper;
use crate::linux::inherited::Inherited;
use crate::process::selection::Selection;
use crate::report::ReportError;
use crate::session::{Control, Listener, OverloadPolicy, Progress, Session, SessionConfig};

/// Looks, tells, and returns the exit code.
pub(super) fn run(args: &LeaksArgs, inherited: Inherited) -> Result<u8> {
    if args.pid.is_none() && args.command.is_empty() {
        let text = "nothing to look at: give `--pid PID` (`pgrep -a NAME` lists processes), or a command behind `--`; see `heapbpf leaks --help`";
        return Err(UsageError(text.to_owned()).into());
    }
    let plan = Plan {
        limit: args.limit,
        suppressions: suppressions(&args.suppressions)?,
        with_contents: !args.no_contents,
        trims: args.trim,
    };
    let outputs = args.output.iter().map(|path| open(path, args)).collect::<Result<Vec<_>>>()?;
    let telling = Telling { outputs, format: args.format, quiet: args.quiet, to_stderr: !args.command.is_empty() };
    match (args.pid, args.watch) {
        (Some(pid), None) => {
            let keeper = Keeper::start()?;
            let checking = Checking::start(plan, telling)?;
            checking.check(heap_snapshot::take_unrecorded(Pid(pid), args.snapshot.into(), &keeper)?);
            checking.finish(exit::DONE)
        }
        _ => {
            privilege::check()?;
            privilege::raise_memory_limit();
            privilege::raise_descriptor_limit();
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
            runtime.block_on(watch(args, plan, telling, inherited))
        }
    }
}

/// A file of a format that sums are enough for.
fn open(path: &Path, args: &LeaksArgs) -> Result<Output> {
    let output = Output::open(path, args.format, Access::Owner)?;
    if output.format().needs_recording() {
        let refused = ReportError::NeedsRecording(output.format());
        return Err(UsageError(format!("cannot write `{}`: {refused}", path.display())).into());
    }
    Ok(output)
}

async fn watch(args: &LeaksArgs, plan: Plan, telling: Telling, inherited: Inherited) -> Result<u8> {
    let mut stops = Stops::new(inherited.signals())?;
    let mut orders = Control::listen().context("cannot listen for signals")?;
    let mut session = Session::start(config(args))?;
    session.attach(async || stops.pending(None).await).await?;
    if stops.pending(None).await {
        return Ok(exit::INTERRUPTED);
    }
    let is_launched = !args.command.is_empty();
    if is_launched {
        stops.interrupts_left = 1;
        session.launch(&args.command, inherited)?;
        stops.pending(session.launched()).await;
    } else if !args.quiet {
        say(&format!("heapbpf: watching {}; Ctrl-C looks at once", session.describe()));
    }
    let line = ProgressLine::new(args.quiet || is_launched);
    let forward = session.launched();
    let mut audience = Audience { checking: Checking::start(plan, telling)?, line, failure: None };
    session.run(stops.wait(forward), &mut orders, &mut audience).await?;
    audience.line.clear();
    // What was started has been looked at if it has ended, and is no target any more then.
    session.inspect_all(args.snapshot.into(), &mut audience);
    let has_lost_keeper = session.has_lost_keeper();
    let (_, command, _) = session.finish()?;
    let otherwise = match command {
        Some(command) => see_off(command, &mut stops, args.quiet).await,
        None if has_lost_keeper => exit::INCOMPLETE,
        None => exit::DONE,
    };
    audience.checking.done(stops.next(None)).await;
    match audience.failure {
        Some(error) => Err(error),
        None => audience.checking.finish(otherwise),
    }
}

/// Shows what happens, and has looks checked.
struct Audience {
    checking: Checking,
    line: ProgressLine,
    /// The last look that could not be taken.
    failure: Option<anyhow::Error>,
}

impl Listener for Audience {
    fn progress(&mut self, progress: &Progress) {
        self.line.show(progress);
    }

    fn inspected(&mut self, look: Result<HeapSnapshot>) {
        match look {
            Ok(look) => self.checking.check(look),
            Err(error) => self.failure = Some(error),
        }
    }

    fn has_room(&self) -> bool {
        !self.checking.is_busy()
    }
}

fn config(args: &LeaksArgs) -> SessionConfig {
    SessionConfig {
        selection: Selection { pids: args.pid.map(Pid).into_iter().collect(), ..Selection::default() },
        follow_forks: false,
        interval: Interval::nearest(args.interval),
        duration: args.watch,
        ring_bytes: args.ring_size,
        live_blocks_max: args.live_blocks,
        // A dropped block would have no stack.
        on_overload: OverloadPolicy::Drop,
        checks: Some(args.snapshot.into()),
        ..SessionConfig::default()
    }
}
