//! Rules by number: each distinct rule once. The builder has one of these per module, the agent one for the kernel.

use profiler_common::unwind::{RULES_MAX, Rule};
use rustc_hash::FxHashMap;

/// Number of [`Rule::GAP`] in every table.
pub(crate) const GAP: u16 = 0;
/// Number of [`Rule::END`] in every table.
pub(crate) const END: u16 = 1;
/// Number of [`Rule::UNSUPPORTED`] in every table.
pub(crate) const UNSUPPORTED: u16 = 2;
/// Number of [`Rule::FRAME_POINTER`] in every table.
pub(crate) const FRAME_POINTER: u16 = 4;

/// Distinct rules, numbered in the order of their arrival after the reserved ones.
#[derive(Clone, Debug)]
pub struct RuleTable {
    rules: Vec<Rule>,
    numbers: FxHashMap<Rule, u16>,
}

impl RuleTable {
    /// A table of the reserved rules.
    pub fn new() -> Self {
        let numbers = Rule::RESERVED.into_iter().zip(0..).collect();
        Self { rules: Rule::RESERVED.to_vec(), numbers }
    }

    /// The rule's number, or `None` if it is new and all numbers are taken.
    pub fn number(&mut self, rule: Rule) -> Option<u16> {
        if let Some(&number) = self.numbers.get(&rule) {
            return Some(number);
        }
        let number = u16::try_from(self.rules.len()).ok()?;
        debug_assert!(self.rules.len() < RULES_MAX, "numbers have 16 bits");
        self.rules.push(rule);
        self.numbers.insert(rule, number);
        Some(number)
    }

    /// All rules, by number. What the kernel's rule map holds.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rules alone.
    pub fn into_rules(self) -> Vec<Rule> {
        self.rules
    }
}

impl Default for RuleTable {
    fn default() -> Self {
        Self::new()
    }
}
