//! The loop of the screen: keys, refreshes and signals in, drawing out.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{Event, KeyEventKind};
use heapbpf_base::ids::Pid;
use heapbpf_ledger::model::{Profile, TargetFacts};
use ratatui::Terminal;
use ratatui::backend::Backend;
use regex::Regex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::Phase;
use super::draw::draw;
use super::script::last;
use super::state::{Effect, Prompt, State};
use super::theme::Theme;
use crate::live::Feed;

/// Divisor of a core's time that refreshes may take: dearer refreshes become rarer. This is a fifth less than the 2 % that are
/// documented, because the cost of a refresh elsewhere is not measured: the recording's caches, and freeing the previous profile.
const CPU_SHARE: u32 = 64;
/// Number of refreshes whose cost counts. A single refresh can have waited for other processes, or for names.
const COSTS: usize = 3;

pub(crate) struct Settings {
    /// Time between refreshes.
    pub(crate) period: Duration,
    /// Filter of the stacks that are shown at first.
    pub(crate) filter: Option<Regex>,
    pub(crate) theme: Theme,
}

/// Result of [`Host::save`].
pub(crate) enum Saved {
    Written(String),
    Exists,
    Failed(String),
}

/// Environment of the screen besides the recording: files and the terminal's modes.
pub(crate) trait Host {
    /// A line of a source file that a target names, if its user and the invoking one may read it.
    fn source_line(&mut self, target: &TargetFacts, file: &str, line: u32) -> Option<String>;

    fn save(&mut self, profile: &Profile, path: &Path, replaces: bool) -> Saved;

    /// Gives the terminal back, stops heapbpf until it is continued, and takes the terminal again.
    fn suspend(&mut self) -> io::Result<()>;

    /// Takes the terminal again, whose modes a shell may have changed.
    fn resume(&mut self) -> io::Result<()>;
}

/// The screen of a recording.
pub(crate) struct Screen<'a, B: Backend, H> {
    terminal: &'a mut Terminal<B>,
    host: &'a mut H,
    feed: Feed,
    state: State,
    theme: Theme,
    costs: VecDeque<Duration>,
    due: Instant,
    has_ended: bool,
    /// Location for which the line of source code was read.
    sourced: Option<(Pid, Arc<str>, u32)>,
}

impl<'a, B: Backend<Error = io::Error>, H: Host> Screen<'a, B, H> {
    pub(crate) fn new(
        terminal: &'a mut Terminal<B>,
        host: &'a mut H,
        feed: Feed,
        profile: Arc<Profile>,
        settings: Settings,
    ) -> Self {
        let Settings { period, filter, theme } = settings;
        let state = State::new(profile, period, filter);
        // The first rates are those since the recording started, so the second profile follows soon.
        let due = Instant::now() + period.min(Duration::from_secs(1));
        let costs = VecDeque::new();
        Self { terminal, host, feed, state, theme, costs, due, has_ended: false, sourced: None }
    }

    /// Runs until the user quits, or the view is to end.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut phase: watch::Receiver<Phase>,
    ) -> io::Result<()> {
        let mut suspends = signal(SignalKind::from_raw(libc::SIGTSTP))?;
        let mut continues = signal(SignalKind::from_raw(libc::SIGCONT))?;
        self.draw()?;
        let (mut fetching, mut last_phase) = (None, phase.clone());
        loop {
            let is_due = fetching.is_none() && !self.state.is_paused && !self.has_ended;
            tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase == Phase::Closing) => return Ok(()),
                event = events.recv() => match event {
                    // The terminal has hung up.
                    None => return Ok(()),
                    Some(event) => if self.handle(event).await? { return Ok(()) },
                },
                _ = received(&mut suspends) => self.suspend()?,
                _ = received(&mut continues) => self.resume()?,
                (profile, cost) = async { fetching.as_mut().expect("it is fetching").await }, if fetching.is_some() => {
                    fetching = None;
                    self.refresh(profile, cost, &mut last_phase).await?;
                }
                () = sleep_until(self.due), if is_due => {
                    fetching = Some(Box::pin(fetch(self.feed.clone(), self.state.period / 2)));
                }
            }
        }
    }

    /// Handles an event. Returns whether to quit.
    async fn handle(&mut self, event: Event) -> io::Result<bool> {
        let Event::Key(key) = event else {
            // Other events are resizes: the terminal's size is read when it is drawn.
            return self.draw().map(|()| false);
        };
        if key.kind == KeyEventKind::Release {
            return Ok(false);
        }
        match self.state.key(key) {
            None => {}
            Some(Effect::Quit) => return Ok(true),
            Some(Effect::Suspend) => self.suspend()?,
            Some(Effect::Redraw) => self.clear()?,
            Some(Effect::Mark) => {
                if let Err(error) = self.feed.mark().await {
                    self.state.say(format!("the mark is not in the recording: {error}"), true);
                }
            }
            Some(Effect::Save { path, replaces }) => self.save(&path, replaces),
            Some(Effect::Reschedule) => self.schedule(),
        }
        self.draw()?;
        Ok(false)
    }

    fn save(&mut self, path: &Path, replaces: bool) {
        match self.host.save(&self.state.model.profile, path, replaces) {
            Saved::Written(text) => self.state.say(text, false),
            Saved::Failed(text) => self.state.say(text, true),
            Saved::Exists => self.state.prompt = Some(Prompt::Replace(path.to_owned())),
        }
    }

    async fn refresh(
        &mut self,
        profile: Option<Arc<Profile>>,
        cost: Duration,
        phase: &mut watch::Receiver<Phase>,
    ) -> io::Result<()> {
        let started = Instant::now();
        if let Some(profile) = profile {
            self.state.update(profile);
        } else {
            self.end(phase).await;
        }
        self.read_status();
        self.draw()?;
        self.costs.push_back(cost + started.elapsed());
        if self.costs.len() > COSTS {
            self.costs.pop_front();
        }
        self.schedule();
        Ok(())
    }

    /// Handles the end of the recording, whose last state stays on the screen.
    async fn end(&mut self, phase: &mut watch::Receiver<Phase>) {
        self.has_ended = true;
        if let Some(profile) = last(&self.feed, phase).await {
            self.state.update(profile);
        }
        self.state.say("the recording has ended; s saves a report, q quits", false);
    }

    fn schedule(&mut self) {
        let cheapest = self.costs.iter().min().filter(|_| self.costs.len() == COSTS);
        let least = cheapest.map_or(Duration::ZERO, |cost| *cost * CPU_SHARE);
        self.state.status.limited_to = (least > self.state.period).then_some(least);
        self.due = Instant::now() + self.state.period.max(least);
    }

    fn read_status(&mut self) {
        let progress = self.feed.progress();
        let progress = progress.borrow();
        if let Some(progress) = progress.as_ref() {
            self.state.status.overhead_percent = progress.overhead_percent;
        }
    }

    fn suspend(&mut self) -> io::Result<()> {
        self.host.suspend()?;
        self.resume()
    }

    fn resume(&mut self) -> io::Result<()> {
        self.host.resume()?;
        self.clear()?;
        self.draw()
    }

    /// Makes the next drawing a full one. Unlike [`Terminal::clear`], this does not query the terminal's cursor, whose answer
    /// would be a key.
    fn clear(&mut self) -> io::Result<()> {
        let size = self.terminal.size()?;
        self.terminal.resize(size.into())
    }

    fn draw(&mut self) -> io::Result<()> {
        self.read_source();
        let (state, theme) = (&mut self.state, self.theme);
        self.terminal.draw(|frame| draw(frame, state, theme)).map(drop)
    }

    fn read_source(&mut self) {
        let frame = self.state.selected_frame();
        let target = self.state.selected_target().map(|target| &target.facts);
        let place = frame.zip(target).and_then(|(frame, target)| {
            let file = Arc::clone(frame.file.as_ref()?);
            Some((target.pid, file, frame.line?))
        });
        if place != self.sourced {
            let line = place.as_ref().zip(target);
            let line = line.and_then(|((_, file, line), target)| self.host.source_line(target, file, *line));
            self.state.source = line;
            self.sourced = place;
        }
    }
}

/// Fetches a profile; `None` if nothing is recorded any more. A request to a busy session is repeated.
async fn fetch(feed: Feed, age_max: Duration) -> (Option<Arc<Profile>>, Duration) {
    loop {
        let started = Instant::now();
        match feed.profile(age_max).await {
            Ok(profile) => return (Some(profile), started.elapsed()),
            Err(crate::live::Unavailable::Busy) => {}
            Err(_) => return (None, Duration::ZERO),
        }
    }
}

/// Waits for a signal; for ever once signals can no longer arrive.
async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending().await
    }
}
