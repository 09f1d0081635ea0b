//! The kinds of kills: modes of heapbpf, backends, roles of processes, and points in time.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Defines an enum whose values are parsed from their names; the error of an unknown name lists all.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$item:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type { $($(#[$item])* $variant,)+ }

        impl $type {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name on the command line and in tables.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|it| it.name() == text).ok_or_else(|| {
                    format!("`{text}` is unknown; supported are {}", Self::ALL.iter().map(|it| it.name()).collect::<Vec<_>>().join(", "))
                })
            }
        }
    };
}

named! {
    /// A use of heapbpf.
    Mode {
        /// `record --pid` at an interval of 1: every call is an event.
        Exact = "exact",
        /// `record --pid` at the default interval.
        Record = "record",
        /// `record --pid --engine inline` at the engine's default interval.
        Inline = "inline",
        /// `record --pid --engine inline` at an interval of 1.
        InlineExact = "inline-exact",
        /// `record --pid -o x.heapbpf`.
        Recording = "recording",
        /// `record --cmdline`, following forks.
        Cmdline = "cmdline",
        /// `record -- COMMAND`.
        Launch = "launch",
        /// `record --pid --hold forks`.
        HoldForks = "hold-forks",
        /// `leaks --pid`, memory read while the target is stopped.
        LeaksRead = "leaks-read",
        /// `leaks --pid --snapshot fork`.
        LeaksFork = "leaks-fork",
        /// `leaks --pid --watch`.
        LeaksWatch = "leaks-watch",
    }
}

named! {
    /// How probes are attached.
    Backend {
        /// `--backend session`.
        Session = "session",
        /// `--backend multi`.
        Multi = "multi",
        /// `--backend perf`.
        Perf = "perf",
        /// No choice: the kernel's best, or no probes at all.
        Auto = "auto",
    }
}

named! {
    /// The process to kill.
    Role {
        /// heapbpf itself.
        Agent = "agent",
        /// Its child that owns links and injections.
        Keeper = "keeper",
        /// Its child that parses files.
        Symbolizer = "symbolizer",
        /// Agent and keeper at once: what they leave is removed by the next session.
        Both = "both",
        /// The profiled process.
        Target = "target",
    }
}

impl Mode {
    /// Backends that can be chosen in this mode.
    pub(super) fn backends(self) -> &'static [Backend] {
        match self {
            Self::LeaksRead | Self::LeaksFork | Self::LeaksWatch | Self::Inline | Self::InlineExact => &[Backend::Auto],
            _ => &[Backend::Session, Backend::Multi, Backend::Perf],
        }
    }

    /// Whether heapbpf exits by itself.
    pub(super) fn is_one_shot(self) -> bool {
        matches!(self, Self::LeaksRead | Self::LeaksFork)
    }

    /// Whether slots of the target lead to stubs while heapbpf runs.
    pub(super) fn is_inline(self) -> bool {
        matches!(self, Self::Inline | Self::InlineExact)
    }

    pub(super) fn is_leaks(self) -> bool {
        matches!(self, Self::LeaksRead | Self::LeaksFork | Self::LeaksWatch)
    }

    /// The expected output file.
    pub(super) fn output(self) -> &'static str {
        if self == Self::Recording { "x.heapbpf" } else { "out.json" }
    }

    /// Whether the output exists while heapbpf runs, and remains when it is killed.
    pub(super) fn keeps_output(self) -> bool {
        self == Self::Recording
    }
}

/// One kind of kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) mode: Mode,
    pub(super) backend: Backend,
    pub(super) role: Role,
}

impl Case {
    /// All existing combinations; `None` stands for all values.
    pub(super) fn all(mode: Option<Mode>, backend: Option<Backend>, role: Role) -> Vec<Self> {
        let modes = Mode::ALL.iter().copied().filter(|it| mode.is_none_or(|mode| mode == *it));
        modes
            .flat_map(|mode| mode.backends().iter().map(move |&backend| Self { mode, backend, role }))
            .filter(|case| backend.is_none_or(|backend| backend == case.backend))
            .filter(|case| !case.lacks_role())
            .collect()
    }

    /// Whether no such kill is made, or there may be no process of this role: a single heap snapshot attaches no probe, and without
    /// leaks nothing is symbolized.
    fn lacks_role(self) -> bool {
        match self.role {
            Role::Keeper => self.mode == Mode::LeaksRead,
            Role::Symbolizer => self.mode.is_leaks(),
            // Slots outlive both processes, breakpoints only by a fault of the kernel.
            Role::Both => !self.mode.is_inline(),
            Role::Agent | Role::Target => false,
        }
    }

    /// The options of `cargo xtask faults` that select this case.
    pub(super) fn options(self) -> String {
        format!("--mode {} --backend {} --role {}", self.mode, self.backend, self.role)
    }

    /// heapbpf's arguments. `program` and its arguments are launched, or matched by name.
    pub(super) fn arguments(self, pid: u32, program: &[OsString]) -> Vec<OsString> {
        let pid = pid.to_string();
        let name = program.first().and_then(|path| Path::new(path).file_name()).unwrap_or_default().to_owned();
        let name = name.to_string_lossy();
        let words: &[&str] = match self.mode {
            Mode::Exact => &["--pid", &pid, "--interval", "1", "--on-overload", "drop"],
            Mode::Record | Mode::Recording => &["record", "--pid", &pid],
            Mode::Inline => &["--pid", &pid, "--engine", "inline"],
            Mode::InlineExact => &["--pid", &pid, "--engine", "inline", "--interval", "1", "--on-overload", "drop"],
            Mode::Cmdline => &["--cmdline", &name],
            Mode::Launch => &["record"],
            Mode::HoldForks => &["--pid", &pid, "--hold", "forks"],
            Mode::LeaksRead => &["leaks", "--pid", &pid],
            Mode::LeaksFork => &["leaks", "--pid", &pid, "--snapshot", "fork"],
            Mode::LeaksWatch => &["leaks", "--pid", &pid, "--watch", "10m"],
        };
        let mut arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        arguments.extend(["-o", self.mode.output()].map(OsString::from));
        if self.backend != Backend::Auto {
            arguments.extend(["--backend", self.backend.name()].map(OsString::from));
        }
        if self.mode == Mode::Launch {
            arguments.push("--".into());
            arguments.extend_from_slice(program);
        }
        arguments
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:11} {:8} {:10}", self.mode, self.backend, self.role)
    }
}

/// The time of a kill, after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KillTime {
    /// The start of heapbpf, or of the process of that role.
    Start(Duration),
    /// The end of attaching.
    Steady(Duration),
    /// The SIGINT that stops recording.
    Detach(Duration),
}

impl fmt::Display for KillTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, after) = match self {
            Self::Start(after) => ("start", after),
            Self::Steady(after) => ("steady", after),
            Self::Detach(after) => ("detach", after),
        };
        write!(formatter, "{name}+{}us", after.as_micros())
    }
}

impl FromStr for KillTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.strip_suffix("us").and_then(|text| text.split_once('+'));
        let micros = parts.and_then(|(_, micros)| micros.parse().ok()).map(Duration::from_micros);
        match (parts.map(|(name, _)| name), micros) {
            (Some("start"), Some(after)) => Ok(Self::Start(after)),
            (Some("steady"), Some(after)) => Ok(Self::Steady(after)),
            (Some("detach"), Some(after)) => Ok(Self::Detach(after)),
            _ => Err(format!("`{text}` is not of the form `start+1234us`, `steady+…` or `detach+…`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_times_are_parsed_as_printed() {
        for text in ["start+0us", "steady+1234us", "detach+150000us"] {
            assert_eq!(text.parse::<KillTime>().map(|it| it.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "start", "start+1", "begin+1us", "start+xus"] {
            assert!(text.parse::<KillTime>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_existing_cases_are_selected() {
        assert_eq!(Case::all(None, None, Role::Agent).len(), 23);
        assert_eq!(Case::all(Some(Mode::LeaksFork), None, Role::Agent).len(), 1);
        assert_eq!(Case::all(None, Some(Backend::Perf), Role::Agent).len(), 6);
        assert_eq!(Case::all(Some(Mode::LeaksRead), None, Role::Keeper).len(), 0);
        assert_eq!(Case::all(None, None, Role::Symbolizer).len(), 20);
        assert_eq!(Case::all(None, None, Role::Both).len(), 2);
        assert_eq!("perf".parse(), Ok(Backend::Perf));
        assert!("none".parse::<Mode>().is_err_and(|error| error.contains("leaks-fork")));
    }
}
