//! `cargo xtask vm`: heapbpf on kernels that this machine does not run. Boots each in qemu to an init of ours, which
//! profiles targets and sends the reports over a serial line; what they must say is checked here. Installs no kernel.

mod archive;
mod checks;
mod console;
mod faults;
mod initramfs;
mod kernel;
mod looks;
mod preemption;
mod qemu;
mod transcript;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::packages;
use crate::repository::Repository;
use checks::Check;
use kernel::{Kernel, Wanted};
use preemption::{Choice, Preemption};
use transcript::Transcript;

/// Runs heapbpf on other kernels, in virtual machines.
///
/// Takes Debian's kernels out of their packages without installing them, boots them in qemu (emulated: no KVM is needed,
/// and none is used), and has heapbpf profile targets whose totals are known to the byte. Builds heapbpf, statically
/// linked, and the targets. Prints a line for each thing checked. A series is searched in all Debian suites, by the
/// mirror that this machine's apt uses.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask vm                            6.1, 6.12 and 7.3
  cargo xtask vm --kernel 6.12              one of them
  cargo xtask vm --kernel ./bzImage         a kernel of your own; it needs a serial console and devtmpfs built in
  cargo xtask vm --kernel 7.2 --preempt all        once in each preemption mode
  cargo xtask vm --kernel 7.2 --preempt full --boots 3 --soak 60
                                            three boots, each with 8 and 64 threads at work for 60 s
  cargo xtask vm --append nosmt             with more on the kernel's command line
  HEAPBPF_BPF_OBJECT=target/rebuilt.bpf.o cargo xtask vm       with another BPF object
HEAPBPF_BIN=PATH uses that binary instead of building one.")]
pub(crate) struct Arguments {
    /// Series of Debian kernels (5.10, 6.1, 7.2), or the path of a kernel image. May be given several times.
    #[arg(long, value_name = "VERSION|PATH", default_values = ["6.1", "6.12", "7.3"])]
    kernel: Vec<Wanted>,

    /// Preemption mode to boot with; `all` boots once in each. Without it, the kernel's own default. May be given several
    /// times.
    #[arg(long, value_name = "MODE")]
    preempt: Vec<Choice>,

    /// Number of boots of each kernel in each preemption mode.
    #[arg(long, value_name = "N", default_value_t = 1)]
    boots: u32,

    /// Also record 8 and then 64 threads that allocate for this many seconds, at an interval of 1 byte.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true)]
    soak: u32,

    /// Appended to the kernel's command line.
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    append: String,

    /// Keep reports and the console's text where everything is well, too.
    #[arg(long)]
    keep: bool,
}

/// Runs the verb.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    packages::install(&[packages::VM])?;
    let repository = Repository::find()?;
    let folder = repository.target.join("vm");
    let mut kernels = Vec::new();
    for wanted in &arguments.kernel {
        kernels.push(wanted.get(&folder.join("kernels"))?);
    }
    let initramfs = initramfs::build(&repository, &folder)?;
    let mut failed = 0;
    for kernel in &kernels {
        for preemption in Preemption::of(&arguments.preempt) {
            for number in 1..=arguments.boots {
                let run = Run { kernel, preemption, number, soak_seconds: arguments.soak, append: &arguments.append };
                failed += run.try_it(&initramfs, &folder.join("results"), arguments.keep)?;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

/// Boots of one run, where the emulation is at fault: see [`console::emulation_fault`].
const BOOTS_MAX: u32 = 3;

/// One boot.
struct Run<'a> {
    kernel: &'a Kernel,
    preemption: Option<Preemption>,
    /// From 1.
    number: u32,
    soak_seconds: u32,
    append: &'a str,
}

impl Run<'_> {
    /// Boots, prints the checks, and returns how many failed.
    fn try_it(&self, initramfs: &Path, folder: &Path, keep: bool) -> Result<usize> {
        let name = self.name();
        let results = folder.join(&name);
        let mut boots = 0;
        let boot = loop {
            if results.exists() {
                fs::remove_dir_all(&results).with_context(|| format!("cannot remove `{}`", results.display()))?;
            }
            fs::create_dir_all(&results)
                .with_context(|| format!("cannot create the folder `{}`", results.display()))?;
            println!("{name}: booting {}", self.kernel.image.display());
            let boot = qemu::boot(&self.kernel.image, initramfs, &self.kernel_arguments(), self.patience(), &results)?;
            boots += 1;
            match console::emulation_fault(&boot.console) {
                Some(line) if boots < BOOTS_MAX => println!("  booting again: a fault of the emulation, `{line}`"),
                _ => break boot,
            }
        };
        let transcript = Transcript::parse(&boot.data);
        for (name, content) in &transcript.files {
            fs::write(results.join(name), content).with_context(|| format!("cannot write the report `{name}`"))?;
        }
        let checks = self.judge(&boot, &transcript);
        checks.iter().for_each(|check| println!("{check}"));
        let failed = checks.iter().filter(|check| check.outcome.is_err()).count();
        println!("  {} checks, {failed} failed", checks.len());
        if failed > 0 || keep {
            println!("  reports and console: {}", results.display());
        } else {
            fs::remove_dir_all(&results).with_context(|| format!("cannot remove `{}`", results.display()))?;
        }
        Ok(failed)
    }

    fn judge(&self, boot: &qemu::Boot, transcript: &Transcript) -> Vec<Check> {
        let mut checks = vec![
            Check {
                name: "the virtual machine ran to its end".to_owned(),
                outcome: match &transcript.broken {
                    None => {
                        Ok(format!("{} s, kernel {}", boot.seconds, transcript.value("kernel").unwrap_or("unknown")))
                    }
                    Some(reason) => {
                        Err(format!("{reason}; {}; last on the console: {}", boot.end, console::last(&boot.console)))
                    }
                },
            },
            Check {
                name: "no complaint of the kernel".to_owned(),
                outcome: match console::complaint(&boot.console) {
                    None => Ok(String::new()),
                    Some(line) => Err(format!("`{line}`")),
                },
            },
        ];
        if let Some(preemption) = self.preemption {
            checks.push(preemption.judge(transcript.value("preempt")));
        }
        checks.extend(checks::judge(transcript));
        checks.extend(faults::judge(transcript));
        checks.extend(looks::judge(transcript));
        checks
    }

    /// Also the folder of its results.
    fn name(&self) -> String {
        let preemption = self.preemption.map_or_else(String::new, |preemption| format!("-{}", preemption.mode()));
        format!("{}{preemption}-{}", self.kernel.name, self.number)
    }

    fn kernel_arguments(&self) -> String {
        let mut words = vec![self.append.to_owned()];
        words.extend(self.preemption.map(|preemption| format!("preempt={}", preemption.mode())));
        if self.soak_seconds > 0 {
            words.push(format!("heapbpf.soak={}", self.soak_seconds));
        }
        words.join(" ").trim().to_owned()
    }

    /// Emulated, a run without soak takes half a minute to three minutes on an otherwise idle machine. Only a hang takes
    /// this long.
    fn patience(&self) -> Duration {
        Duration::from_mins(10) + 4 * Duration::from_secs(self.soak_seconds.into())
    }
}
