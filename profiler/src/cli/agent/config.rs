//! Configuration of the agent: a TOML file, which is checked completely before it takes effect.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytesize::ByteSize;
use clap::Parser;
use clap::error::ErrorKind;
use heapbpf_base::shown::{self, Shown};
use heapbpf_linux::walk::open_trusted;
use profiler_common::interval::Interval;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::{Spanned, Value};

use super::super::exit::usage;
use super::super::values;
use super::super::views::ViewArgs;
use crate::process::cgroup::Cgroup;
use crate::process::pattern::Pattern;
use crate::session::Engine;

/// The default configuration, with comments, which `--print-config` prints.
pub(super) const DEFAULT: &str = include_str!("default.toml");

const BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Config {
    /// While this file exists, nothing is recorded.
    pub(super) stop_file: PathBuf,
    pub(super) select: Select,
    pub(super) record: Record,
    pub(super) rule: Vec<Rule>,
    pub(super) budget: Budget,
    pub(super) duty: Duty,
    serve: Options,
    push: Options,
}

/// The options of a view, as they are written.
type Options = BTreeMap<String, Spanned<Value>>;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Select {
    #[serde(deserialize_with = "parsed_list")]
    pub(super) commands: Vec<Pattern>,
    #[serde(deserialize_with = "parsed_list")]
    pub(super) cgroups: Vec<Cgroup>,
    #[serde(deserialize_with = "parsed_list")]
    pub(super) exclude: Vec<Pattern>,
    #[serde(deserialize_with = "size")]
    pub(super) min_rss: u64,
    #[serde(deserialize_with = "time")]
    pub(super) min_age: Duration,
    #[serde(deserialize_with = "time")]
    pub(super) scan_every: Duration,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Record {
    #[serde(deserialize_with = "interval")]
    pub(super) interval: Interval,
    #[serde(deserialize_with = "engine")]
    pub(super) engine: Engine,
    pub(super) follow_forks: bool,
}

/// How some of the selected processes are recorded. The first rule that matches a process decides.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Rule {
    #[serde(default, deserialize_with = "parsed_list")]
    pub(super) commands: Vec<Pattern>,
    #[serde(default, deserialize_with = "parsed_list")]
    pub(super) cgroups: Vec<Cgroup>,
    #[serde(deserialize_with = "rule_engine")]
    pub(super) engine: Option<Engine>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Budget {
    /// Maximum share of each process's CPU time while it is recorded.
    #[serde(deserialize_with = "percent")]
    pub(super) max_overhead: f64,
    /// Maximum share of one core, on average over a period.
    #[serde(deserialize_with = "percent")]
    pub(super) max_cpu: f64,
    #[serde(deserialize_with = "size")]
    pub(super) max_memory: u64,
    /// Engine by which processes beyond their limit are recorded from then on; `None` to skip them.
    #[serde(deserialize_with = "rule_engine")]
    pub(super) hot: Option<Engine>,
    #[serde(deserialize_with = "time")]
    pub(super) retry_after: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Duty {
    #[serde(deserialize_with = "time")]
    pub(super) record: Duration,
    #[serde(deserialize_with = "time")]
    pub(super) every: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            stop_file: "/etc/heapbpf/agent.stop".into(),
            select: Select::default(),
            record: Record::default(),
            rule: Vec::new(),
            budget: Budget::default(),
            duty: Duty::default(),
            serve: Options::new(),
            push: Options::new(),
        }
    }
}

impl Default for Select {
    fn default() -> Self {
        Self {
            commands: Vec::new(),
            cgroups: Vec::new(),
            exclude: Vec::new(),
            min_rss: 0,
            min_age: Duration::from_secs(5),
            scan_every: Duration::from_secs(10),
        }
    }
}

impl Default for Record {
    fn default() -> Self {
        Self { interval: Interval::nearest(512 << 10), engine: Engine::Inline, follow_forks: false }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            max_overhead: 5.0,
            max_cpu: 1.0,
            max_memory: 192 << 20,
            hot: None,
            retry_after: Duration::from_secs(3600),
        }
    }
}

impl Default for Duty {
    fn default() -> Self {
        Self { record: Duration::from_secs(60), every: Duration::from_secs(600) }
    }
}

/// Sections of views, and the option that a section's first key stands for.
const VIEWS: [(&str, &str, &str); 2] = [("serve", "address", "serve"), ("push", "url", "push")];

/// A key of a section of views, its position in the file, and the words that it stands for.
struct ViewKey<'a> {
    section: &'static str,
    key: &'a str,
    at: usize,
    words: Vec<String>,
}

/// Parser of the options of views only.
#[derive(Parser)]
struct ViewWords {
    #[command(flatten)]
    views: ViewArgs,
}

impl Config {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = Shown::of(path);
        let read = || -> std::io::Result<String> {
            use std::io::Read;
            let mut text = String::new();
            open_trusted(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                anyhow!("cannot read `{shown}`: {error}: write one with `heapbpf agent --print-config > {shown}`")
            }
            _ => anyhow!("cannot read `{shown}`: {error}"),
        })?;
        Self::parse(&shown.to_string(), &text)
    }

    /// Parses a configuration. `name` is the file's, for errors.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self> {
        let line = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line(span.start));
            usage(format!("{name}:{line}: {}; `heapbpf agent --print-config` explains all keys", error.message()))
        })?;
        config.check().map_err(|error| usage(format!("{name}: {error:#}")))?;
        if let Err(error) = config.views() {
            return Err(usage(match config.mistake_in_views()? {
                Some((ViewKey { section, key, at, .. }, reason)) => {
                    format!("{name}:{}: `{key}` in `[{section}]`: {reason}", line(at))
                }
                None => format!("{name}: {error:#}"),
            }));
        }
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let Duty { record, every } = self.duty;
        if record < Duration::from_secs(1) {
            bail!("`record` in `[duty]` must be at least 1s");
        }
        if every < record {
            bail!(
                "`every` in `[duty]` must be at least `record`: `record = \"1m\"`, `every = \"10m\"` is a tenth of the time"
            );
        }
        if self.select.min_age < Duration::from_secs(1) || self.select.scan_every < Duration::from_secs(1) {
            bail!("`min-age` and `scan-every` in `[select]` must be at least 1s");
        }
        if let Some(rule) = self.rule.iter().position(|rule| rule.commands.is_empty() && rule.cgroups.is_empty()) {
            bail!("rule {} matches nothing: `[[rule]]` takes `commands`, `cgroups` or both", rule + 1);
        }
        Ok(())
    }

    /// All keys of the sections of views.
    fn view_keys(&self) -> Result<Vec<ViewKey<'_>>> {
        let mut all = Vec::new();
        for ((section, first, option), options) in VIEWS.into_iter().zip([&self.serve, &self.push]) {
            for (key, value) in options {
                let option = if key == first { option.to_owned() } else { option_name(section, key) };
                let words = words(&option, value.get_ref()).with_context(|| {
                    format!("`{key}` in `[{section}]` is neither a text, a number, `true` nor a list")
                })?;
                all.push(ViewKey { section, key, at: value.span().start, words });
            }
        }
        Ok(all)
    }

    /// The first key of a view that is wrong by itself, and the reason.
    fn mistake_in_views(&self) -> Result<Option<(ViewKey<'_>, String)>> {
        for key in self.view_keys()? {
            // Some options require others.
            match parse_views(&key.words) {
                Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => {
                    return Ok(Some((key, reason(&error))));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    pub(super) fn views(&self) -> Result<ViewArgs> {
        let words: Vec<String> = self.view_keys()?.into_iter().flat_map(|key| key.words).collect();
        parse_views(&words).map_err(|error| usage(reason(&error)))
    }

    /// Text of the configuration as a file without comments.
    pub(super) fn text(&self) -> String {
        let Self { stop_file, select, record, rule, budget, duty, serve, push } = self;
        let mut text = format!("stop-file = {}\n\n", quoted(shown::os_text(stop_file)));
        let _ = write!(
            text,
            "[select]\ncommands = {}\ncgroups = {}\nexclude = {}\nmin-rss = {}\nmin-age = {}\nscan-every = {}\n\n",
            list(&select.commands),
            list(&select.cgroups),
            list(&select.exclude),
            quoted(select.min_rss),
            quoted(period(select.min_age)),
            quoted(period(select.scan_every)),
        );
        let interval = ByteSize(record.interval.bytes().into()).to_string().replace(' ', "");
        let interval = values::interval(&interval)
            .ok()
            .filter(|read| *read == record.interval)
            .map_or_else(|| record.interval.bytes().to_string(), |_| interval.clone());
        let _ = write!(
            text,
            "[record]\ninterval = {}\nengine = {}\nfollow-forks = {}\n\n",
            quoted(interval),
            quoted(engine_name(Some(record.engine))),
            record.follow_forks,
        );
        for rule in rule {
            let (commands, cgroups) = (list(&rule.commands), list(&rule.cgroups));
            let engine = quoted(engine_name(rule.engine));
            let _ = write!(text, "[[rule]]\ncommands = {commands}\ncgroups = {cgroups}\nengine = {engine}\n\n");
        }
        let _ = write!(
            text,
            "[budget]\nmax-overhead = {}\nmax-cpu = {}\nmax-memory = {}\nhot = {}\nretry-after = {}\n\n\
             [duty]\nrecord = {}\nevery = {}\n",
            quoted(format_args!("{}%", budget.max_overhead)),
            quoted(format_args!("{}%", budget.max_cpu)),
            quoted(budget.max_memory),
            quoted(engine_name(budget.hot)),
            quoted(period(budget.retry_after)),
            quoted(period(duty.record)),
            quoted(period(duty.every)),
        );
        for (section, options) in [("serve", serve), ("push", push)] {
            if !options.is_empty() {
                let _ = write!(text, "\n[{section}]\n");
            }
            for (key, value) in options {
                let _ = writeln!(text, "{key} = {}", value.get_ref());
            }
        }
        text
    }
}

fn parse_views(words: &[String]) -> Result<ViewArgs, clap::Error> {
    ViewWords::try_parse_from(std::iter::once("heapbpf").chain(words.iter().map(String::as_str)))
        .map(|parsed| parsed.views)
}

/// Text of an error without the usage of a command line.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    format!("{}; see `heapbpf record --help`", lines.join(" ").trim_start_matches("error: "))
}

/// Name of the option of a key: `every` in `[push]` is `--push-every`; `tls-cert` in `[serve]` is `--tls-cert`.
fn option_name(section: &str, key: &str) -> String {
    let long = format!("{section}-{key}");
    let command = <ViewWords as clap::CommandFactory>::command();
    let is_known = command.get_arguments().any(|argument| argument.get_long() == Some(&long));
    if is_known { long } else { key.to_owned() }
}

/// Words of an option with a value; `None` for values that no option has.
fn words(option: &str, value: &Value) -> Option<Vec<String>> {
    let word = |value: &dyn std::fmt::Display| vec![format!("--{option}={value}")];
    Some(match value {
        Value::String(text) => word(text),
        Value::Integer(number) => word(number),
        Value::Float(number) => word(number),
        Value::Boolean(true) => vec![format!("--{option}")],
        Value::Boolean(false) => Vec::new(),
        Value::Array(values) => values.iter().map(|value| words(option, value)).collect::<Option<Vec<_>>>()?.concat(),
        Value::Datetime(_) | Value::Table(_) => return None,
    })
}

const ENGINES: [(&str, Option<Engine>); 3] =
    [("trap", Some(Engine::Trap)), ("inline", Some(Engine::Inline)), ("skip", None)];

fn engine_name(engine: Option<Engine>) -> &'static str {
    ENGINES.iter().find(|(_, known)| *known == engine).map_or("skip", |(name, _)| name)
}

fn quoted(value: impl std::fmt::Display) -> String {
    Value::String(value.to_string()).to_string()
}

fn list(values: &[impl std::fmt::Display]) -> String {
    format!("[{}]", values.iter().map(quoted).collect::<Vec<_>>().join(", "))
}

fn period(time: Duration) -> String {
    let seconds = time.as_secs();
    match time.subsec_millis() {
        0 if seconds > 0 && seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        0 if seconds > 0 && seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        0 => format!("{seconds}s"),
        _ => format!("{}ms", time.as_millis()),
    }
}

/// A word in the configuration: a text, or a number without a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Integer(i64),
    Float(f64),
}

fn parsed<'de, D: Deserializer<'de>, T>(from: D, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, D::Error> {
    let text = match Word::deserialize(from).map_err(|_| D::Error::custom("write a text or a number"))? {
        Word::Text(text) => text,
        Word::Integer(number) => number.to_string(),
        Word::Float(number) => number.to_string(),
    };
    parse(&text).map_err(|reason| D::Error::custom(format!("invalid value `{text}`: {reason}")))
}

fn parsed_list<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(from: D) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    parsed(from, values::size)
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    parsed(from, values::offset)
}

fn percent<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    parsed(from, values::percent)
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Interval, D::Error> {
    parsed(from, values::interval)
}

fn rule_engine<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Engine>, D::Error> {
    parsed(from, |text| {
        let known = ENGINES.iter().find(|(name, _)| *name == text);
        known.map(|(_, engine)| *engine).ok_or_else(|| "write `trap`, `inline` or `skip`".to_owned())
    })
}

fn engine<'de, D: Deserializer<'de>>(from: D) -> Result<Engine, D::Error> {
    parsed(from, |text| match text {
        "trap" => Ok(Engine::Trap),
        "inline" => Ok(Engine::Inline),
        _ => Err("write `trap` or `inline`".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commented_defaults_are_the_defaults() {
        assert_eq!(Config::parse("default.toml", DEFAULT).expect("valid"), Config::default());
    }

    #[test]
    fn the_effective_configuration_is_a_configuration() {
        let text = "[select]\ncommands = [\"redis*\", \"a \\\" b\"]\ncgroups = [\"/system.slice\"]\nmin-rss = 7\n\
                    min-age = \"1500ms\"\n[record]\ninterval = 4097\nengine = \"inline\"\n[[rule]]\ncommands = [\"x\"]\nengine = \"skip\"\n\
                    [budget]\nmax-cpu = 0.5\nhot = \"inline\"\n[duty]\nrecord = 1\nevery = \"1h30m\"\n";
        for config in [Config::default(), Config::parse("a", text).expect("valid")] {
            let printed = config.text();
            assert_eq!(Config::parse("b", &printed).expect(&printed), config, "{printed}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        for (text, expected) in [
            ("[select]\nmin-rss = \"many\"\n", "a.toml:2: invalid value `many`: not a size"),
            ("\n[selects]\n", "a.toml:2: unknown field `selects`"),
            ("[duty]\n\nperiod = 3\n", "a.toml:3: unknown field `period`"),
            ("[duty]\nrecord = \"2m\"\nevery = \"1m\"\n", "a.toml: `every` in `[duty]` must be at least `record`"),
            ("[duty]\nrecord = \"10ms\"\n", "a.toml: `record` in `[duty]` must be at least 1s"),
            ("[record]\nengine = \"fast\"\n", "a.toml:2: invalid value `fast`: write `trap` or `inline`"),
            ("[budget]\nhot = \"hotter\"\n", "a.toml:2: invalid value `hotter`: write `trap`, `inline` or `skip`"),
            ("[budget]\nmax-cpu = \"0%\"\n", "a.toml:2: invalid value `0%`: not a percentage above 0"),
            ("[select]\nexclude = [\"\"]\n", "a.toml:2: the pattern `` is empty"),
            ("[select]\ncgroups = [\"x y\"]\n", "a.toml:2: the control group `x y` is neither"),
            ("[[rule]]\nengine = \"trap\"\n", "a.toml: rule 1 matches nothing"),
            ("[[rule]]\ncommands = [\"a\"]\n", "a.toml:1: missing field `engine`"),
            ("[select\n", "a.toml:1: "),
            ("[serve]\nnothing = true\n", "a.toml:2: `nothing` in `[serve]`: unexpected argument '--nothing'"),
            ("[push]\nevery = 1979-05-27\n", "`every` in `[push]` is neither a text"),
        ] {
            let error = format!("{:#}", Config::parse("a.toml", text).expect_err(text));
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
