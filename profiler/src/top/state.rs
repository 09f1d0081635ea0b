//! The state of the screen, and its changes by keys. It performs no input or output, and returns the actions for the caller
//! instead.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::KeyEvent;
use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, Profile, TargetId, TargetProfile};
use heapbpf_report::text;
use regex::{Regex, RegexBuilder};

use super::columns::{CallsiteColumn, Column, Order, TargetColumn};
use super::flame::{Flame, Path};
use super::input::{self, Action, Edit, Line};
use super::model::{CallsiteRow, Model, TargetRow};

mod navigate;

/// Times between refreshes from which `+` and `-` choose, in milliseconds.
const PERIODS_MS: [u64; 10] = [250, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 30_000, 60_000];

/// Maximum size of a compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// The part of the screen that the arrow keys act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pane {
    Targets,
    Body,
    Stack,
}

/// Content of the largest pane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Callsites,
    Flame,
    Health,
}

/// A question in the last line of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prompt {
    Search(Line),
    Filter(Line),
    Save(Line),
    /// Whether to replace a file that exists.
    Replace(PathBuf),
}

/// Action that the caller performs for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Quit,
    Suspend,
    /// Draw everything, because the terminal's content is unknown.
    Redraw,
    /// Set a mark in the recording too, as SIGUSR2 does.
    Mark,
    Save {
        path: PathBuf,
        replaces: bool,
    },
    /// The time between refreshes, or whether the screen is paused, has changed.
    Reschedule,
}

/// A line about the last action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// State of the recording besides the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Status {
    /// Share of the targets' CPU time that probes took, in percent.
    pub(crate) overhead_percent: Option<f64>,
    /// Time between refreshes that is used because the requested time would have taken too much CPU time.
    pub(crate) limited_to: Option<Duration>,
}

/// Sizes of the panes as last drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Number of lines of each pane.
    pub(crate) targets: u16,
    pub(crate) body: u16,
    pub(crate) stack: u16,
    /// Width of the body in columns.
    pub(crate) body_width: u16,
    /// First line that is shown in each pane.
    pub(crate) first_target: usize,
    pub(crate) first_callsite: usize,
    pub(crate) first_frame: usize,
    pub(crate) first_row: usize,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) model: Model,
    pub(crate) status: Status,
    pub(crate) period: Duration,
    pub(crate) sizes: Sizes,
    pub(crate) pane: Pane,
    pub(crate) body: Body,
    pub(crate) targets: Vec<TargetRow>,
    pub(crate) target: Option<TargetId>,
    /// Whether the user has selected the target, so that it stays selected wherever it moves. Otherwise, the first line is
    /// selected.
    is_target_kept: bool,
    pub(crate) target_order: Order<TargetColumn>,
    pub(crate) callsites: Vec<CallsiteRow>,
    pub(crate) callsite: Option<u32>,
    is_callsite_kept: bool,
    pub(crate) callsite_order: Order<CallsiteColumn>,
    /// Selected frame of the stack, leaf first.
    pub(crate) stack_at: usize,
    /// The line of source code of the selected frame, where it can be read.
    pub(crate) source: Option<String>,
    pub(crate) flame: Flame,
    pub(crate) zoomed: Path,
    /// Selected frame of the flame view.
    pub(crate) framed: Path,
    pub(crate) is_reversed: bool,
    pub(crate) filter: Option<Regex>,
    pub(crate) search: Option<Regex>,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) message: Option<Message>,
    pub(crate) is_paused: bool,
    pub(crate) is_difference: bool,
    pub(crate) shows_help: bool,
    /// First line of the health view, or of the help.
    pub(crate) scroll: usize,
}

impl State {
    pub(crate) fn new(profile: Arc<Profile>, period: Duration, filter: Option<Regex>) -> Self {
        let mut state = Self {
            model: Model::new(profile),
            status: Status::default(),
            period,
            sizes: Sizes::default(),
            pane: Pane::Targets,
            body: Body::Callsites,
            targets: Vec::new(),
            target: None,
            is_target_kept: false,
            target_order: Order::by(TargetColumn::Live),
            callsites: Vec::new(),
            callsite: None,
            is_callsite_kept: false,
            callsite_order: Order::by(CallsiteColumn::Live),
            stack_at: 0,
            source: None,
            flame: Flame::default(),
            zoomed: Path::new(),
            framed: Path::new(),
            is_reversed: false,
            filter,
            search: None,
            prompt: None,
            message: None,
            is_paused: false,
            is_difference: false,
            shows_help: false,
            scroll: 0,
        };
        state.derive();
        if state.targets.len() < 2 {
            state.enter(Pane::Body);
        }
        state
    }

    pub(crate) fn update(&mut self, profile: Arc<Profile>) {
        let had_targets = !self.targets.is_empty();
        self.model.update(profile);
        self.derive();
        if !had_targets && self.targets.len() == 1 {
            self.enter(Pane::Body);
        }
    }

    pub(crate) fn say(&mut self, text: impl Into<String>, is_error: bool) {
        self.message = Some(Message { text: text.into(), is_error });
    }

    pub(crate) fn selected_target(&self) -> Option<&TargetProfile> {
        self.model.target(self.target?)
    }

    pub(crate) fn target_at(&self) -> Option<usize> {
        self.targets.iter().position(|row| Some(row.key) == self.target)
    }

    pub(crate) fn callsite_at(&self) -> Option<usize> {
        self.callsites.iter().position(|row| Some(row.index) == self.callsite)
    }

    pub(crate) fn selected_callsite(&self) -> Option<&CallsiteProfile> {
        let row = &self.callsites[self.callsite_at()?];
        self.selected_target()?.callsites.get(row.at)
    }

    /// The selected frame of the stack.
    pub(crate) fn selected_frame(&self) -> Option<&Frame> {
        let id = *self.selected_callsite()?.stack.get(self.stack_at)?;
        Some(self.model.profile.frame(id))
    }

    /// Computes rows and, where it is shown, the tree. Selections stay on the same rows, or else on the same lines.
    pub(super) fn derive(&mut self) {
        let (target_at, callsite_at) = (self.target_at(), self.callsite_at());
        let (order, mut targets) = (self.target_order, self.model.target_rows());
        targets.sort_by(|one, other| {
            let exited_last = other.is_running.cmp(&one.is_running);
            exited_last.then_with(|| order.compare(one, other)).then_with(|| one.key.cmp(&other.key))
        });
        self.targets = targets;
        if !self.is_target_kept || self.target_at().is_none() {
            let at = target_at.filter(|_| self.is_target_kept).unwrap_or(0).min(self.targets.len().saturating_sub(1));
            self.target = self.targets.get(at).map(|row| row.key);
        }
        self.derive_callsites(callsite_at);
        self.derive_flame();
    }

    fn derive_callsites(&mut self, at_before: Option<usize>) {
        let keeps = self.matching(self.filter.as_ref());
        let rows = self.selected_target().map(|target| {
            self.model.callsite_rows(target, |callsite| keeps.as_ref().is_none_or(|keeps| is_any(keeps, callsite)))
        });
        let mut rows = rows.unwrap_or_default();
        let is_difference = self.is_difference;
        rows.retain(
            |row| if is_difference { row.growth.abs() >= 1.0 } else { row.live > 0.0 || row.allocated_per_s > 0.0 },
        );
        let order = self.callsite_order;
        rows.sort_by(|one, other| order.compare(one, other).then_with(|| one.index.cmp(&other.index)));
        self.callsites = rows;
        if !self.is_callsite_kept || self.callsite_at().is_none() {
            let kept = at_before.filter(|_| self.is_callsite_kept);
            let at = kept.unwrap_or(0).min(self.callsites.len().saturating_sub(1));
            self.select_callsite(self.callsites.get(at).map(|row| row.index));
        }
    }

    fn derive_flame(&mut self) {
        if self.body != Body::Flame {
            self.flame = Flame::default();
            return;
        }
        let Some(target) = self.selected_target() else {
            self.flame = Flame::default();
            return;
        };
        let callsites = self.callsites.iter().filter_map(|row| {
            let value = if self.is_difference { row.growth } else { row.live };
            Some((target.callsites.get(row.at)?, value))
        });
        self.flame = Flame::new(&self.model.profile, callsites, self.is_reversed);
        self.framed = self.flame.path(self.framed_node());
    }

    pub(crate) fn zoomed_node(&self) -> usize {
        self.flame.find(&self.zoomed)
    }

    /// The selected frame, or the zoomed one if it is not shown.
    pub(crate) fn framed_node(&self) -> usize {
        self.flame.find(&self.framed)
    }

    /// Frames that match a pattern; `None` without a pattern.
    pub(crate) fn matching(&self, pattern: Option<&Regex>) -> Option<Vec<bool>> {
        let pattern = pattern?;
        let is_match = |frame: &Frame| {
            let names = [frame.function.as_deref(), frame.file.as_deref(), frame.module.as_deref()];
            names.into_iter().flatten().any(|name| pattern.is_match(name))
        };
        Some(self.model.profile.frames.iter().map(is_match).collect())
    }

    /// Handles a key. If a prompt is open on the last line, the key answers it.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Effect> {
        if let Some(prompt) = self.prompt.take() {
            return self.answer(prompt, key);
        }
        self.message = None;
        let Some(action) = input::action(key) else {
            self.shows_help = false;
            return None;
        };
        self.apply(action)
    }

    fn answer(&mut self, mut prompt: Prompt, key: KeyEvent) -> Option<Effect> {
        let line = match &mut prompt {
            Prompt::Replace(path) => {
                let path = std::mem::take(path);
                if key.code == crossterm::event::KeyCode::Char('y') {
                    return Some(Effect::Save { path, replaces: true });
                }
                self.say("not saved", false);
                return None;
            }
            Prompt::Search(line) | Prompt::Filter(line) | Prompt::Save(line) => line,
        };
        match line.edit(key) {
            Edit::Changed => {
                self.prompt = Some(prompt);
                None
            }
            Edit::Cancelled => None,
            Edit::Done => self.accept(prompt),
        }
    }

    fn accept(&mut self, prompt: Prompt) -> Option<Effect> {
        match prompt {
            Prompt::Save(line) if !line.text.trim().is_empty() => {
                return Some(Effect::Save { path: line.text.trim().into(), replaces: false });
            }
            Prompt::Search(line) => {
                if self.compile(&line.text).map(|pattern| self.search = pattern).is_some() && self.search.is_some() {
                    self.find(true, true);
                }
            }
            Prompt::Filter(line) => {
                if self.compile(&line.text).map(|pattern| self.filter = pattern).is_some() {
                    self.derive();
                }
            }
            Prompt::Save(_) | Prompt::Replace(_) => {}
        }
        None
    }

    /// Compiles a pattern. An empty text is no pattern. Returns `None` after an error, which the message describes.
    fn compile(&mut self, text: &str) -> Option<Option<Regex>> {
        if text.is_empty() {
            return Some(None);
        }
        // Case works as in less: lower case matches both.
        let ignores_case = !text.chars().any(char::is_uppercase);
        let pattern = RegexBuilder::new(text).case_insensitive(ignores_case).size_limit(PATTERN_BYTES_MAX).build();
        match pattern {
            Ok(pattern) => Some(Some(pattern)),
            Err(error) => {
                let reason = error.to_string();
                let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                self.say(format!("`{text}` is not a valid regular expression: {reason}"), true);
                None
            }
        }
    }

    fn apply(&mut self, action: Action) -> Option<Effect> {
        if self.shows_help && !matches!(action, Action::Quit | Action::Redraw | Action::Suspend) {
            match action {
                Action::Up | Action::Down | Action::PageUp | Action::PageDown | Action::First | Action::Last => {
                    self.scroll(action);
                }
                _ => (self.shows_help, self.scroll) = (false, 0),
            }
            return None;
        }
        match action {
            Action::Quit => return Some(Effect::Quit),
            Action::Suspend => return Some(Effect::Suspend),
            Action::Redraw => return Some(Effect::Redraw),
            Action::Help => (self.shows_help, self.scroll) = (true, 0),
            Action::NextPane => self.change_pane(true),
            Action::PreviousPane => self.change_pane(false),
            Action::ShowCallsites => self.show(Body::Callsites),
            Action::ShowFlame => self.show(Body::Flame),
            Action::ShowHealth => self.show(Body::Health),
            Action::SortNext => self.sort(true),
            Action::SortPrevious => self.sort(false),
            Action::Reverse => self.reverse(),
            Action::Search => self.prompt = Some(Prompt::Search(Line::default())),
            Action::Filter => {
                let text = self.filter.as_ref().map(ToString::to_string).unwrap_or_default();
                self.prompt = Some(Prompt::Filter(Line { text }));
            }
            Action::FindNext => self.find(true, false),
            Action::FindPrevious => self.find(false, false),
            Action::Mark => {
                self.model.set_mark();
                self.derive();
                self.say("mark set: growth counts from now; `d` shows only the difference", false);
                return Some(Effect::Mark);
            }
            Action::Difference => self.toggle_difference(),
            Action::Save => self.prompt = Some(Prompt::Save(Line { text: self.file_name() })),
            Action::Pause => {
                self.is_paused = !self.is_paused;
                return Some(Effect::Reschedule);
            }
            Action::Slower | Action::Faster => {
                self.change_period(action == Action::Slower);
                return Some(Effect::Reschedule);
            }
            _ => self.navigate(action),
        }
        None
    }

    fn show(&mut self, body: Body) {
        (self.body, self.scroll) = (body, 0);
        self.enter(Pane::Body);
        self.derive_flame();
    }

    fn change_pane(&mut self, is_next: bool) {
        let panes: &[Pane] = match self.body {
            Body::Callsites => &[Pane::Targets, Pane::Body, Pane::Stack],
            Body::Flame | Body::Health => &[Pane::Targets, Pane::Body],
        };
        let at = panes.iter().position(|pane| *pane == self.pane).unwrap_or(0);
        self.enter(panes[(at + if is_next { 1 } else { panes.len() - 1 }) % panes.len()]);
    }

    /// Makes a pane active. The selections on which its content depends are kept.
    fn enter(&mut self, pane: Pane) {
        self.pane = pane;
        self.is_target_kept |= pane != Pane::Targets;
        self.is_callsite_kept |= pane == Pane::Stack;
    }

    fn sort(&mut self, is_next: bool) {
        if self.pane == Pane::Targets {
            self.target_order = Order::by(self.target_order.column.neighbour(is_next));
            self.is_target_kept = false;
        } else {
            self.callsite_order = Order::by(self.callsite_order.column.neighbour(is_next));
            self.is_callsite_kept = false;
        }
        self.derive();
    }

    fn reverse(&mut self) {
        match (self.pane, self.body) {
            (Pane::Targets, _) => self.target_order.is_ascending = !self.target_order.is_ascending,
            (_, Body::Flame) => {
                self.is_reversed = !self.is_reversed;
                (self.zoomed, self.framed) = (Path::new(), Path::new());
            }
            _ => self.callsite_order.is_ascending = !self.callsite_order.is_ascending,
        }
        self.derive();
    }

    fn toggle_difference(&mut self) {
        self.is_difference = !self.is_difference;
        if self.is_difference {
            self.callsite_order = Order::by(CallsiteColumn::Growth);
            self.is_callsite_kept = false;
            if self.model.since_mark_ns().is_none() {
                self.say("no mark is set: this is the difference since the recording started", false);
            }
        }
        self.derive();
    }

    fn change_period(&mut self, is_longer: bool) {
        let now = u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX);
        let longer = PERIODS_MS.iter().copied().find(|period| *period > now);
        let shorter = PERIODS_MS.iter().copied().rev().find(|period| *period < now);
        let period = if is_longer { longer } else { shorter };
        let period = period.unwrap_or(now);
        self.period = Duration::from_millis(period);
        self.say(format!("refresh every {}", text::duration(period.saturating_mul(1_000_000))), false);
    }

    /// File name that is suggested for the report.
    fn file_name(&self) -> String {
        let comm = self.selected_target().map_or("all", |target| &target.facts.comm);
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
        format!("heapbpf-{}.html", comm.chars().filter(is_plain).collect::<String>())
    }
}

fn is_any(frames: &[bool], callsite: &CallsiteProfile) -> bool {
    callsite.stack.iter().any(|&FrameId(id)| frames.get(id as usize).copied().unwrap_or(false))
}

#[cfg(test)]
mod tests;
