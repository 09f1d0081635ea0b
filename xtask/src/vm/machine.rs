//! A virtual machine. Runs it to its end or a time limit, and finds errors of its kernel.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use regex::Regex;

use crate::architecture::Architecture;
use crate::command;
use crate::process::{Output, Program, bound};

pub(super) struct Boot {
    pub(super) console: String,
    /// Received from the second serial line.
    pub(super) data: Vec<u8>,
    pub(super) seconds: u64,
    pub(super) end: String,
}

/// Two processors, so that probes hit on both at once.
const MACHINE: [&str; 6] = ["-accel", "tcg", "-smp", "2", "-nodefaults", "-no-reboot"];

/// Sizes of memory. The file system is in it.
pub(super) const MEMORY: &str = "1G";
pub(super) const LARGE_MEMORY: &str = "5G";

/// A panic ends the machine, and an oops panics.
const KERNEL_ARGUMENTS: &str = "panic=-1 oops=panic";

/// What differs between processors.
struct Hardware {
    qemu: &'static str,
    /// Also the second serial line, after the first, which every machine has.
    arguments: &'static [&'static str],
    console: &'static str,
    data: &'static str,
}

const X86_64: Hardware = Hardware {
    qemu: "qemu-system-x86_64",
    arguments: &["-cpu", "max", "-serial", "chardev:data"],
    console: "ttyS0",
    data: "ttyS1",
};

/// Its board has one serial line. Emulating the architecture's own algorithm for pointer authentication takes many times as
/// long as calling qemu's; either signs pointers.
const AARCH64: Hardware = Hardware {
    qemu: "qemu-system-aarch64",
    arguments: &["-machine", "virt", "-cpu", "max,pauth-impdef=on", "-device", "pci-serial,chardev=data"],
    console: "ttyAMA0",
    data: "ttyS0",
};

/// What to boot.
pub(super) struct Machine<'a> {
    pub(super) architecture: Architecture,
    pub(super) image: &'a Path,
    pub(super) initramfs: &'a Path,
    /// Further arguments for the kernel.
    pub(super) append: &'a str,
    pub(super) memory: &'a str,
}

/// Boots a machine, and stops it after `time_limit`. Stores the content of the serial lines in `results`.
pub(super) fn boot(machine: &Machine<'_>, time_limit: Duration, results: &Path) -> Result<Boot> {
    let (console, data) = (results.join("console.txt"), results.join("serial.bin"));
    let hardware = match machine.architecture {
        Architecture::X86_64 => &X86_64,
        Architecture::Aarch64 => &AARCH64,
    };
    let append =
        format!("console={} heapbpf.data={} {KERNEL_ARGUMENTS} {}", hardware.console, hardware.data, machine.append);
    let mut qemu = bound(hardware.qemu);
    qemu.args(MACHINE).args(["-m", machine.memory, "-display", "none"]).stderr(Stdio::inherit());
    qemu.arg("-kernel").arg(machine.image).arg("-initrd").arg(machine.initramfs).args(["-append", append.trim_end()]);
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    qemu.arg("-chardev").arg(format!("file,id=data,path={}", data.display())).args(hardware.arguments);
    eprintln!("+ {}", command::line(&qemu));
    let began = Instant::now();
    let mut machine = Program::start(&mut qemu, Output::None)?;
    let end = match machine.wait_for(time_limit)? {
        Some(status) => format!("qemu ended with {status}"),
        None => format!("stopped after {} s", time_limit.as_secs()),
    };
    drop(machine);
    let read = |path: &Path| fs::read(path).with_context(|| format!("qemu left no `{}`", path.display()));
    Ok(Boot {
        console: String::from_utf8_lossy(&read(&console)?).into_owned(),
        data: read(&data)?,
        seconds: began.elapsed().as_secs(),
        end,
    })
}

/// Starts of error messages, after the time: panics, oopses, warnings with a trace, hung tasks, and out of memory.
static ERROR: LazyLock<Regex> = LazyLock::new(|| {
    let starts = "Kernel panic|BUG:|kernel BUG at|Oops:|WARNING:|general protection fault|[Uu]nable to handle|divide error|\
                  invalid opcode|stack segment|Internal error: |Unexpected kernel |INFO: task |Out of memory|UBSAN:";
    Regex::new(&format!("^({starts})")).expect("is valid")
});

pub(super) fn kernel_error(console: &str) -> Option<&str> {
    console.lines().map(message).find(|message| ERROR.is_match(message))
}

/// The line that shows an error of the emulation, not of the kernel: with several threads, qemu 7.2 at times executes
/// a removed breakpoint of the kernel's own code patching. A kernel without any probe has it too, while
/// `/proc/sys/kernel/sched_schedstats` is toggled under load: 7.3 within 500 times. heapbpf's are in user memory.
pub(super) fn emulation_fault(console: &str) -> Option<&str> {
    let oops = kernel_error(console).filter(|line| line.starts_with("Oops: int3"))?;
    // A wild jump lands in padding, which consists of breakpoints. `Code:` has the next byte in brackets.
    let code = console.lines().map(message).find_map(|line| line.strip_prefix("Code: "))?;
    let before = code.split_once(" <")?.0;
    (!before.ends_with("cc")).then_some(oops)
}

pub(super) fn last_line(console: &str) -> &str {
    console.lines().map(message).rfind(|message| !message.is_empty()).unwrap_or("no output")
}

/// A line without the time at its start, `[    1.234567] `, and without the `[    T1] ` that some kernels add.
fn message(line: &str) -> &str {
    static TIMES: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\s*(\[[\d .TC]*\]\s*)*").expect("is valid"));
    line[TIMES.find(line).map_or(0, |times| times.end())..].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(console: &str, expected: Option<&str>) {
        assert_eq!(kernel_error(console), expected);
    }

    #[test]
    fn kernel_errors_are_found() {
        check("fine\n[    1.5] Kernel panic - not syncing: No init\n", Some("Kernel panic - not syncing: No init"));
        check("[   10.25][   T95] BUG: scheduling while atomic\r\n", Some("BUG: scheduling while atomic"));
        check(
            "[    2.0] WARNING: CPU: 1 PID: 9 at kernel/bpf/hashtab.c:1\n",
            Some("WARNING: CPU: 1 PID: 9 at kernel/bpf/hashtab.c:1"),
        );
        check("general protection fault, probably\n", Some("general protection fault, probably"));
        check(
            "[    8.1] Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008\n",
            Some("Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008"),
        );
        check("[    8.1] Internal error: Oops - BUG: 0 [#1] SMP\n", Some("Internal error: Oops - BUG: 0 [#1] SMP"));
    }

    #[test]
    fn stale_breakpoints_are_attributed_to_the_emulation() {
        let oops = "[   10.4] Oops: int3: 0000 [#1] SMP NOPTI\n[   10.4] Code: 44 00 00 0f <1f> 44 00 00\n";
        assert_eq!(emulation_fault(oops), Some("Oops: int3: 0000 [#1] SMP NOPTI"));
        let wild_jump = oops.replace("0f <1f>", "cc <cc>");
        assert_eq!(emulation_fault(&wild_jump), None);
        // The first error is the cause.
        assert_eq!(emulation_fault(&format!("BUG: unable to handle page fault\n{oops}")), None);
        assert_eq!(emulation_fault("fine\n"), None);
    }

    #[test]
    fn similar_lines_are_accepted() {
        check("", None);
        check("[    0.1] RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable\n", None);
        check("[    0.1] Mitigation: no BUG: here\n[no time] Oops: is inside\nsession tables\n", None);
    }

    #[test]
    fn the_last_line_is_not_empty() {
        assert_eq!(last_line("[    1.0] one\n[    2.0] two\r\n\n"), "two");
        assert_eq!(last_line("\n"), "no output");
    }
}
