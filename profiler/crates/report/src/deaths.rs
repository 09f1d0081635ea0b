//! Deaths of targets that a replaced return address may explain.

use heapbpf_ledger::model::{HookKind, Loss, Profile, TargetProfile};

use crate::{describe, text};

/// Exit codes of processes that a signal killed are this and the signal's number, as in a shell.
const KILLED: i32 = 128;
const FUNCTIONS_MAX: usize = 5;

/// Explains the death of a target whose user-defined hooks replace return addresses; `None` without evidence for that.
pub(super) fn of_return(profile: &Profile, target: &TargetProfile) -> Option<String> {
    let signal = target.facts.exit_code()?.checked_sub(KILLED)?;
    let missed: u64 = profile.health.lost.iter().filter(|(loss, _)| *loss == Loss::MissedReturn).map(|(_, n)| n).sum();
    // A return on another stack executes at an address of the kernel's that does not belong to the thread: SIGILL.
    let is_suspect = signal == libc::SIGILL || (signal == libc::SIGSEGV && missed > 0);
    let hooks = target.heaps.iter().flat_map(|heap| &heap.hooks);
    let replacing = hooks.filter(|hook| hook.kind == HookKind::CustomReturn && hook.error.is_none());
    let functions: Vec<&str> = replacing.map(|hook| &*hook.function).take(FUNCTIONS_MAX).collect();
    let first = *functions.first().filter(|_| is_suspect)?;
    let calls = match missed {
        0 => String::new(),
        missed => {
            format!(
                " after {} of hooked functions had not returned on the stack of the call",
                text::counted(missed, "call")
            )
        }
    };
    let names: Vec<String> = functions.iter().map(|name| format!("`{}`", text::printable(name))).collect();
    Some(format!(
        "{} died of {}{calls}: hooks replace the return address of {}, which functions that switch stacks, and those that generated code calls, do not survive; record at the entry instead, like `{}(size=arg1, entry)` (docs/hooks.md)",
        describe::target(target),
        if signal == libc::SIGILL { "SIGILL" } else { "SIGSEGV" },
        names.join(", "),
        text::printable(first),
    ))
}
