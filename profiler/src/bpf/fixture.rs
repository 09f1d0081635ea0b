//! A loaded kernel side for tests.

use super::load::{Kernel, KernelConfig, LinkKind};

/// Capacity of the live set.
pub(super) const LIVE_BLOCKS_MAX: u32 = 1000;

/// Loads the programs with the smallest maps.
pub(super) fn kernel(links: LinkKind) -> Kernel {
    kernel_that(links, |_| ())
}

/// Loads the programs like [`kernel`], with the configuration changed by `differs`.
pub(super) fn kernel_that(links: LinkKind, differs: impl FnOnce(&mut KernelConfig)) -> Kernel {
    let mut config = KernelConfig {
        ring_bytes: 1 << 16,
        back_pressure_max: 0,
        live_blocks_max: LIVE_BLOCKS_MAX,
        unwind_by_tables: false,
        row_cells: 1,
        stack_seed: 0,
        raw_stacks: false,
        all_execs: false,
        throw_safe_bytes: u64::MAX,
        stubs: false,
        entries: false,
        pages: false,
    };
    differs(&mut config);
    Kernel::load(config, links).expect("tests run as root, on a kernel with BPF")
}
