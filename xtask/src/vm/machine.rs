//! Runs a virtual machine to its end or to a time limit, and finds errors of its kernel in the text of its console.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::command;

/// Result of a boot.
pub(super) struct Boot {
    /// Output of the kernel and of init.
    pub(super) console: String,
    /// Received from the second serial line.
    pub(super) data: Vec<u8>,
    pub(super) seconds: u64,
    /// How it ended.
    pub(super) end: String,
}

/// Two processors, so that probes hit on both at once.
const MACHINE: [&str; 10] = ["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1G", "-nodefaults", "-no-reboot"];

/// A panic ends the machine, and an oops panics.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 panic=-1 oops=panic";

/// Boots the image, and stops the machine after `time_limit`. Stores the content of the serial lines in `results`.
pub(super) fn boot(image: &Path, initramfs: &Path, append: &str, time_limit: Duration, results: &Path) -> Result<Boot> {
    let (console, data) = (results.join("console.txt"), results.join("serial.bin"));
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(MACHINE).args(["-display", "none"]).stdin(Stdio::null());
    qemu.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    qemu.args(["-append", format!("{KERNEL_ARGUMENTS} {append}").trim_end()]);
    for line in [&console, &data] {
        qemu.arg("-serial").arg(format!("file:{}", line.display()));
    }
    eprintln!("+ {}", command::line(&qemu));
    let began = Instant::now();
    let mut machine = Machine(qemu.spawn().context("could not start `qemu-system-x86_64`")?);
    let end = machine.wait(began, time_limit)?;
    let read = |path: &Path| fs::read(path).with_context(|| format!("qemu left no `{}`", path.display()));
    Ok(Boot {
        console: String::from_utf8_lossy(&read(&console)?).into_owned(),
        data: read(&data)?,
        seconds: began.elapsed().as_secs(),
        end,
    })
}

/// A running qemu. Killed when dropped.
struct Machine(Child);

impl Machine {
    fn wait(&mut self, began: Instant, time_limit: Duration) -> Result<String> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(format!("qemu ended with {status}"));
            }
            if began.elapsed() >= time_limit {
                self.0.kill()?;
                self.0.wait()?;
                return Ok(format!("stopped after {} s", time_limit.as_secs()));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have exited by itself; then both calls fail.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts of error messages, after the time: panics, oopses, warnings with a trace, hung tasks, and out of memory.
const ERRORS: [&str; 14] = [
    "Kernel panic",
    "BUG:",
    "kernel BUG at",
    "Oops:",
    "WARNING:",
    "general protection fault",
    "unable to handle",
    "Unable to handle",
    "divide error",
    "invalid opcode",
    "stack segment",
    "INFO: task ",
    "Out of memory",
    "UBSAN:",
];

/// The first error message.
pub(super) fn kernel_error(console: &str) -> Option<&str> {
    console.lines().map(message).find(|message| ERRORS.iter().any(|error| message.starts_with(error)))
}

/// The line that shows an error of the emulation and not of the kernel: with several threads, qemu 7.2 at times executes a
/// breakpoint of the kernel's own code patching after it has been removed. A kernel without any probe has it too, while
/// `/proc/sys/kernel/sched_schedstats` is toggled under load: 7.3 within 500 times. heapbpf's breakpoints
/// are in user memory alone.
pub(super) fn emulation_fault(console: &str) -> Option<&str> {
    let oops = kernel_error(console).filter(|line| line.starts_with("Oops: int3"))?;
    // A wild jump lands in padding, which consists of breakpoints. `Code:` has the next byte in brackets.
    let code = console.lines().map(message).find_map(|line| line.strip_prefix("Code: "))?;
    let before = code.split_once(" <")?.0;
    (!before.ends_with("cc")).then_some(oops)
}

/// The last line that is not empty.
pub(super) fn last_line(console: &str) -> &str {
    console.lines().map(message).rfind(|message| !message.is_empty()).unwrap_or("no output")
}

/// A line without the time at its start, `[    1.234567] `, and without the `[    T1] ` that some kernels add.
fn message(line: &str) -> &str {
    let mut message = line.trim();
    while let Some((bracket, rest)) = message.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
        let plain = |letter: char| letter.is_ascii_digit() || " .TC".contains(letter);
        if !bracket.chars().all(plain) {
            break;
        }
        message = rest.trim_start();
    }
    message
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
