//! Command `heapbpf agent`: records all processes for a part of the time, within budgets, until it is stopped.

mod config;
mod history;
mod monitor;
mod notify;
mod schedule;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytesize::ByteSize;
use clap::Args;
use heapbpf_base::shown::Shown;
use heapbpf_ledger::model::Others;
use heapbpf_linux::{clock, memory};
use heapbpf_report::View;
use heapbpf_report::text::counted;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info, warn};

use self::config::{Config, DEFAULT};
use self::history::History;
use self::monitor::{Orders, monitor, read};
use self::notify::ServiceManager;
use self::schedule::{Schedule, random};
use super::exit;
use super::runtime::run_session;
use super::terminal;
use super::views::{Prepared, Rendering, Views};
use crate::guardrail::Limits;
use crate::process::selection::Selection;
use crate::session::{Control, Engine, Hold, Listener, Progress, Session, SessionConfig};
use crate::snapshot::Snapshot;
use crate::symbolize::sources::Sources;
use crate::symbolize::trim::Trim;

// Sizes for hosts of some hundreds of processes, within the default of `max-memory`.
const RING_BYTES: u32 = 4 << 20;
const LIVE_BLOCKS_MAX: u32 = 1 << 17;
const UNWIND_BYTES_MAX: u64 = 24 << 20;

/// Maximum number of reasons in the log for which processes were skipped.
const REASONS_MAX: usize = 5;

/// Number of recordings that may fail before the first that succeeds.
const FAILURES_MAX: u32 = 3;

#[derive(Args, Clone, Debug)]
pub(super) struct AgentArgs {
    /// Configuration file (TOML). SIGHUP reads it again, and the files that it names.
    #[arg(short, long, value_name = "FILE", required_unless_present = "print_config")]
    config: Option<PathBuf>,

    /// Validate the configuration and the files that it names, print all that is in effect, and exit.
    #[arg(long, requires = "config")]
    check: bool,

    /// Print a commented configuration with all defaults, and exit.
    #[arg(long, conflicts_with_all = ["config", "check"])]
    print_config: bool,
}

pub(super) fn run(args: &AgentArgs) -> Result<u8> {
    use std::io::Write as _;
    let Some(path) = &args.config else {
        terminal::output().write_all(DEFAULT.as_bytes())?;
        return Ok(exit::DONE);
    };
    let (config, views) = read(path)?;
    if args.check {
        terminal::output().write_all(config.text().as_bytes())?;
        return Ok(exit::DONE);
    }
    run_session(Agent::start(path.clone(), config, views))
}

struct Agent {
    orders: watch::Receiver<Orders>,
    /// The configuration in effect.
    config: Arc<Config>,
    /// The last configuration that was read: the one in effect, unless its views could not be started.
    read: Arc<Config>,
    history: History,
    schedule: Schedule,
    manager: Arc<ServiceManager>,
    /// Running views; `None` where none are configured, and until the configured ones can be started.
    views: Option<Views>,
    prepared: Arc<Prepared>,
    /// Number of failures; `None` once a recording has succeeded: later failures may be temporary.
    failures: Option<u32>,
}

/// Result of a recording.
struct Outcome {
    snapshot: Arc<Snapshot>,
    cpu: Duration,
}

impl Agent {
    async fn start(path: PathBuf, config: Arc<Config>, prepared: Arc<Prepared>) -> Result<u8> {
        // From here on, requests for dumps and marks of other sessions do not end the agent.
        drop(Control::listen().context("cannot listen for signals")?);
        let manager = Arc::new(ServiceManager::connect());
        let views = start_views(&prepared)?;
        let orders = monitor(path, Arc::clone(&config), Arc::clone(&prepared), Arc::clone(&manager))?;
        manager.notify("READY=1");
        info!("{}", about(&config));
        let schedule = Schedule::new(config.duty);
        let agent = Self {
            orders,
            read: Arc::clone(&config),
            config,
            history: History::default(),
            schedule,
            manager,
            views,
            prepared,
            failures: Some(0),
        };
        agent.run().await
    }

    async fn run(mut self) -> Result<u8> {
        loop {
            let due = Instant::now() + self.schedule.next_pause(random());
            if !self.pause(due).await? {
                break;
            }
            match self.record().await {
                Ok(outcome) => {
                    self.failures = None;
                    self.finish(&outcome);
                    drop(outcome);
                    memory::release_freed();
                }
                Err(error) => {
                    self.failures = self.failures.map(|failures| failures + 1);
                    if self.failures.is_some_and(|failures| failures >= FAILURES_MAX) {
                        bail!("the first {FAILURES_MAX} recordings failed: {error:#}");
                    }
                    error!("the recording failed: {error:#}");
                    self.manager.status(&format!("the last recording failed: {error:#}"));
                }
            }
        }
        self.manager.notify("STOPPING=1");
        self.finish_views().await;
        info!("stopped");
        Ok(exit::DONE)
    }

    /// Waits until a recording is due and allowed. Returns false if the agent is to exit.
    async fn pause(&mut self, mut due: Instant) -> Result<bool> {
        let mut was_halted = false;
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if orders.stop {
                return Ok(false);
            }
            if !Arc::ptr_eq(&orders.config, &self.read) {
                self.read = Arc::clone(&orders.config);
                match self.apply(orders.config, orders.views).await {
                    Ok(()) => due = Instant::now() + self.schedule.next_pause(random()),
                    Err(error) => error!("the configuration is unchanged: {error:#}"),
                }
            }
            let is_halted = orders.is_halted;
            if is_halted != was_halted {
                was_halted = is_halted;
                let file = Shown::of(&self.config.stop_file);
                match is_halted {
                    true => warn!("nothing is recorded while `{file}` exists"),
                    false => info!("`{file}` was removed: recording again"),
                }
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() && !is_halted {
                return Ok(true);
            }
            self.manager.status(&match is_halted {
                true => format!("halted by {}", Shown::of(&self.config.stop_file)),
                false => format!("next recording in {left:.0?}"),
            });
            tokio::select! {
                changed = self.orders.changed() => changed.context("internal error: the monitor ended; please report it")?,
                () = sleep(left), if !is_halted => {}
            }
        }
    }

    /// Puts a configuration into effect as a whole, or leaves the previous one in effect.
    async fn apply(&mut self, config: Arc<Config>, prepared: Arc<Prepared>) -> Result<()> {
        if prepared.differs_from(&self.prepared) {
            // The old views may have the same addresses, and the same queue.
            self.finish_views().await;
            match start_views(&prepared) {
                Ok(views) => (self.views, self.prepared) = (views, prepared),
                Err(error) => {
                    self.restart_views();
                    return Err(error);
                }
            }
        }
        self.schedule = Schedule::new(config.duty);
        self.config = config;
        info!("{}", about(&self.config));
        Ok(())
    }

    /// Starts the views of the configuration in effect where they do not run. Their addresses or files may be in use: recordings
    /// go on without them.
    fn restart_views(&mut self) {
        if self.views.is_none() {
            match start_views(&self.prepared) {
                Ok(views) => self.views = views,
                Err(error) => error!("recording without `[serve]` and `[push]`: {error:#}"),
            }
        }
    }

    /// Lets the last window be pushed, in a limited time.
    async fn finish_views(&mut self) {
        let Some(views) = self.views.take() else { return };
        if let Some(pushed) = views.finish(std::future::pending()).await {
            info!("push: {pushed}");
        }
    }

    async fn record(&mut self) -> Result<Outcome> {
        self.manager.status("recording");
        let cpu_before = cpu_time();
        self.restart_views();
        let session_config = self.session_config();
        let mut control = Control::none();
        let mut session = Session::start(session_config)?;
        if let Some(views) = &mut self.views {
            views.connect(&mut control);
        }
        let (mut orders, read) = (self.orders.clone(), Arc::clone(&self.read));
        let is_over = move |orders: &Orders| orders.stop || orders.is_halted || !Arc::ptr_eq(&orders.config, &read);
        let now = orders.clone();
        session
            .attach(async || {
                tokio::task::yield_now().await;
                is_over(&now.borrow())
            })
            .await?;
        info!("recording {}", session.describe());
        let stop = async {
            // Without the monitor, the agent need not wait for a request.
            let _ = orders.wait_for(|orders| is_over(orders)).await;
        };
        session.run(stop, &mut control, &mut Events { views: self.views.as_ref() }).await?;
        let (snapshot, ..) = session.finish()?;
        let snapshot = Arc::new(snapshot);
        drop(control);
        if let Some(views) = &self.views {
            views.end_session(Arc::clone(&snapshot)).await;
        }
        Ok(Outcome { snapshot, cpu: cpu_time().saturating_sub(cpu_before) })
    }

    fn session_config(&self) -> SessionConfig {
        let Config { select, record, budget, duty, .. } = &*self.config;
        let rules = self.history.policy(&self.config);
        // A recording may use the share that the pause saves.
        let share = duty.record.as_secs_f64() / duty.every.as_secs_f64();
        SessionConfig {
            selection: Selection {
                pids: Vec::new(),
                patterns: select.commands.clone(),
                cgroups: select.cgroups.clone(),
                all: select.commands.is_empty() && select.cgroups.is_empty(),
                exclude: select.exclude.clone(),
                min_rss_bytes: select.min_rss,
                age_min: select.min_age,
            },
            follow_forks: record.follow_forks,
            hold: Hold::Never,
            interval: record.interval,
            duration: self.schedule.duration(),
            ring_bytes: RING_BYTES,
            live_blocks_max: LIVE_BLOCKS_MAX,
            unwind_bytes_max: UNWIND_BYTES_MAX,
            engine: if rules.may_inline() { Engine::Inline } else { Engine::Trap },
            inventory_bytes_max: 0,
            object_types: false,
            scan_period: select.scan_every,
            limits: Limits {
                memory_bytes_max: Some(budget.max_memory),
                cpu_percent_max: Some(budget.max_cpu / share),
                overhead_percent_max: Some(budget.max_overhead),
            },
            policy: Some(Arc::new(rules)),
            ..SessionConfig::default()
        }
    }

    fn finish(&mut self, outcome: &Outcome) {
        let Outcome { snapshot, cpu } = outcome;
        let duration = Duration::from_nanos(snapshot.ended_unix_ns.saturating_sub(snapshot.started_unix_ns));
        let detached: Vec<_> = snapshot.targets.iter().filter(|target| target.facts.detached().is_some()).collect();
        let pids: Vec<_> = detached.iter().map(|target| target.facts.pid).collect();
        for (pid, pause) in self.history.note(&pids, self.config.budget.retry_after, Instant::now()) {
            let comm = detached.iter().find(|target| target.facts.pid == pid).map(|target| target.facts.comm.as_str());
            let how =
                if self.config.budget.hot.is_some() { "recorded by another engine, or skipped," } else { "skipped" };
            info!("process {pid} ({}) is {how} for {pause:.0?}", comm.unwrap_or_default());
        }
        let samples: u64 = snapshot.targets.iter().map(|target| target.ledger.totals.alloc_samples).sum();
        let text = format!(
            "recorded {} for {duration:.1?}: {samples} samples, {} dropped, {} detached, {} skipped; CPU time {:.2} s, memory {}",
            counted(snapshot.targets.len() as u64, "process"),
            snapshot.health.lost_total(),
            detached.len(),
            snapshot.others.skipped_count,
            cpu.as_secs_f64(),
            ByteSize(memory::resident_bytes()),
        );
        for (reason, count) in skipped(&snapshot.others) {
            info!("skipped {}: {reason}", counted(count, "process"));
        }
        for (loss, count) in &snapshot.health.lost {
            warn!("{count} dropped: {}", loss.name());
        }
        info!("{text}");
        self.manager.status(&text);
        let extension = self.schedule.note_cost(*cpu, self.config.budget.max_cpu);
        if !extension.is_zero() {
            info!("to keep `max-cpu`, the next period starts {extension:.0?} later");
        }
    }
}

/// Reasons for skipping without their numbers, such as PIDs, and to how many processes each applies; the most frequent first.
fn skipped(others: &Others) -> Vec<(String, u64)> {
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    for skipped in &others.skipped {
        let is_number = |word: &&str| word.trim_matches('`').bytes().all(|byte| byte.is_ascii_digit());
        let words = skipped.reason.split(' ').map(|word| if is_number(&word) { "…" } else { word });
        *reasons.entry(words.collect::<Vec<_>>().join(" ")).or_default() += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| Reverse(*count));
    reasons.truncate(REASONS_MAX);
    reasons
}

fn start_views(prepared: &Prepared) -> Result<Option<Views>> {
    let rendering = Rendering {
        presentation: View::LiveBytes.into(),
        trim: Trim { ends: true, interpreter: true },
        quiet: false,
        sources: Sources::default(),
    };
    Views::start_prepared(prepared.clone(), rendering, None)
}

fn about(config: &Config) -> String {
    let (record, every) = (config.duty.record, config.duty.every);
    match record < every {
        true => format!("recording {record:.0?} of each {every:.0?}"),
        false => "recording without pauses".to_owned(),
    }
}

/// CPU time of this process and of its helpers that have exited.
fn cpu_time() -> Duration {
    let own = Duration::from_nanos(clock::cpu_ns());
    own + clock::children_cpu()
}

struct Events<'a> {
    views: Option<&'a Views>,
}

impl Listener for Events<'_> {
    fn progress(&mut self, progress: Progress) {
        self.views.iter().for_each(|views| views.publish(&progress));
    }
}

#[cfg(test)]
mod tests {
    use heapbpf_base::ids::Pid;
    use heapbpf_ledger::model::Skipped;

    use super::*;

    #[test]
    fn reasons_are_grouped_without_the_processes() {
        let reason = |pid: u32, reason: &str| Skipped {
            pid: Pid(pid),
            command: "a".to_owned(),
            reason: reason.replace("PID", &pid.to_string()),
        };
        let skipped_ones =
            vec![reason(12, "no heap"), reason(1, "process `PID` exited"), reason(2, "process `PID` exited")];
        let others = Others { skipped: skipped_ones, ..Others::default() };
        assert_eq!(skipped(&others), [("process … exited".to_owned(), 2), ("no heap".to_owned(), 1)]);
    }
}
