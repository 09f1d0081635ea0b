//! Loads programs for link types that aya 0.14 does not support: aya-obj relocates a second copy of the object against the maps
//! that aya created. Also verifies that the kernel gave no program a private stack, which makes a preempted program dereference
//! wrong pointers in the kernel: `profiler-ebpf/src/private_stack.rs` explains what these are and how the programs avoid them.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use aya::Ebpf;
use aya::maps::Map;
use aya_obj::Object;
use heapbpf_linux::bpf::{self, AttachType, ProgramBtf, ProgramLoad, machine_code, verified_instructions};

use super::error::LoadError;

pub(super) struct RelocatedObject {
    object: Object,
    btf: Option<OwnedFd>,
}

impl RelocatedObject {
    /// Relocates the object against the maps of `ebpf`, which must be from the same bytes and still contain all maps.
    pub(super) fn new(bytes: &[u8], ebpf: &Ebpf) -> Result<Self, LoadError> {
        let refused = |error: &dyn std::fmt::Display| LoadError::Relocation(error.to_string());
        let mut object = Object::parse(bytes).map_err(|error| refused(&error))?;
        let features = aya::features();
        let btf = match features.btf() {
            Some(btf) => object.fixup_and_sanitize_btf(btf).map_err(|error| refused(&error))?.map(|btf| btf.to_bytes()),
            None => None,
        };
        let btf = btf.map(|bytes| bpf::load_btf(&bytes)).transpose().map_err(|error| refused(&error))?;
        let maps: Vec<(String, aya_obj::Map)> = object.maps.drain().collect();
        let descriptors: HashMap<&str, RawFd> =
            ebpf.maps().filter_map(|(name, map)| Some((name, descriptor(map)?))).collect();
        let known = maps.iter().filter_map(|(name, map)| Some((name.as_str(), *descriptors.get(name.as_str())?, map)));
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        object.relocate_maps(known, &text).map_err(|error| refused(&error))?;
        object.relocate_calls(&text).map_err(|error| refused(&error))?;
        // `sanitize_functions` is not called: helpers that it would replace are missing only where the kernel is locked down, and
        // there the replacements are missing, too.
        // those that it would replace them by.
        Ok(Self { object, btf })
    }

    pub(super) fn load(&self, name: &'static str, attach_type: AttachType) -> Result<OwnedFd, LoadError> {
        let program = self.with_program(name, attach_type, bpf::load_program)?;
        let program = program.map_err(|refused| LoadError::program(name, &refused.to_string()))?;
        refuse_private_stack(name, &program)?;
        if tracing::enabled!(tracing::Level::DEBUG) && matches!(verified_instructions(&program), Ok(0)) {
            self.log_effort(name, attach_type)?;
        }
        Ok(program)
    }

    /// Logs the verifier's work on kernels that report it only while a program is loaded, before Linux 5.16.
    fn log_effort(&self, name: &'static str, attach_type: AttachType) -> Result<(), LoadError> {
        let statistics = self.with_program(name, attach_type, bpf::verifier_statistics)?;
        let text = statistics.unwrap_or_else(|error| error.to_string());
        match text.split("processed ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()) {
            Some(count) => log_verified(name, count),
            None => tracing::debug!("program `{name}`: no statistics of the verifier: {text}"),
        }
        Ok(())
    }

    fn with_program<T>(
        &self,
        name: &'static str,
        attach_type: AttachType,
        load_by: impl FnOnce(ProgramLoad<'_>) -> T,
    ) -> Result<T, LoadError> {
        let program = self.object.programs.get(name).ok_or(LoadError::Missing(name))?;
        let function = self.object.functions.get(&program.function_key()).ok_or(LoadError::Missing(name))?;
        let functions = function.func_info.func_info_bytes();
        let lines = function.line_info.line_info_bytes();
        let btf = self.btf.as_ref().map(|btf| ProgramBtf {
            btf,
            functions: (&functions, function.func_info_rec_size),
            lines: (&lines, function.line_info_rec_size),
        });
        let load =
            ProgramLoad { name, instructions: &function.instructions, license: &program.license, attach_type, btf };
        Ok(load_by(load))
    }
}

/// Logs the number of verified instructions. `cargo xtask vm` reads this line.
fn log_verified(name: &str, count: u32) {
    tracing::debug!("program `{name}`: {count} instructions verified");
}

fn descriptor(map: &Map) -> Option<RawFd> {
    match map {
        Map::Array(data)
        | Map::PerCpuArray(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerfEventArray(data)
        | Map::ProgramArray(data)
        | Map::RingBuf(data) => Some(data.fd().as_fd().as_raw_fd()),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrivateStack {
    Absent,
    Present,
    /// The kernel does not show the machine code to this process.
    Hidden,
}

/// Fails if this program, which has just been loaded, has a private stack. If the kernel hides its code, relies on its tail call.
pub(super) fn refuse_private_stack(name: &'static str, program: impl AsFd) -> Result<(), LoadError> {
    if let Ok(count @ 1..) = verified_instructions(&program) {
        log_verified(name, count);
    }
    match inspect(program) {
        PrivateStack::Absent => Ok(()),
        PrivateStack::Present => Err(LoadError::PrivateStack(name)),
        PrivateStack::Hidden => {
            tracing::info!("the kernel hides the code of `{name}` (CAP_SYSLOG): not checked for a private stack");
            Ok(())
        }
    }
}

pub(super) fn private_stack_absent(program: impl AsFd) -> bool {
    inspect(program) == PrivateStack::Absent
}

fn inspect(program: impl AsFd) -> PrivateStack {
    match machine_code(program) {
        Ok(Some(code)) if uses_private_stack(&code) => PrivateStack::Present,
        Ok(Some(_)) => PrivateStack::Absent,
        Ok(None) | Err(_) => PrivateStack::Hidden,
    }
}

fn uses_private_stack(code: &[u8]) -> bool {
    if cfg!(target_arch = "aarch64") { uses_private_stack_aarch64(code) } else { uses_private_stack_x86_64(code) }
}

/// Whether x86-64 code from the kernel's JIT compiler addresses a private stack. Such code begins with loading the stack's
/// per-CPU address into r9 and `add r9, gs:[this_cpu_off]` (`emit_priv_frame_ptr` in `arch/x86/net/bpf_jit_comp.c`, Linux 6.13
/// to 7.3). Nothing else adds to r9 there, because no BPF register is mapped to it.
fn uses_private_stack_x86_64(code: &[u8]) -> bool {
    const ADD_R9_GS: [u8; 5] = [0x65, 0x4c, 0x03, 0x0c, 0x25];
    code.array_windows().any(|window| *window == ADD_R9_GS)
}

/// Whether aarch64 code from the kernel's JIT compiler addresses a private stack: the offset of the CPU's memory is added to x27
/// (`priv_sp` and `emit_percpu_ptr` in `arch/arm64/net/bpf_jit_comp.c`, Linux 6.17;
/// <https://github.com/kernel-patches/bpf/pull/9339>), to which no BPF register is mapped.
fn uses_private_stack_aarch64(code: &[u8]) -> bool {
    const ADD_X27_X27: u32 = 0x8b00_037b;
    const ADDEND: u32 = 0x001f_0000;
    code.as_chunks().0.iter().any(|bytes| u32::from_le_bytes(*bytes) & !ADDEND == ADD_X27_X27)
}

#[cfg(test)]
mod tests {
    use heapbpf_linux::bpf::{AttachType, load_nothing, load_with_stack};

    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;

    /// Linux 6.13 is the first with private stacks, and with session links.
    fn has_private_stacks() -> bool {
        heapbpf_linux::bpf::supports(AttachType::UprobeSession).expect("tests run as root, on a kernel with BPF")
    }

    #[test]
    fn private_stacks_of_aarch64_are_recognised() {
        let code = |instructions: [u32; 3]| instructions.map(u32::to_le_bytes).concat();
        // mov x27, x0; mrs x10, tpidr_el1; add x27, x27, x10
        assert!(uses_private_stack_aarch64(&code([0xaa00_03fb, 0xd538_d08a, 0x8b0a_037b])));
        // add x0, x27, x10; add x27, x26, x10
        assert!(!uses_private_stack_aarch64(&code([0xd538_d08a, 0x8b0a_0360, 0x8b0a_035b])));
    }

    #[test]
    fn a_program_with_a_private_stack_is_detected() {
        let nothing = load_nothing(AttachType::PerfEvent).expect("it can be loaded");
        assert_eq!(inspect(&nothing), PrivateStack::Absent);
        // Not all kernels since 6.13 give one to programs of type kprobe.
        let with_stack = load_with_stack(AttachType::RawTracepoint).expect("it can be loaded");
        let expected = if has_private_stacks() { PrivateStack::Present } else { PrivateStack::Absent };
        assert_eq!(inspect(&with_stack), expected);
        assert_eq!(refuse_private_stack("with_stack", &with_stack).is_err(), has_private_stacks());
    }

    #[test]
    fn heapbpfs_programs_have_no_private_stack() {
        for unwind_by_tables in [true, false] {
            for links in [LinkKind::Perf, LinkKind::Multi, LinkKind::Session] {
                let mut kernel = fixture::kernel_that(links, |config| config.unwind_by_tables = unwind_by_tables);
                kernel.attach_tracepoints().expect("the tracepoints are there");
                let programs = kernel.all_programs();
                // Seven for tracepoints of processes, two for probes, and two for mappings if tables depend on these.
                assert_eq!(programs.len(), if unwind_by_tables { 11 } else { 9 }, "{links:?}");
                let found: Vec<_> = programs.iter().map(inspect).collect();
                assert!(found.iter().all(|found| *found == PrivateStack::Absent), "{links:?}: {found:?}");
                assert!(kernel.stacks_verified());
            }
        }
    }
}
