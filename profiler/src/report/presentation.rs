//! How a profile is to be presented, whatever the format.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::View;

/// How a report is laid out: view, grouping and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presentation {
    /// The quantity, of formats that show one only; that which the others show first.
    pub view: View,
    /// What stacks are grouped by, the outermost first: frames above the process's, or labels where the format has them.
    pub by: Vec<Group>,
    /// What makes less of the view's total is folded into `<other>` (see [`thinned`](Self::thinned)); `None` for nothing.
    pub threshold: Option<Share>,
    /// Flame graphs grow downwards, with the outermost frames at the top.
    pub icicle: bool,
}

impl From<View> for Presentation {
    fn from(view: View) -> Self {
        Self { view, ..Self::default() }
    }
}

/// A share of something, in millionths: from nothing to all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    /// Nothing of it.
    pub const NOTHING: Self = Self(0);
    /// All of it.
    pub const ALL: Self = Self(1_000_000);

    /// Whether a part makes at least this share of the whole.
    pub fn is_reached(self, part: u128, whole: u128) -> bool {
        // Neither comes near the end of the number: they are sums of fewer than 2^32 numbers of 64 bits.
        part.saturating_mul(Self::ALL.0.into()) >= whole.saturating_mul(self.0.into())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, rest) = (self.0 / 10_000, self.0 % 10_000);
        let rest = if rest == 0 { String::new() } else { format!(".{rest:04}") };
        write!(f, "{percent}{}%", rest.trim_end_matches('0'))
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let error = |why| ShareError { text: text.to_owned(), why };
        let percent = text.strip_suffix('%').ok_or_else(|| error("a share ends in `%`, as in `0.8%`"))?;
        let is_number = percent.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let percent: f64 = Some(percent)
            .filter(|_| is_number)
            .and_then(|percent| percent.parse().ok())
            .ok_or_else(|| error("no number stands before the `%`"))?;
        if percent > 100.0 {
            return Err(error("more than everything cannot be asked for"));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 1,000,000")]
        let millionths = (percent * 10_000.0).round() as u32;
        Ok(Self(millionths))
    }
}

/// This is no share.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is no share: {why}")]
pub struct ShareError {
    text: String,
    why: &'static str,
}

/// What stacks can be grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// The thread that allocated.
    Thread,
    /// The program: `argv[0]`.
    Command,
    /// The control group.
    Cgroup,
    /// The heap.
    Heap,
}

impl Group {
    /// All, in the order in which they are offered.
    pub const ALL: [Self; 4] = [Self::Thread, Self::Command, Self::Cgroup, Self::Heap];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Command => "command",
            Self::Cgroup => "cgroup",
            Self::Heap => "heap",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Group {
    type Err = GroupError;

    fn from_str(name: &str) -> Result<Self, GroupError> {
        Self::ALL.into_iter().find(|group| group.name() == name).ok_or_else(|| GroupError { name: name.to_owned() })
    }
}

/// Nothing can be grouped by this.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("nothing is grouped by `{name}`; use `thread`, `command`, `cgroup` or `heap`")]
pub struct GroupError {
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        for (text, expected) in
            [("0.8%", "0.8%"), ("0%", "0%"), ("100%", "100%"), ("12.50%", "12.5%"), (".01%", "0.01%")]
        {
            assert_eq!(text.parse::<Share>().map(|share| share.to_string()), Ok(expected.to_owned()));
        }
        for (text, why) in [
            ("0.8", "ends in `%`"),
            ("", "ends in `%`"),
            ("%", "no number"),
            ("-1%", "no number"),
            ("1e1%", "no number"),
            ("inf%", "no number"),
            ("1.2.3%", "no number"),
            ("100.1%", "more than everything"),
        ] {
            let error = text.parse::<Share>().expect_err(text).to_string();
            assert!(error.contains(why) && error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn a_share_is_reached_by_just_as_much() {
        let share: Share = "0.8%".parse().expect("a share");
        assert!(share.is_reached(8, 1000) && !share.is_reached(7, 1000) && share.is_reached(0, 0));
        assert!(Share::ALL.is_reached(u128::from(u64::MAX), u128::from(u64::MAX)));
        assert!(!Share::ALL.is_reached(u128::from(u64::MAX) - 1, u128::from(u64::MAX)));
    }
}
