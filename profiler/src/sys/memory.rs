//! How much memory this machine has.

use rustix::system::sysinfo;

/// Requests below this many bytes succeed in a process without limits of its own: half of what the machine has, which not
/// even the kernel's cautious accounting refuses (`OVERCOMMIT_GUESS` in
/// [`__vm_enough_memory`](https://github.com/torvalds/linux/blob/v6.12/mm/util.c#L946)).
#[must_use]
pub fn throw_safe_bytes() -> u64 {
    let info = sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_memory() {
        let bytes = throw_safe_bytes();
        assert!((16 << 20..1 << 46).contains(&bytes), "{bytes}");
    }
}
