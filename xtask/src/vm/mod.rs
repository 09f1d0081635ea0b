//! `cargo xtask vm`: heapbpf on kernels that this machine does not run. Boots each in qemu to an init of ours, which
//! profiles targets and sends the reports over a serial line; what they must say is checked here. Installs no kernel.

mod checks;
mod console;
mod initramfs;
mod kernel;
mod looks;
mod qemu;
mod transcript;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::repository::Repository;
use crate::{apt, packages};
use checks::Check;
use kernel::{Kernel, Wanted};
use transcript::Transcript;

/// Runs heapbpf on other kernels, in virtual machines.
///
/// Takes Debian's kernels out of their packages without installing them, boots them in qemu (emulated: no KVM is needed,
/// and none is used), and has heapbpf profile targets whose totals are known to the byte. Builds heapbpf, statically
/// linked, and the targets. Prints a line for each thing checked.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask vm                            Debian's 6.1 and 6.12
  cargo xtask vm --kernel 6.12              one of them
  cargo xtask vm --kernel ./bzImage         a kernel of your own; it needs a serial console and devtmpfs built in
  cargo xtask vm --append preempt=full      with more on the kernel's command line
  HEAPBPF_BPF_OBJECT=target/rebuilt.bpf.o cargo xtask vm       with another BPF object
HEAPBPF_BIN=PATH uses that binary instead of building one.")]
pub(crate) struct Arguments {
    /// Series that Debian has (6.1, 6.12), or the path of a kernel image. May be given several times.
    #[arg(long, value_name = "VERSION|PATH", default_values = ["6.1", "6.12"])]
    kernel: Vec<Wanted>,

    /// Appended to the kernel's command line.
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    append: String,

    /// Keep reports and the console's text where everything is well, too.
    #[arg(long)]
    keep: bool,
}

/// Runs the verb.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    apt::install(&packages::missing(&[packages::VM], packages::Proof::present))?;
    let repository = Repository::find()?;
    let folder = repository.target.join("vm");
    let mut kernels = Vec::new();
    for wanted in &arguments.kernel {
        kernels.push(wanted.get(&folder.join("kernels"))?);
    }
    let initramfs = initramfs::build(&repository, &folder)?;
    let mut failed = 0;
    for kernel in &kernels {
        let results = folder.join("results").join(&kernel.name);
        let checks = try_kernel(kernel, &initramfs, &arguments.append, &results)?;
        let bad = checks.iter().filter(|check| check.outcome.is_err()).count();
        if bad > 0 || arguments.keep {
            println!("  reports and console: {}", results.display());
        } else {
            fs::remove_dir_all(&results).with_context(|| format!("could not remove `{}`", results.display()))?;
        }
        failed += bad;
    }
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

/// Boots one kernel and prints what was found.
fn try_kernel(kernel: &Kernel, initramfs: &Path, append: &str, results: &Path) -> Result<Vec<Check>> {
    if results.exists() {
        fs::remove_dir_all(results).with_context(|| format!("could not remove `{}`", results.display()))?;
    }
    fs::create_dir_all(results).with_context(|| format!("could not make the folder `{}`", results.display()))?;
    println!("{}: booting {}", kernel.name, kernel.image.display());
    let boot = qemu::boot(&kernel.image, initramfs, append, results)?;
    let transcript = Transcript::parse(&boot.data);
    for (name, content) in &transcript.files {
        fs::write(results.join(name), content).with_context(|| format!("could not write the report `{name}`"))?;
    }
    let mut checks = vec![Check {
        name: "the virtual machine ran to its end".to_owned(),
        outcome: match &transcript.broken {
            None => Ok(format!("{} s, kernel {}", boot.seconds, transcript.value("kernel").unwrap_or("unknown"))),
            Some(reason) => {
                Err(format!("{reason}; {}; last on the console: {}", boot.end, console::last(&boot.console)))
            }
        },
    }];
    checks.push(Check {
        name: "no complaint of the kernel".to_owned(),
        outcome: match console::complaint(&boot.console) {
            None => Ok(String::new()),
            Some(line) => Err(format!("`{line}`")),
        },
    });
    checks.extend(checks::judge(&transcript));
    checks.extend(looks::judge(&transcript));
    checks.iter().for_each(|check| println!("{check}"));
    Ok(checks)
}
