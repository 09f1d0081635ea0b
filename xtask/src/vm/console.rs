//! Finds in a console's text what a kernel says when something is wrong with it. Pure.

/// How such lines begin, behind the time: panics, oopses, warnings with a trace, locks, and memory run out.
const COMPLAINTS: [&str; 14] = [
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

/// The first line that is one.
pub(super) fn complaint(console: &str) -> Option<&str> {
    console.lines().map(message).find(|message| COMPLAINTS.iter().any(|complaint| message.starts_with(complaint)))
}

/// The line that shows a fault of the emulation and not of the kernel: with several threads, qemu 7.2 at times executes a
/// breakpoint of the kernel's own code patching after it has been removed. A kernel without any probe has it too, while
/// `/proc/sys/kernel/sched_schedstats` is toggled under load: 7.3 within 500 times. heapbpf's breakpoints
/// are in user memory alone.
pub(super) fn emulation_fault(console: &str) -> Option<&str> {
    let oops = complaint(console).filter(|line| line.starts_with("Oops: int3"))?;
    // A wild jump lands in padding, which is made of breakpoints that are still there. `Code:` has the next byte in brackets.
    let code = console.lines().map(message).find_map(|line| line.strip_prefix("Code: "))?;
    let before = code.split_once(" <")?.0;
    (!before.ends_with("cc")).then_some(oops)
}

/// The last line that says anything.
pub(super) fn last(console: &str) -> &str {
    console.lines().map(message).rfind(|message| !message.is_empty()).unwrap_or("nothing")
}

/// A line without the kernel's time in front: `[    1.234567] ` and, on some kernels, `[    T1] ` behind it.
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
        assert_eq!(complaint(console), expected);
    }

    #[test]
    fn kernels_that_complain() {
        check("fine\n[    1.5] Kernel panic - not syncing: No init\n", Some("Kernel panic - not syncing: No init"));
        check("[   10.25][   T95] BUG: scheduling while atomic\r\n", Some("BUG: scheduling while atomic"));
        check(
            "[    2.0] WARNING: CPU: 1 PID: 9 at kernel/bpf/hashtab.c:1\n",
            Some("WARNING: CPU: 1 PID: 9 at kernel/bpf/hashtab.c:1"),
        );
        check("general protection fault, probably\n", Some("general protection fault, probably"));
    }

    #[test]
    fn stale_breakpoints_are_the_emulations() {
        let oops = "[   10.4] Oops: int3: 0000 [#1] SMP NOPTI\n[   10.4] Code: 44 00 00 0f <1f> 44 00 00\n";
        assert_eq!(emulation_fault(oops), Some("Oops: int3: 0000 [#1] SMP NOPTI"));
        let wild_jump = oops.replace("0f <1f>", "cc <cc>");
        assert_eq!(emulation_fault(&wild_jump), None);
        // What comes first is the cause.
        assert_eq!(emulation_fault(&format!("BUG: unable to handle page fault\n{oops}")), None);
        assert_eq!(emulation_fault("fine\n"), None);
    }

    #[test]
    fn what_only_looks_like_it() {
        check("", None);
        check("[    0.1] RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable\n", None);
        check("[    0.1] Mitigation: no BUG: here\n[no time] Oops: is inside\nsession tables\n", None);
    }

    #[test]
    fn the_last_words() {
        assert_eq!(last("[    1.0] one\n[    2.0] two\r\n\n"), "two");
        assert_eq!(last("\n"), "nothing");
    }
}
