//! Preemption modes: which to boot with, and whether the kernel is in that mode.

use std::fmt;

use clap::ValueEnum;

use super::checks::Check;

/// What `--preempt` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Choice {
    /// Programs and the kernel are preempted where they ask for it.
    None,
    /// As `full`, but ordinary tasks wait for the next tick (Linux 6.13).
    Lazy,
    /// Everywhere.
    Full,
    /// One boot in each.
    All,
}

/// A mode to boot with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preemption {
    mode: Choice,
    /// One of all: kernels need not have it.
    optional: bool,
}

impl Preemption {
    /// The boots that these choices ask for; `None` stands for the kernel's default.
    pub(super) fn of(choices: &[Choice]) -> Vec<Option<Self>> {
        if choices.is_empty() {
            return vec![None];
        }
        let modes = |choice: &Choice| match choice {
            Choice::All => vec![(Choice::None, true), (Choice::Lazy, true), (Choice::Full, true)],
            mode => vec![(*mode, false)],
        };
        choices.iter().flat_map(modes).map(|(mode, optional)| Some(Self { mode, optional })).collect()
    }

    /// The kernel's word for it.
    pub(super) fn mode(self) -> Mode {
        Mode(self.mode)
    }

    /// Compares with `/sys/kernel/debug/sched/preempt`, which lists the kernel's modes, the present one in brackets. 7.0 and
    /// later have no `none` on x86, earlier kernels than 6.13 no `lazy`.
    pub(super) fn judge(self, listed: Option<&str>) -> Check {
        let listed = listed.unwrap_or_default();
        let mode = self.mode().to_string();
        let present = listed.split_whitespace().any(|word| word.trim_matches(['(', ')']) == mode);
        let outcome = if listed.contains(&format!("({mode})")) {
            Ok(listed.to_owned())
        } else if self.optional && !present {
            Ok(format!("this kernel has no `{mode}`: {listed}"))
        } else {
            Err(format!("`{mode}` was requested, the kernel reports `{listed}`"))
        };
        Check { name: "the preemption mode is the requested one".to_owned(), outcome }
    }
}

/// A mode's name in `preempt=`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode(Choice);

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Choice::None => "none",
            Choice::Lazy => "lazy",
            Choice::Full => "full",
            Choice::All => "all",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_is_one_boot_and_all_are_three() {
        let modes = |choices: &[Choice]| -> Vec<Option<String>> {
            Preemption::of(choices).iter().map(|mode| mode.map(|mode| mode.mode().to_string())).collect()
        };
        let named = |names: &[&str]| names.iter().map(|name| Some((*name).to_owned())).collect::<Vec<_>>();
        assert_eq!(modes(&[]), [None]);
        assert_eq!(modes(&[Choice::Lazy, Choice::Full]), named(&["lazy", "full"]));
        assert_eq!(modes(&[Choice::All]), named(&["none", "lazy", "full"]));
    }

    #[test]
    fn a_kernel_in_another_mode_fails_the_check() {
        let check = |choice, listed, expected: &[bool]| {
            let modes = Preemption::of(&[choice]).into_iter().flatten();
            assert_eq!(modes.map(|mode| mode.judge(listed).outcome.is_ok()).collect::<Vec<_>>(), expected);
        };
        check(Choice::Full, Some("none voluntary (full) lazy"), &[true]);
        check(Choice::Lazy, Some("none voluntary (full) lazy"), &[false]);
        check(Choice::None, Some("(full) lazy"), &[false]);
        check(Choice::Full, None, &[false]);
        // The first is not there, the second is and was not taken.
        check(Choice::All, Some("(full) lazy"), &[true, false, true]);
    }
}
