//! What can be typed about how reports look, wherever reports are made.

use clap::Args;

use super::{OUTPUT, view_help};
use crate::report::{Format, Group, Presentation, Share, View};

#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct PresentationArgs {
    /// What flame graphs, folded text and the table show.
    #[arg(help_heading = OUTPUT, long, default_value_t = View::LiveBytes, value_name = "VIEW", help = view_help())]
    pub(in crate::cli) view: View,

    /// Group stacks by `thread`, `command`, `cgroup` or `heap`, or several of these with commas, the outermost first: frames
    /// above the process's, or labels in formats that have them. By `thread` has to be said when recording starts, or when a
    /// recording is converted.
    #[arg(help_heading = OUTPUT, long, value_name = "WHAT", value_delimiter = ',')]
    pub(in crate::cli) by: Vec<Group>,

    /// Fold what makes less than this share of the view's total (0.8%) into frames called `<other>`, level by level; totals
    /// stay what they are.
    #[arg(help_heading = OUTPUT, long, value_name = "SHARE")]
    pub(in crate::cli) threshold: Option<Share>,

    /// Draw flame graphs upside down, the outermost frames at the top.
    #[arg(help_heading = OUTPUT, long)]
    pub(in crate::cli) icicle: bool,

    /// Format of all reports, whatever their files are called: `svg`, `html`, `folded`, `json`, `pprof`, `speedscope`, `firefox`,
    /// `perfetto`, `memory-infra`, `dhat`, `massif`, `heaptrack`, `gperftools` or `otlp`.
    #[arg(help_heading = OUTPUT, long, value_name = "FORMAT")]
    pub(in crate::cli) format: Option<Format>,
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
