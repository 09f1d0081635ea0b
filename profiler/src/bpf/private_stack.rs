//! Detects private stacks, which make a preempted program follow wrong pointers in the kernel.
//!
//! `profiler-ebpf/src/private_stack.rs` explains what they are and how the programs avoid them. This file verifies the
//! result on the programs as the kernel has compiled them.

use std::os::fd::AsFd;

use super::load::{Kernel, LoadError};
use crate::linux::bpf::machine_code;

/// What the machine code of a program shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrivateStack {
    Absent,
    Present,
    /// The kernel does not show the machine code to this process.
    Hidden,
}

/// Fails when the kernel has given this program a private stack. Where the kernel hides the machine code, the
/// check relies on the tail call in the program.
pub(super) fn refuse(name: &'static str, program: impl AsFd) -> Result<(), LoadError> {
    match inspect(program) {
        PrivateStack::Absent => Ok(()),
        PrivateStack::Present => Err(LoadError::PrivateStack(name)),
        PrivateStack::Hidden => {
            tracing::info!("the kernel hides the code of `{name}` (CAP_SYSLOG): not checked for a private stack");
            Ok(())
        }
    }
}

impl Kernel {
    /// Whether the machine code of all programs was readable, so that the absence of private stacks is verified.
    pub fn stacks_verified(&self) -> bool {
        self.all_programs().into_iter().all(|program| inspect(program) == PrivateStack::Absent)
    }
}

fn inspect(program: impl AsFd) -> PrivateStack {
    match machine_code(program) {
        Ok(Some(code)) if uses_private_stack(&code) => PrivateStack::Present,
        Ok(Some(_)) => PrivateStack::Absent,
        Ok(None) | Err(_) => PrivateStack::Hidden,
    }
}

/// Whether x86-64 code that the kernel generated addresses a private stack. Such code begins with loading the stack's
/// per-CPU address into r9 and `add r9, gs:[this_cpu_off]` (`emit_priv_frame_ptr` in `arch/x86/net/bpf_jit_comp.c`, Linux
/// 6.13 to 7.3). Nothing else adds to r9 there, because no BPF register is mapped to it.
fn uses_private_stack(code: &[u8]) -> bool {
    const ADD_R9_GS: [u8; 5] = [0x65, 0x4c, 0x03, 0x0c, 0x25];
    code.windows(ADD_R9_GS.len()).any(|window| window == ADD_R9_GS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;
    use crate::linux::bpf::{AttachType, load_nothing, load_with_stack};

    /// Linux 6.13 is the first with private stacks, and with sessions.
    fn has_private_stacks() -> bool {
        crate::linux::bpf::supports(AttachType::UprobeSession).expect("tests run as root, on a kernel with BPF")
    }

    #[test]
    fn a_program_with_a_private_stack_is_detected() {
        let nothing = load_nothing(AttachType::PerfEvent).expect("it can be loaded");
        assert_eq!(inspect(&nothing), PrivateStack::Absent);
        let with_stack = load_with_stack(AttachType::PerfEvent).expect("it can be loaded");
        let expected = if has_private_stacks() { PrivateStack::Present } else { PrivateStack::Absent };
        assert_eq!(inspect(&with_stack), expected);
        assert_eq!(refuse("with_stack", &with_stack).is_err(), has_private_stacks());
    }

    #[test]
    fn no_program_of_ours_has_one() {
        for unwind_by_tables in [true, false] {
            for links in [LinkKind::Perf, LinkKind::Multi, LinkKind::Session] {
                let mut kernel = fixture::kernel_that(links, |config| config.unwind_by_tables = unwind_by_tables);
                kernel.watch_processes().expect("the tracepoints are there");
                let programs = kernel.all_programs();
                // Seven for tracepoints, and one or two for probes.
                assert_eq!(programs.len(), if links == LinkKind::Session { 8 } else { 9 }, "{links:?}");
                let found: Vec<_> = programs.iter().map(inspect).collect();
                assert!(found.iter().all(|found| *found == PrivateStack::Absent), "{links:?}: {found:?}");
                assert!(kernel.stacks_verified());
            }
        }
    }
}
