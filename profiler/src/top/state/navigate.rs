//! Moving through the panes, and searching in them.

use heapbpf_ledger::model::CallsiteProfile;
use heapbpf_report::function::is_plumbing;
use regex::Regex;

use super::{Body, Pane, State, is_any};
use crate::top::flame::{Path, ROOT};
use crate::top::input::Action;
use crate::top::model::CallsiteRow;

impl State {
    /// Selects another line, or zooms.
    pub(super) fn navigate(&mut self, action: Action) {
        match (self.pane, self.body) {
            (Pane::Targets, _) => {
                if action == Action::Enter {
                    return self.enter(Pane::Body);
                }
                let at = moved(action, self.target_at().unwrap_or(0), self.targets.len(), self.sizes.targets);
                let target = self.targets.get(at).map(|row| row.key);
                self.is_target_kept = true;
                if target != self.target {
                    (self.target, self.callsite, self.is_callsite_kept) = (target, None, false);
                    (self.zoomed, self.framed) = (Path::new(), Path::new());
                    self.derive();
                }
            }
            (Pane::Body, Body::Callsites) => match action {
                Action::Enter => self.enter(Pane::Stack),
                Action::Back if self.filter.is_some() => {
                    self.filter = None;
                    self.derive();
                }
                Action::Back => self.enter(Pane::Targets),
                _ => {
                    self.is_callsite_kept = true;
                    let at = moved(action, self.callsite_at().unwrap_or(0), self.callsites.len(), self.sizes.body);
                    self.select_callsite(self.callsites.get(at).map(|row| row.index));
                }
            },
            (Pane::Body, Body::Flame) => self.navigate_flame(action),
            (Pane::Body, Body::Health) => self.scroll(action),
            (Pane::Stack, _) => {
                if action == Action::Back {
                    return self.enter(Pane::Body);
                }
                let count = self.selected_callsite().map_or(0, |callsite| callsite.stack.len());
                self.stack_at = moved(action, self.stack_at, count, self.sizes.stack);
            }
        }
    }

    /// Selects a callsite, and the first frame of its stack that is not of an allocator or a runtime.
    pub(super) fn select_callsite(&mut self, index: Option<u32>) {
        self.callsite = index;
        let own = |callsite: &CallsiteProfile| {
            callsite.stack.iter().position(|&id| !is_plumbing(self.model.profile.frame(id)))
        };
        self.stack_at = self.selected_callsite().and_then(own).unwrap_or(0);
    }

    pub(super) fn scroll(&mut self, action: Action) {
        // The end is not known before the text is drawn.
        let all = if action == Action::Last { 1_000 } else { usize::MAX };
        self.scroll = moved(action, self.scroll, all, self.sizes.body);
    }

    /// Moves in the flame view: up and down along the stack, left and right among the calls of one function; Enter zooms in,
    /// Backspace out.
    fn navigate_flame(&mut self, action: Action) {
        if self.flame.is_empty() {
            return;
        }
        let node = self.framed_node();
        let places = self.flame.layout(self.zoomed_node(), self.sizes.body_width);
        let place = places.iter().find(|place| place.node == node);
        let mut row: Vec<_> = places.iter().filter(|other| place.is_some_and(|place| place.row == other.row)).collect();
        row.sort_by_key(|place| place.x);
        let at = row.iter().position(|place| place.node == node).unwrap_or(0);
        let is_placed = |node: &&usize| places.iter().any(|place| place.node == **node);
        let next = match action {
            Action::Enter => {
                self.zoomed = self.flame.path(node);
                Some(node)
            }
            Action::Back if self.zoomed.is_empty() => return self.enter(Pane::Targets),
            Action::Back => {
                self.zoomed.pop();
                Some(self.zoomed_node())
            }
            Action::Up => Some(self.flame.parent(node)),
            Action::Down => self.flame.children(node).iter().find(is_placed).copied(),
            Action::Left => at.checked_sub(1).and_then(|at| row.get(at)).map(|place| place.node),
            Action::Right => row.get(at + 1).map(|place| place.node),
            Action::First => {
                self.zoomed = Path::new();
                Some(ROOT)
            }
            _ => None,
        };
        if let Some(next) = next {
            self.framed = self.flame.path(next);
        }
    }

    /// Selects the next match: of the flame view's frames from left to right, or of the callsites in their order.
    pub(super) fn find(&mut self, is_next: bool, includes_current: bool) {
        let Some(pattern) = self.search.clone() else { return self.say("nothing to search for: press /", true) };
        let found = match self.body {
            Body::Flame => self.find_frame(&pattern, is_next, includes_current),
            _ => self.find_callsite(&pattern, is_next, includes_current),
        };
        if !found {
            self.say(format!("no match for `{pattern}`"), true);
        }
    }

    fn find_callsite(&mut self, pattern: &Regex, is_next: bool, includes_current: bool) -> bool {
        let matching = self.matching(Some(pattern)).unwrap_or_default();
        let Some(target) = self.selected_target() else { return false };
        let is_match = |row: &CallsiteRow| target.callsites.get(row.at).is_some_and(|it| is_any(&matching, it));
        let matches: Vec<usize> = (0..self.callsites.len()).filter(|&at| is_match(&self.callsites[at])).collect();
        let Some(at) = next_of(&matches, self.callsite_at().unwrap_or(0), is_next, includes_current) else {
            return false;
        };
        self.select_callsite(Some(self.callsites[at].index));
        (self.body, self.is_callsite_kept) = (Body::Callsites, true);
        self.enter(Pane::Body);
        true
    }

    fn find_frame(&mut self, pattern: &Regex, is_next: bool, includes_current: bool) -> bool {
        let mut places = self.flame.layout(self.zoomed_node(), self.sizes.body_width);
        places.sort_by_key(|place| (place.row, place.x));
        let current = self.framed_node();
        let current = places.iter().position(|place| place.node == current).unwrap_or(0);
        let is_match = |at: &usize| self.is_match(pattern, places[*at].node);
        let matches: Vec<usize> = (0..places.len()).filter(is_match).collect();
        let Some(at) = next_of(&matches, current, is_next, includes_current) else { return false };
        self.framed = self.flame.path(places[at].node);
        self.enter(Pane::Body);
        true
    }

    pub(crate) fn is_match(&self, pattern: &Regex, node: usize) -> bool {
        let name = self.flame.name(node);
        pattern.is_match(&name.label) || pattern.is_match(&name.module)
    }
}

fn moved(action: Action, at: usize, count: usize, page: u16) -> usize {
    let page = usize::from(page).saturating_sub(1).max(1);
    let to = match action {
        Action::Up => at.saturating_sub(1),
        Action::Down => at.saturating_add(1),
        Action::PageUp => at.saturating_sub(page),
        Action::PageDown => at.saturating_add(page),
        Action::First => 0,
        Action::Last => usize::MAX,
        _ => at,
    };
    to.min(count.saturating_sub(1))
}

/// The first of the ascending numbers after `at`, or before it; cyclically.
fn next_of(all: &[usize], at: usize, is_next: bool, includes_current: bool) -> Option<usize> {
    if is_next {
        let after = |number: &usize| *number > at || includes_current && *number == at;
        all.iter().copied().find(after).or_else(|| all.first().copied())
    } else {
        all.iter().copied().rev().find(|number| *number < at).or_else(|| all.last().copied())
    }
}
