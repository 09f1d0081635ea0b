//! What the walkers need of the kernel. `profiler-ebpf/host` has this module, too, for tests that read a copied process.

pub(crate) use aya_ebpf::bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
pub(crate) use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_ktime_get_ns, bpf_probe_read_user as read_user,
};
pub(crate) use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel, bpf_probe_read_user};
