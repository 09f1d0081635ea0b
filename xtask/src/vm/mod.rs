//! `cargo xtask vm`: boots other kernels in qemu with `init.sh`, which profiles targets, and checks its reports.

mod files;
mod kernel;
mod languages;
mod machine;
pub(crate) mod matrix;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use heapbpf_tests::vm::{self, Check, Feature, Transcript};

use crate::architecture::Architecture;
use crate::command::{self, Repository};
use crate::packages;
use kernel::{Kernel, Wanted};
use machine::Machine;
use matrix::Results;

/// Runs heapbpf on other kernels, in virtual machines.
///
/// Extracts Debian's kernels from their packages without installing them, boots them in qemu (emulated, without KVM), and
/// profiles targets whose totals are known exactly. Builds heapbpf, statically linked, and the targets. Prints a line for each
/// check. A series is searched in all Debian suites, on the mirror of this machine's apt.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask vm                            6.1, 6.12 and 7.3
  cargo xtask vm --kernel 6.12              one of them
  cargo xtask vm --all                      every kernel of docs/kernel-support.md, and renew its tables
  cargo xtask vm --arch aarch64 --kernel 6.12      the same, for arm64
  cargo xtask vm --arch aarch64 --kernel 6.12 --compare-stacks     also unwind its stacks with framehop
  cargo xtask vm --arch aarch64 --kernel 6.12 --languages     also run the tests of Java and JavaScript
  cargo xtask vm --kernel ./bzImage         another kernel; it needs a serial console and devtmpfs built in
  cargo xtask vm --kernel 7.2 --preempt all        once in each preemption mode
  cargo xtask vm --kernel 7.2 --preempt full --boots 3 --soak 60
                                            three boots, each with 8 and 64 busy threads for 60 s
  cargo xtask vm --append nosmt             with further arguments of the kernel
  HEAPBPF_BPF_OBJECT=target/rebuilt-x86_64.bpf.o cargo xtask vm       with another BPF object
HEAPBPF_BIN=PATH uses that binary instead of building one.")]
pub(crate) struct Arguments {
    /// Processor of the machines. heapbpf and the targets are cross-compiled for another one than this machine's.
    #[arg(long, value_enum, default_value_t = Architecture::HOST)]
    arch: Architecture,

    /// Series of Debian kernels (5.10, 6.1, 7.2), or the path of a kernel image. May be given several times.
    #[arg(long, value_name = "VERSION|PATH", default_values = ["6.1", "6.12", "7.3"])]
    kernel: Vec<Wanted>,

    /// All series of the tables in docs/kernel-support.md that Debian has, with `--record`.
    #[arg(long, conflicts_with_all = ["kernel", "preempt", "append"])]
    all: bool,

    /// Store the results in docs/kernel-support.json, and renew the tables in docs/kernel-support.md. Results of other kernels, and
    /// those with other arguments of the kernel, stay.
    #[arg(long)]
    record: bool,

    /// Only renew the tables from the stored results.
    #[arg(long, exclusive = true)]
    tables: bool,

    /// Also compare 10,500 stacks of python3, perl and sqlite3 with those that framehop finds; on another processor than this
    /// machine's, whose integration tests do so.
    #[arg(long)]
    compare_stacks: bool,

    /// Also run integration tests of Java and JavaScript, with three and four versions of their virtual machines; on another processor than
    /// this machine's, whose integration tests do so. Downloads 350 MB, and needs `javac` and `npm`. Takes half an hour, and
    /// 6 GiB of memory.
    #[arg(long)]
    languages: bool,

    /// Preemption mode to boot with; `all` boots once in each. May be given several times. Default: that of the kernel.
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

    /// Keep reports and the console's text also when all checks pass.
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.tables {
        return matrix::renew(&Repository::find()?.root);
    }
    packages::install(match arguments.arch {
        Architecture::X86_64 => packages::VM_X86_64,
        Architecture::Aarch64 => packages::VM_AARCH64,
    })?;
    let repository = Repository::find()?;
    let folder = repository.target.join("vm");
    let architecture = arguments.arch;
    let kernels = kernels(arguments, &folder.join("kernels"))?;
    ensure!(
        !arguments.compare_stacks || !architecture.is_host(),
        "`--compare-stacks` is for other processors: on {}, `cargo xtask test` compares stacks",
        architecture.name()
    );
    ensure!(
        !arguments.languages || !architecture.is_host(),
        "`--languages` is for other processors: on {}, `cargo xtask test` tests them",
        architecture.name()
    );
    let (compares, has_languages) = (arguments.compare_stacks, arguments.languages);
    let initramfs = files::initramfs(&repository, architecture, compares, has_languages, &folder)?;
    let mut failed = 0;
    for (kernel, condition) in &kernels {
        for preemption in Preemption::of(&arguments.preempt) {
            for number in 1..=arguments.boots {
                let run = Run { arguments, kernel, condition, preemption, number };
                let (results, failed_here) = run.check(&initramfs, &folder.join("results"))?;
                failed += failed_here;
                if arguments.all || arguments.record {
                    matrix::record(&repository.root, architecture, results)?;
                }
            }
        }
    }
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

/// Series in the tables of docs/kernel-support.md. 7 is the newest of 7.x.
const ALL: [&str; 7] = ["5.10", "6.1", "6.12", "6.17", "6.18", "7.0", "7"];

/// Further ones that one processor has.
const LARGE_PAGES: [&str; 1] = ["6.12-16k"];

/// Further boots for the tables, with other arguments of the kernel.
const CONDITIONS: [(&str, &str); 2] = [("6.12", "lockdown=integrity"), ("6.12", "lockdown=confidentiality")];

/// Kernels, and arguments for them. With `--all`, series that Debian does not have are left out.
fn kernels(arguments: &Arguments, folder: &Path) -> Result<Vec<(Kernel, &'static str)>> {
    if !arguments.all {
        return arguments.kernel.iter().map(|wanted| Ok((wanted.get(arguments.arch, folder)?, ""))).collect();
    }
    let mut kernels = Vec::new();
    let large = LARGE_PAGES.into_iter().filter(|_| arguments.arch == Architecture::Aarch64);
    for (series, condition) in ALL.into_iter().chain(large).map(|series| (series, "")).chain(CONDITIONS) {
        match Wanted::Series(series.to_owned()).get(arguments.arch, folder) {
            Ok(kernel) => kernels.push((kernel, condition)),
            Err(error) => println!("{series}: left out: {error:#}"),
        }
    }
    Ok(kernels)
}

/// Maximum number of boots of one run, where the emulation fails: see [`machine::emulation_fault`].
const BOOTS_MAX: u32 = 3;

struct Run<'a> {
    arguments: &'a Arguments,
    kernel: &'a Kernel,
    /// Arguments for the kernel.
    condition: &'a str,
    preemption: Option<Preemption>,
    /// From 1.
    number: u32,
}

impl Run<'_> {
    /// Boots, prints the checks, and returns the results and how many failed.
    fn check(&self, initramfs: &Path, folder: &Path) -> Result<(Results, usize)> {
        let name = self.name();
        let results = folder.join(&name);
        let machine = Machine {
            architecture: self.arguments.arch,
            image: &self.kernel.image,
            initramfs,
            append: &self.kernel_arguments(),
            memory: if self.arguments.languages { machine::LARGE_MEMORY } else { machine::MEMORY },
        };
        let mut boots = 0;
        let boot = loop {
            command::empty_folder(&results)?;
            println!("{name}: booting {}", self.kernel.image.display());
            let boot = machine::boot(&machine, self.time_limit(), &results)?;
            boots += 1;
            match machine::emulation_fault(&boot.console) {
                Some(line) if boots < BOOTS_MAX => println!("  booting again: an error of the emulation, `{line}`"),
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
        if failed > 0 || self.arguments.keep {
            println!("  reports and console: {}", results.display());
        } else {
            fs::remove_dir_all(&results).with_context(|| format!("cannot remove `{}`", results.display()))?;
        }
        Ok((Results::new(&self.kernel.source, &self.kernel_arguments(), &transcript, &checks), failed))
    }

    fn judge(&self, ended: &machine::Boot, transcript: &Transcript) -> Vec<Check> {
        let boot = |name, outcome| Check::new(Feature::Boot, name, outcome);
        let end = match &transcript.broken {
            None => Ok(format!("{} s, kernel {}", ended.seconds, transcript.value("kernel").unwrap_or("unknown"))),
            Some(reason) => {
                let last = machine::last_line(&ended.console);
                Err(format!("{reason}; {}; last on the console: {last}", ended.end))
            }
        };
        let error = machine::kernel_error(&ended.console);
        let error = error.map_or_else(|| Ok(String::new()), |line| Err(format!("`{line}`")));
        let mut checks = vec![boot("the virtual machine ran to its end", end), boot("no error of the kernel", error)];
        if let Some(preemption) = self.preemption {
            checks.push(preemption.judge(transcript.value("preempt")));
        }
        checks.extend(vm::judge(transcript));
        checks
    }

    /// Also the folder of its results.
    fn name(&self) -> String {
        let preemption = self.preemption.map_or_else(String::new, |preemption| format!("-{}", preemption.mode));
        let condition = if self.condition.is_empty() { String::new() } else { format!("-{}", self.condition) };
        format!("{}-{}{condition}{preemption}-{}", self.arguments.arch.name(), self.kernel.name, self.number)
    }

    fn kernel_arguments(&self) -> String {
        let Arguments { append, soak, .. } = self.arguments;
        let mut words = vec![self.condition.to_owned(), append.clone()];
        words.extend(self.preemption.map(|preemption| format!("preempt={}", preemption.mode)));
        words.extend((*soak > 0).then(|| format!("heapbpf.soak={soak}")));
        words.join(" ").trim().to_owned()
    }

    /// For machines that hang. A run without `--soak` takes up to ten minutes with emulation, and longer beside other work.
    fn time_limit(&self) -> Duration {
        let comparison = if self.arguments.compare_stacks { Duration::from_mins(10) } else { Duration::ZERO };
        let languages = if self.arguments.languages { Duration::from_hours(2) } else { Duration::ZERO };
        Duration::from_mins(30) + comparison + languages + 4 * Duration::from_secs(self.arguments.soak.into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    /// The kernel is preempted where it allows it.
    None,
    /// As `full`, but ordinary tasks wait for the next tick (Linux 6.13).
    Lazy,
    /// The kernel is preempted everywhere.
    Full,
    /// One boot in each.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Preemption {
    mode: &'static str,
    /// Whether the kernel may lack the mode.
    optional: bool,
}

impl Preemption {
    /// The requested boots; `None` stands for the kernel's default.
    fn of(choices: &[Choice]) -> Vec<Option<Self>> {
        // In the order of `Choice`.
        const MODES: [&str; 3] = ["none", "lazy", "full"];
        let modes = |choice: &Choice| match choice {
            Choice::All => MODES.map(|mode| (mode, true)).to_vec(),
            one => vec![(MODES[*one as usize], false)],
        };
        let boots = choices.iter().flat_map(modes).map(|(mode, optional)| Some(Self { mode, optional }));
        if choices.is_empty() { vec![None] } else { boots.collect() }
    }

    /// Compares with `/sys/kernel/debug/sched/preempt`, which lists the kernel's modes, the active one in brackets. 7.0 and
    /// later have no `none` on x86, earlier kernels than 6.13 no `lazy`.
    fn judge(self, listed: Option<&str>) -> Check {
        let Self { mode, optional } = self;
        let listed = listed.unwrap_or_default();
        let present = listed.split_whitespace().any(|word| word.trim_matches(['(', ')']) == mode);
        let outcome = if listed.contains(&format!("({mode})")) {
            Ok(listed.to_owned())
        } else if optional && !present {
            Ok(format!("this kernel has no `{mode}`: {listed}"))
        } else {
            Err(format!("`{mode}` was requested, the kernel reports `{listed}`"))
        };
        Check::new(Feature::Boot, "the preemption mode is the requested one", outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_is_one_boot_and_all_are_three() {
        let modes = |choices: &[Choice]| -> Vec<Option<String>> {
            Preemption::of(choices).iter().map(|mode| mode.map(|mode| mode.mode.to_owned())).collect()
        };
        let named = |names: &[&str]| names.iter().map(|name| Some((*name).to_owned())).collect::<Vec<_>>();
        assert_eq!(modes(&[]), [None]);
        assert_eq!(modes(&[Choice::Lazy, Choice::Full]), named(&["lazy", "full"]));
        assert_eq!(modes(&[Choice::All]), named(&["none", "lazy", "full"]));
    }

    #[test]
    fn a_kernel_in_another_mode_fails_the_check() {
        let check = |choice, listed, expected: &[bool]| {
            let modes = Preemption::of(&[choice]).into_iter().flatten();
            assert_eq!(modes.map(|mode| mode.judge(listed).outcome.is_ok()).collect::<Vec<_>>(), expected);
        };
        check(Choice::Full, Some("none voluntary (full) lazy"), &[true]);
        check(Choice::Lazy, Some("none voluntary (full) lazy"), &[false]);
        check(Choice::None, Some("(full) lazy"), &[false]);
        check(Choice::Full, None, &[false]);
        // The kernel lacks the first mode, and has not applied the second.
        check(Choice::All, Some("(full) lazy"), &[true, false, true]);
    }
}
