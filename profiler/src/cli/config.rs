//! User defaults: `config.toml` and `HEAPBPF_*` variables. They are added to the words of the command line unless it has the
//! option already, so that they are parsed and checked like these words.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ArgMatches;
use clap::parser::ValueSource;
use heapbpf_base::shown::{self, Shown};
use heapbpf_linux::walk::open_trusted;
use toml::{Table, Value};

use super::exit::usage;
use super::terminal::say;
use super::user::{Invoker, invoker};
use crate::reader;

/// Options that may have user defaults, by command. No option is included that selects targets or names a file, because under
/// sudo these would be a user's choices for root.
pub(super) const SETTINGS: [(&str, &[&str]); 5] = [
    (
        "record",
        &[
            "interval",
            "engine",
            "on-overload",
            "interval-max",
            "hold",
            "no-follow-fork",
            "no-inventory",
            "no-types",
            "inventory-max",
            "inventory-stop-max",
            "view",
            "by",
            "threshold",
            "icicle",
            "top",
            "top-by",
            "ignore",
            "hide",
            "trim",
            "strict",
            "quiet",
            "max-memory",
            "max-cpu",
            "max-overhead",
            "callsites-max",
            "unwind",
            "backend",
            "scope",
            "placement",
            "ring-size",
            "live-blocks",
            "unwind-memory",
        ],
    ),
    ("leaks", &["interval", "limit", "snapshot", "trim", "quiet", "ring-size", "live-blocks"]),
    ("convert", &["view", "by", "threshold", "icicle", "top", "top-by", "ignore", "hide", "trim", "strict", "quiet"]),
    ("diff", &["view", "widths", "icicle", "top", "threshold", "ignore", "hide", "strict", "quiet", "fail-above"]),
    ("doctor", &["placement", "json"]),
];

const FILE: &str = "heapbpf/config.toml";
const BYTES_MAX: u64 = 1 << 20;
/// Environment variable with the path of the file; empty for no file.
const PATH_VARIABLE: &str = "HEAPBPF_CONFIG";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    option: &'static str,
    value: String,
    /// Name of the variable or file.
    source: String,
}

/// The words with the user defaults for the command that they name; `None` if there are none. `sources` are for errors.
pub(super) fn with_defaults(
    words: &[OsString],
    matches: &ArgMatches,
    commands: &clap::Command,
) -> Result<Option<(Vec<OsString>, String)>> {
    let (name, matches) = matches.subcommand().map_or((None, matches), |(name, matches)| (Some(name), matches));
    let command = name.map_or(Some(commands), |name| commands.find_subcommand(name));
    let (Some(command), Some(options)) = (command, options(name.unwrap_or("record"))) else { return Ok(None) };
    let settings = settings(name.unwrap_or("record"), options)?;
    let mut added = Vec::new();
    let mut sources: Vec<String> = Vec::new();
    for setting in settings {
        let Some(word) = word(&setting, matches, command)? else { continue };
        added.push(word);
        if !sources.contains(&setting.source) {
            sources.push(setting.source);
        }
    }
    if added.is_empty() {
        return Ok(None);
    }
    let of_command = words.iter().skip(1).position(|word| Some(word.as_os_str()) == name.map(AsRef::as_ref));
    let at = of_command.map_or(1, |at| at + 2);
    let all = words[..at].iter().cloned().chain(added).chain(words[at..].iter().cloned());
    Ok(Some((all.collect(), sources.join(", "))))
}

fn options(command: &str) -> Option<&'static [&'static str]> {
    SETTINGS.iter().find(|(name, _)| *name == command).map(|(_, options)| *options)
}

/// The word for a setting; `None` if the command line has the option, or one that excludes it.
fn word(setting: &Setting, matches: &ArgMatches, command: &clap::Command) -> Result<Option<OsString>> {
    let Setting { option, value, source } = setting;
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(option));
    let argument = argument.with_context(|| format!("internal error: no option `--{option}`; please report it"))?;
    let is_given = |id: &clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let excluding = command.get_arg_conflicts_with(argument);
    if is_given(argument.get_id()) || excluding.iter().any(|other| is_given(other.get_id())) {
        return Ok(None);
    }
    if argument.get_action().takes_values() {
        return Ok(Some(format!("--{option}={value}").into()));
    }
    match value.as_str() {
        "true" | "1" => Ok(Some(format!("--{option}").into())),
        "false" | "0" | "" => Ok(None),
        _ => Err(usage(format!("{source}: invalid value `{value}` for `{option}`: use `true` or `false`"))),
    }
}

/// Reads the settings of a command. Variables take precedence over the file.
fn settings(command: &str, options: &'static [&'static str]) -> Result<Vec<Setting>> {
    let mut settings = from_variables(command, options, std::env::vars_os())?;
    if let Some(path) = path()
        && let Some(text) = read(&path)?
    {
        let of_file = from_file(command, &path, &text)?;
        let known = |setting: &Setting| settings.iter().any(|known| known.option == setting.option);
        let others: Vec<Setting> = of_file.into_iter().filter(|setting| !known(setting)).collect();
        settings.extend(others);
    }
    Ok(settings)
}

/// Name of the variable for an option.
pub(super) fn variable(command: &str, option: &str) -> String {
    format!("HEAPBPF_{command}_{option}").replace('-', "_").to_uppercase()
}

fn from_variables(
    command: &str,
    options: &'static [&'static str],
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<Setting>> {
    let prefix = variable(command, "");
    let mut settings = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| name.starts_with(&prefix)) else { continue };
        let Some(option) = options.iter().find(|option| variable(command, option) == name) else {
            return Err(usage(format!("unknown variable `{name}`; docs/configuration.md lists them")));
        };
        let value = shown::os_text(&value).into_owned();
        settings.push(Setting { option, value, source: format!("variable `{name}`") });
    }
    settings.sort_by_key(|setting| setting.option);
    Ok(settings)
}

fn from_file(command: &str, path: &Path, text: &str) -> Result<Vec<Setting>> {
    let source = format!("`{}`", Shown::of(path));
    let refuse = |reason: String| usage(format!("{source}: {reason}"));
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        refuse(format!("line {line}: {}", error.message()))
    })?;
    let mut settings = Vec::new();
    for (name, values) in &table {
        let Some(options) = options(name) else {
            let known: Vec<String> = SETTINGS.iter().map(|(name, _)| format!("`[{name}]`")).collect();
            return Err(refuse(format!("unknown table `{name}`; use one of {}", known.join(", "))));
        };
        let values = values.as_table().ok_or_else(|| refuse(format!("`{name}` is not a table: write `[{name}]`")))?;
        for (key, value) in values {
            let option = options.iter().copied().find(|option| option == key);
            let option = option.ok_or_else(|| {
                refuse(format!("`{key}` in `[{name}]` cannot be set; docs/configuration.md lists the options that can"))
            })?;
            let value = text_of(value).ok_or_else(|| {
                refuse(format!("invalid value of `{key}` in `[{name}]`: write a text, a number, `true` or `false`"))
            })?;
            if name == command {
                settings.push(Setting { option, value, source: source.clone() });
            }
        }
    }
    Ok(settings)
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(value) => Some(value.to_string()),
        Value::Array(values) => Some(values.iter().map(text_of).collect::<Option<Vec<_>>>()?.join(",")),
        Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// Path of the file. Under sudo, it is the file of the user who called it.
fn path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if std::env::var_os(PATH_VARIABLE).is_some() {
        return variable(PATH_VARIABLE);
    }
    let home = || invoker().map(|Invoker { home, .. }| home).or_else(|| variable("HOME"));
    let folder = variable("XDG_CONFIG_HOME").or_else(|| Some(home()?.join(".config")))?;
    Some(folder.join(FILE)).filter(|path| path.is_absolute())
}

/// Reads the file; `None` if there is none. Refuses a file that other users can write, and anything but a regular file: under
/// `setpriv` or `su`, `HOME` may be the folder of a user who has replaced the file by a link to a device.
fn read(path: &Path) -> Result<Option<String>> {
    let shown = Shown::of(path);
    match reader::reach(None, path) {
        Err(error) if std::env::var_os(PATH_VARIABLE).is_none() => {
            say(&format!("heapbpf: warning: {error}: `{shown}` is not read"));
            return Ok(None);
        }
        reached => reached.with_context(|| format!("cannot read `{shown}`"))?,
    }
    let file = match open_trusted(path) {
        Ok(file) => file,
        Err(_) if std::env::var_os(PATH_VARIABLE).is_none() && !is_visible(path) => return Ok(None),
        Err(error) => bail!("cannot read `{shown}`: {error}"),
    };
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).with_context(|| format!("cannot read `{shown}`"))?;
    Ok(Some(text))
}

/// Whether the file exists, as far as this user can see: under `setpriv`, `HOME` may be another user's folder.
fn is_visible(path: &Path) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    path.symlink_metadata()
        .err()
        .is_none_or(|error| ![NotFound, NotADirectory, PermissionDenied].contains(&error.kind()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use heapbpf_base::testing::check_table;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::super::commands::commands;
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn setting(option: &'static str, value: &str) -> Setting {
        Setting { option, value: value.to_owned(), source: "test".to_owned() }
    }

    #[test]
    fn all_settings_are_options_of_their_commands() {
        let commands = commands();
        for (name, options) in SETTINGS {
            let command = commands.find_subcommand(name).expect(name);
            for option in options {
                let argument = command.get_arguments().find(|argument| argument.get_long() == Some(option));
                let argument = argument.unwrap_or_else(|| panic!("`{name}` has no option `--{option}`"));
                assert!(!matches!(argument.get_action(), clap::ArgAction::Append) || *option == "by", "{option}");
            }
        }
    }

    #[test]
    fn settings_are_documented() {
        let commands = commands();
        let mut table = "| table | key | variable | default |\n|---|---|---|---|\n".to_owned();
        for (name, options) in SETTINGS {
            let command = commands.find_subcommand(name).expect(name);
            for option in options {
                let argument = command.get_arguments().find(|argument| argument.get_long() == Some(option));
                let argument = argument.expect("it is an option");
                let default: Vec<_> =
                    argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
                let default = match default.join(",") {
                    _ if !argument.get_action().takes_values() => "`false`".to_owned(),
                    none if none.is_empty() => String::new(),
                    default => format!("`{default}`"),
                };
                table += &format!("| `[{name}]` | `{option}` | `{}` | {default} |\n", variable(name, option));
            }
        }
        check_table("configuration.md", "table of settings", &table);
    }

    #[test]
    fn the_command_line_takes_precedence() {
        let commands = commands();
        let matches =
            commands.clone().try_get_matches_from(words("heapbpf --pid 1 -i 8KiB --no-inventory")).expect("valid");
        let word = |option, value: &str| word(&setting(option, value), &matches, &commands).expect("a setting");
        assert_eq!(word("interval", "64KiB"), None);
        // It conflicts with `--no-inventory`.
        assert_eq!(word("inventory-max", "1MiB"), None);
        assert_eq!(word("top", "20"), Some("--top=20".into()));
        assert_eq!(word("quiet", "true"), Some("--quiet".into()));
        assert_eq!(word("quiet", "false"), None);
    }

    #[test]
    fn a_file_has_a_table_per_command() {
        let path = Path::new("/c.toml");
        let text = "[record]\ninterval = \"64KiB\"\ntop = 20\nby = [\"thread\", \"heap\"]\n[diff]\nquiet = true\n";
        let read = |command| -> Vec<(&str, String)> {
            let settings = from_file(command, path, text).expect("valid");
            settings.into_iter().map(|setting| (setting.option, setting.value)).collect()
        };
        let expected = [("by", "thread,heap"), ("interval", "64KiB"), ("top", "20")];
        let mut record = read("record");
        record.sort_unstable();
        assert_eq!(record, expected.map(|(option, value)| (option, value.to_owned())));
        assert_eq!(read("diff"), [("quiet", "true".to_owned())]);
        assert_eq!(read("leaks"), []);
    }

    #[test]
    fn mistakes_in_files_name_the_file() {
        for (text, reason) in [
            ("[record]\npid = 3\n", "`pid` in `[record]` cannot be set"),
            ("interval = 3\n", "unknown table `interval`; use one of `[record]`, `[leaks]`"),
            ("[record]\ntop = 1979-05-27\n", "invalid value of `top` in `[record]`"),
            ("[record]\ntop = \n", "line 2: "),
            ("record = 1\n", "write `[record]`"),
        ] {
            let error = from_file("record", Path::new("/c.toml"), text).expect_err(text).to_string();
            assert!(error.starts_with("`/c.toml`: ") && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn only_files_that_nobody_else_can_write_are_read() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("config.toml");
        assert!(read(&path).expect("there is none").is_none());
        fs::write(&path, "[record]\n").expect("ours");
        assert_eq!(read(&path).expect("ours").as_deref(), Some("[record]\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("ours");
        let refused = |reason: &str| {
            let error = read(&path).expect_err(reason).to_string();
            assert!(error.contains(reason) && error.contains("config.toml"), "{error}");
        };
        refused("other users");
        fs::remove_file(&path).expect("ours");
        symlink("/dev/zero", &path).expect("ours");
        refused("not a regular file");
        fs::remove_file(&path).expect("ours");
        // Opening it would wait for a writer.
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("ours");
        refused("not a regular file");
    }

    #[test]
    fn variables_are_named_after_command_and_option() {
        assert_eq!(variable("record", "top-by"), "HEAPBPF_RECORD_TOP_BY");
        let options = options("record").expect("it has settings");
        let read = |name: &str| from_variables("record", options, [(name.into(), "x".into())].into_iter());
        assert_eq!(read("HEAPBPF_RECORD_VIEW").expect("known")[0].option, "view");
        assert_eq!(read("HEAPBPF_BIN").expect("of others").len(), 0);
        assert!(read("HEAPBPF_RECORD_VEIW").is_err());
    }
}
