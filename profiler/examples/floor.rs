//! Attaches empty programs to given offsets of a process until standard input closes, to measure the cost of the traps.
//! `floor PID MODULE ENTRY=OFFSET… SESSION=OFFSET…`, with offsets in the module's file. `cargo xtask bench overhead` runs this.

#![expect(clippy::print_stdout, reason = "another program reads the output")]

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use aya_obj::generated::bpf_insn;
use heapbpf_base::ids::Pid;
use heapbpf_linux::bpf::{AttachType, MultiLink, ProgramLoad, link_multi, load_program};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, module, hooks @ ..] = arguments.as_slice() else {
        bail!("usage: floor PID MODULE ENTRY=OFFSET… SESSION=OFFSET…");
    };
    let pid = Pid(pid.parse().with_context(|| format!("invalid PID `{pid}`"))?);
    let offsets = |kind: &str| -> Result<Vec<u64>> {
        let of_kind = hooks.iter().filter_map(|hook| hook.strip_prefix(kind)?.strip_prefix('='));
        of_kind.map(|offset| offset.parse().with_context(|| format!("invalid offset `{offset}`"))).collect()
    };
    // Closing a link detaches it.
    let links = [
        attach(pid, module, &offsets("ENTRY")?, AttachType::UprobeMulti)?,
        attach(pid, module, &offsets("SESSION")?, AttachType::UprobeSession)?,
    ];
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(links);
    Ok(())
}

/// Attaches `r0 = 1; exit`, which at the entry of a session skips the return.
fn attach(pid: Pid, module: &str, offsets: &[u64], attach_type: AttachType) -> Result<Option<OwnedFd>> {
    if offsets.is_empty() {
        return Ok(None);
    }
    let instructions = [instruction(0xb7, 1), instruction(0x95, 0)];
    let load = ProgramLoad { name: "floor", instructions: &instructions, license: c"GPL", attach_type, btf: None };
    let program = load_program(load)?;
    let cookies = vec![0; offsets.len()];
    let link = MultiLink { path: Path::new(module), offsets, cookies: &cookies, pid: Some(pid), at_return: false };
    let link = link_multi(program, attach_type, link).with_context(|| format!("cannot attach to `{module}`"))?;
    Ok(Some(link))
}

fn instruction(code: u8, imm: i32) -> bpf_insn {
    bpf_insn { code, _bitfield_align_1: [], _bitfield_1: bpf_insn::new_bitfield_1(0, 0), off: 0, imm }
}
