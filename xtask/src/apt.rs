//! Installs Debian packages, as root or through sudo. Says what it installs, and installs nothing that is there.

use anyhow::{Result, bail};

use crate::command;
use crate::packages::Package;
use crate::privilege::Privilege;

/// Run by `sh` as root, with the packages as arguments.
///
/// A server's package starts the server when it is installed. `policy-rc.d` is Debian's way to forbid that; where the
/// machine has one of its own, that one decides.
const INSTALL: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
apt-get install --quiet --yes --no-install-recommends "$@"
"#;

/// Installs `packages`; nothing to do where there are none.
pub(crate) fn install(packages: &[&Package]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    if command::find("apt-get").is_none() {
        bail!("this machine has no apt-get; install by its own means:\n{}", list(packages));
    }
    let Some(mut shell) = Privilege::find().command("sh") else {
        bail!(
            "installing takes root, or sudo without a password or at a terminal; missing are:\n{}\nrun as root: \
             apt-get install --no-install-recommends {}",
            list(packages),
            names(packages)
        );
    };
    eprintln!("installing Debian packages:\n{}", list(packages));
    let status = shell.args(["-euc", INSTALL, "sh"]).args(packages.iter().map(|package| package.name)).status()?;
    if !status.success() {
        bail!("apt-get could not install these packages: {status}");
    }
    let still: Vec<_> = packages.iter().copied().filter(|package| !package.proof.present()).collect();
    if !still.is_empty() {
        bail!("apt-get ran, and yet these are missing:\n{}", list(&still));
    }
    Ok(())
}

/// One line per package.
pub(crate) fn list(packages: &[&Package]) -> String {
    let lines = packages
        .iter()
        .map(|package| format!("  {:<14} {} (`{}`)", package.name, package.purpose, package.proof.subject()));
    lines.collect::<Vec<_>>().join("\n")
}

/// The packages' names as arguments of `apt-get install`.
pub(crate) fn names(packages: &[&Package]) -> String {
    packages.iter().map(|package| package.name).collect::<Vec<_>>().join(" ")
}
