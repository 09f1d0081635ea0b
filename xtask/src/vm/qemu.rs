//! Runs a virtual machine to its end, or to the end of our patience. Knows nothing of what runs in it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::command;

/// What a machine left behind.
pub(super) struct Boot {
    /// What the kernel and init wrote to the console.
    pub(super) console: String,
    /// What came over the second serial line.
    pub(super) data: Vec<u8>,
    /// How long it ran.
    pub(super) seconds: u64,
    /// How it ended, in words.
    pub(super) end: String,
}

/// Two processors, so that probes hit on both at once.
const MACHINE: [&str; 10] = ["-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1G", "-nodefaults", "-no-reboot"];

/// A panic ends the machine, and an oops is one.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 panic=-1 oops=panic";

/// Boots the image, and ends the machine after `time_limit`. The serial lines' contents are left in `results`.
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

/// A running qemu; killed when this goes.
struct Machine(Child);

impl Machine {
    /// Waits for its end, or ends it after the time limit.
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
        // It may have ended by itself; then neither call has anything to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
