//! Command `heapbpf open`: opens a report in the user's browser.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use heapbpf_base::shown::{self, Shown};
use heapbpf_report::Format;

use super::exit::{self, usage};
use super::report_args::OpenArgs;
use super::terminal::{print, say};
use super::user::{Invoker, invoker};

/// Program of freedesktop.org that opens a file with the program that the user prefers.
const OPENER: &str = "xdg-open";

pub(super) fn run(args: &OpenArgs) -> Result<u8> {
    let path =
        std::fs::canonicalize(&args.report).with_context(|| format!("cannot read `{}`", Shown::of(&args.report)))?;
    check(&path)?;
    let invoker = invoker();
    let reason = match environment(invoker.as_ref()) {
        None => "there is no graphical session".to_owned(),
        Some(variables) => match start(&path, &variables, invoker.as_ref()) {
            Ok(()) => return Ok(exit::DONE),
            Err(error) => format!("{error:#}"),
        },
    };
    say(&format!("heapbpf: cannot open a browser: {reason}; open this file in one:"));
    print(&shown::os_text(&path), false)?;
    Ok(exit::DONE)
}

fn check(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!("cannot open `{}`: it is a directory; name a report in it", Shown::of(path));
    }
    match Format::of_path(path) {
        Ok(Format::Html | Format::Flamegraph) => Ok(()),
        _ => Err(usage(format!(
            "`{0}` is not a page: browsers open `.html` and `.svg`; `heapbpf convert {0} -o heap.html` writes one from a recording or a JSON report",
            Shown::of(path)
        ))),
    }
}

type Variables = Vec<(&'static str, OsString)>;

/// Variables by which the browser finds the user's session: sudo removes them. `None` without a graphical session.
fn environment(invoker: Option<&Invoker>) -> Option<Variables> {
    let variable = |name: &'static str| Some((name, std::env::var_os(name).filter(|value| !value.is_empty())?));
    let mut variables: Variables = ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].into_iter().filter_map(variable).collect();
    if let Some(Invoker { uid, home, .. }) = invoker {
        let folder = PathBuf::from(format!("/run/user/{uid}"));
        let has_wayland = variables.iter().any(|(name, _)| *name == "WAYLAND_DISPLAY");
        if !has_wayland && folder.join("wayland-0").exists() {
            variables.push(("WAYLAND_DISPLAY", "wayland-0".into()));
        }
        if folder.join("bus").exists() {
            variables.push(("DBUS_SESSION_BUS_ADDRESS", format!("unix:path=/run/user/{uid}/bus").into()));
        }
        variables.push(("XDG_RUNTIME_DIR", folder.into()));
        variables.push(("HOME", home.into()));
    }
    let is_graphical = |(name, _): &(&str, OsString)| ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].contains(name);
    variables.iter().any(is_graphical).then_some(variables)
}

/// Starts the browser, never as root where sudo was called: a browser must not run with root's privileges.
fn start(path: &Path, variables: &Variables, invoker: Option<&Invoker>) -> Result<()> {
    let mut command = Command::new(OPENER);
    command.arg(path).envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    if let Some(Invoker { uid, gid, .. }) = invoker {
        command.uid(*uid).gid(*gid);
    }
    let status = command.status().with_context(|| format!("cannot start `{OPENER}`"))?;
    if status.success() { Ok(()) } else { Err(anyhow!("`{OPENER}` failed: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_are_opened() {
        for path in ["heap.html", "a/heap.SVG"] {
            assert!(check(Path::new(path)).is_ok(), "{path}");
        }
        for path in ["heap.json", "x.heapbpf", "heap", "heap.pb.gz"] {
            let error = check(Path::new(path)).expect_err(path).to_string();
            assert!(error.contains("heapbpf convert"), "{error}");
        }
    }
}
