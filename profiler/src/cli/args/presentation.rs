//! What can be typed about how reports look, wherever reports are made.

use std::error::Error;
use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command};

use super::{OUTPUT, view_help};
use crate::report::{Format, Group, Presentation, Share, View};

#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct PresentationArgs {
    /// What flame graphs, folded text and the table show.
    #[arg(help_heading = OUTPUT, long, default_value_t = View::LiveBytes, value_name = "VIEW", help = view_help(), value_parser = view(), hide_possible_values = true)]
    pub(in crate::cli) view: View,

    /// Group stacks by `thread`, `command`, `cgroup` or `heap`, or several of these with commas, the outermost first: frames
    /// above the process's, or labels in formats that have them. By `thread` has to be said when recording starts, or when a
    /// recording is converted.
    #[arg(help_heading = OUTPUT, long, value_name = "WHAT", value_delimiter = ',', value_parser = group(), hide_possible_values = true)]
    pub(in crate::cli) by: Vec<Group>,

    /// Fold what makes less than this share of the view's total (0.8%) into frames called `<other>`, level by level; totals
    /// stay what they are.
    #[arg(help_heading = OUTPUT, long, value_name = "SHARE", allow_hyphen_values = true)]
    pub(in crate::cli) threshold: Option<Share>,

    /// Draw flame graphs upside down, the outermost frames at the top.
    #[arg(help_heading = OUTPUT, long)]
    pub(in crate::cli) icicle: bool,

    #[arg(help_heading = OUTPUT, long, value_name = "FORMAT", help = format_help(), value_parser = format(), hide_possible_values = true)]
    pub(in crate::cli) format: Option<Format>,
}

/// Reads what has a name, and lets completions know all names. Errors are the type's own.
#[derive(Clone)]
struct Named<T: 'static> {
    names: &'static [T],
    name: fn(&T) -> &'static str,
}

impl<T> TypedValueParser for Named<T>
where
    T: FromStr<Err: Error + Send + Sync> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        (|name: &str| name.parse::<T>()).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(|named| PossibleValue::new((self.name)(named)))))
    }
}

fn format_help() -> String {
    format!("Format of all reports, regardless of their file extensions: {}", Format::names())
}

pub(super) fn format() -> impl TypedValueParser<Value = Format> {
    Named { names: &Format::ALL, name: |format| format.name() }
}

fn group() -> impl TypedValueParser<Value = Group> {
    Named { names: &Group::ALL, name: |group| group.name() }
}

/// Reads `--view`.
pub(in crate::cli) fn view() -> impl TypedValueParser<Value = View> {
    Named { names: &View::ALL, name: |view| view.name() }
}

impl PresentationArgs {
    /// Whether threads are to be told apart.
    pub(in crate::cli) fn by_thread(&self) -> bool {
        self.by.contains(&Group::Thread)
    }

    /// How reports are to be presented.
    pub(in crate::cli) fn presentation(&self) -> Presentation {
        let mut by: Vec<Group> = Vec::new();
        for &group in &self.by {
            if !by.contains(&group) {
                by.push(group);
            }
        }
        Presentation { view: self.view, by, threshold: self.threshold, icicle: self.icicle }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Cli;

    #[test]
    fn completions_know_the_names() {
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut Cli::command(), "heapbpf", &mut script);
        let script = String::from_utf8(script).expect("scripts are text");
        for names in [
            "live-bytes live-count alloc-bytes alloc-count",
            "thread command cgroup heap",
            "svg html folded json pprof speedscope firefox perfetto memory-infra dhat massif heaptrack gperftools otlp",
        ] {
            assert!(script.contains(&format!("-W \"{names}\"")), "`{names}` is not in it");
        }
    }

    #[test]
    fn what_has_no_such_name_is_refused_in_words() {
        for (arguments, reason) in [
            (["--by", "heap,threads"], "cannot group by `threads`; use `thread`, `command`"),
            (["--format", "png"], "unknown format `png`; use one of `svg`, `html`"),
            (["--view", "bytes"], "`bytes` is not a valid view; use `live-bytes`"),
            (["--threshold", "-5%"], "`-5%` is not a valid share"),
        ] {
            let error = Cli::try_parse_from(["heapbpf"].into_iter().chain(arguments)).expect_err(reason).to_string();
            assert!(error.contains(reason) && !error.contains("possible values"), "{error}");
        }
    }
}
