//! Stops a process at its execs without tracing it. A BPF program at the kernel's tracepoint sends SIGSTOP to the process, which
//! takes effect before the first instruction of the new program (`bpf_send_signal`, Linux 5.3; `bpf_probe_read_kernel`, 5.5), and
//! notes that in a map.
//!
//! Only a child that [`spawn_resumed`](super::spawn::spawn_resumed) has started is stopped, and only while its parent lives: the kernel
//! resumes it when the parent exits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya_obj::generated::bpf_insn;
use heapbpf_base::ids::Pid;

use super::bpf::{AttachType, ProgramLoad, instruction, link_raw_tracepoint, load_program, wait_for_programs};
use super::bpf_map::{create_word, read_array, write_word};
use super::pidfd::PidFd;

/// The link of the program, in the process that owns it. Dropping it ends the stops, and resumes the process if it is stopped at
/// its exec.
#[derive(Debug)]
pub struct ExecStop {
    link: Option<OwnedFd>,
    note: StopNote,
}

/// Note of whether the program has stopped the process, which has not been resumed since.
#[derive(Debug)]
pub struct StopNote {
    process: PidFd,
    word: OwnedFd,
}

/// Offsets of the members of kernel structures that the program reads, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecStopLayout {
    /// Offset of the PID in `struct task_struct`, to which the following offsets belong, too.
    pub tgid: u32,
    pub signal: u32,
    /// Offset of flags that are 0 without a tracer.
    pub ptrace: u32,
    pub real_parent: u32,
    pub pdeath_signal: u32,
    /// Offset of the signals that are pending for the task.
    pub pending: u32,
    /// Offset in `struct signal_struct` of the signals that are pending for the process.
    pub shared_pending: u32,
}

/// Stops a child of this process at its execs until the link is closed. The child is not stopped if it is traced, because its
/// tracer would be informed, and holds it; nor if stopping or resuming it would discard a pending signal; nor if the kernel would
/// not resume it on the exit of this process. `pid` is that of the initial PID namespace.
pub fn attach(pid: Pid, layout: &ExecStopLayout) -> io::Result<(OwnedFd, StopNote)> {
    let note = StopNote::new(pid, create_word()?)?;
    let instructions = program(pid, Pid(std::process::id()), layout, &note.word)?;
    let attach_type = AttachType::RawTracepoint;
    let load =
        ProgramLoad { name: "stop_at_exec", instructions: &instructions, license: c"GPL", attach_type, btf: None };
    let program = load_program(load).map_err(io::Error::other)?;
    Ok((link_raw_tracepoint(program, c"sched_process_exec")?, note))
}

impl ExecStop {
    /// Owns the link and the note that [`attach`] has returned, perhaps to another process.
    pub fn new(link: OwnedFd, note: StopNote) -> Self {
        Self { link: Some(link), note }
    }
}

impl Drop for ExecStop {
    fn drop(&mut self) {
        self.link = None;
        if !self.note.process.has_ended().unwrap_or(true) {
            // An exec may have been stopped that the kernel is just about to report.
            wait_for_programs();
            self.note.resume();
        }
    }
}

impl StopNote {
    pub fn new(pid: Pid, word: OwnedFd) -> io::Result<Self> {
        Ok(Self { process: PidFd::open(pid)?, word })
    }

    pub fn is_set(&self) -> bool {
        read_array::<u32>(&self.word, 0).is_ok_and(|word| word != 0)
    }

    /// Notes that the process is resumed.
    pub fn clear(&self) {
        // Fails only for other maps.
        let _ = write_word(&self.word, 0);
    }

    /// Resumes the process if it is stopped at its exec.
    pub fn resume(&self) {
        if self.is_set() {
            self.clear();
            // The process may have exited.
            let _ = self.process.resume();
        }
    }
}

impl AsFd for StopNote {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.word.as_fd()
    }
}

/// Numbers of helpers (include/uapi/linux/bpf.h).
const GET_CURRENT_PID_TGID: i32 = 14;
const GET_CURRENT_TASK: i32 = 35;
const SEND_SIGNAL: i32 = 109;
const PROBE_READ_KERNEL: i32 = 113;
/// The source register of a load of an address in a map (`BPF_PSEUDO_MAP_VALUE`, Linux 5.2).
const MAP_VALUE: u8 = 2;

/// Opcodes of instructions (include/uapi/linux/bpf.h).
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const ADD: u8 = 0x07;
const SHIFT_RIGHT: u8 = 0x77;
const SET: u8 = 0xb7;
const COPY: u8 = 0xbf;
const LOAD_ADDRESS: u8 = 0x18;
const LOAD_4: u8 = 0x61;
const LOAD_8: u8 = 0x79;
const STORE_4: u8 = 0x62;
const IF_EQUAL: u8 = 0x15;
const IF_NOT_EQUAL: u8 = 0x55;
const IF_ANY_BIT: u8 = 0x45;

/// SIGCONT discards pending stop signals, and SIGSTOP a pending SIGCONT (`prepare_signal` in kernel/signal.c).
const JOB_CONTROL: i32 = 1 << (libc::SIGCONT - 1)
    | 1 << (libc::SIGSTOP - 1)
    | 1 << (libc::SIGTSTP - 1)
    | 1 << (libc::SIGTTIN - 1)
    | 1 << (libc::SIGTTOU - 1);

/// Assembles instructions without loops, with jumps to their end. Register 6 has the address of the current task.
#[derive(Default)]
struct Assembler {
    instructions: Vec<bpf_insn>,
    /// Indices of jumps to the end.
    to_end: Vec<usize>,
}

impl Assembler {
    fn add(&mut self, code: u8, [to, from]: [u8; 2], off: i16, imm: i32) {
        let registers = bpf_insn::new_bitfield_1(to, from);
        self.instructions.push(bpf_insn { off, imm, _bitfield_1: registers, ..instruction(code) });
    }

    fn end_if(&mut self, condition: u8, register: u8, imm: i32) {
        self.to_end.push(self.instructions.len());
        self.add(condition, [register, 0], 0, imm);
    }

    /// Reads 4 or 8 bytes at an offset from the address in a register into register 1. Ends the program if they cannot be read.
    fn read(&mut self, from: u8, offset: u32, bytes: i32) -> io::Result<()> {
        self.add(COPY, [3, from], 0, 0);
        self.add(ADD, [3, 0], 0, number(offset)?);
        self.add(COPY, [1, 10], 0, 0);
        self.add(ADD, [1, 0], 0, -8);
        self.add(SET, [2, 0], 0, bytes);
        self.add(CALL, [0, 0], 0, PROBE_READ_KERNEL);
        self.end_if(IF_NOT_EQUAL, 0, 0);
        self.add(if bytes == 4 { LOAD_4 } else { LOAD_8 }, [1, 10], -8, 0);
        Ok(())
    }

    /// Reads bytes at an offset of the structure to which the task has a pointer into register 1. Ends the program if they cannot
    /// be read.
    fn read_through(&mut self, pointer: u32, offset: u32, bytes: i32) -> io::Result<()> {
        self.read(6, pointer, 8)?;
        self.add(COPY, [7, 1], 0, 0);
        self.read(7, offset, bytes)
    }

    /// Sends a signal to the process. Ends the program if that fails.
    fn send(&mut self, signal: i32) {
        self.add(SET, [1, 0], 0, signal);
        self.add(CALL, [0, 0], 0, SEND_SIGNAL);
        self.end_if(IF_NOT_EQUAL, 0, 0);
    }

    fn set_word(&mut self, word: &OwnedFd, value: i32) {
        self.add(LOAD_ADDRESS, [1, MAP_VALUE], 0, word.as_raw_fd());
        self.add(0, [0, 0], 0, 0);
        self.add(STORE_4, [1, 0], 0, value);
    }

    fn end(mut self) -> Vec<bpf_insn> {
        let end = self.instructions.len();
        for jump in self.to_end {
            // The program has fewer than 200 instructions.
            self.instructions[jump].off = i16::try_from(end - jump - 1).unwrap_or(i16::MAX);
        }
        self.instructions.push(instruction(EXIT));
        self.instructions
    }
}

/// Assembles the program. If the parent exits between its two tests, the program itself resumes the process: the kernel has sent
/// its signal by then, perhaps before the stop.
fn program(pid: Pid, parent: Pid, layout: &ExecStopLayout, word: &OwnedFd) -> io::Result<Vec<bpf_insn>> {
    let mut code = Assembler::default();
    code.add(CALL, [0, 0], 0, GET_CURRENT_PID_TGID);
    code.add(SHIFT_RIGHT, [0, 0], 0, 32);
    code.end_if(IF_NOT_EQUAL, 0, number(pid.0)?);
    code.add(CALL, [0, 0], 0, GET_CURRENT_TASK);
    code.add(COPY, [6, 0], 0, 0);
    code.read(6, layout.ptrace, 4)?;
    code.end_if(IF_NOT_EQUAL, 1, 0);
    code.read(6, layout.pdeath_signal, 4)?;
    code.end_if(IF_NOT_EQUAL, 1, libc::SIGCONT);
    code.read(6, layout.pending, 8)?;
    code.end_if(IF_ANY_BIT, 1, JOB_CONTROL);
    code.read_through(layout.signal, layout.shared_pending, 8)?;
    code.end_if(IF_ANY_BIT, 1, JOB_CONTROL);
    code.read_through(layout.real_parent, layout.tgid, 4)?;
    code.end_if(IF_NOT_EQUAL, 1, number(parent.0)?);
    code.send(libc::SIGSTOP);
    code.set_word(word, 1);
    code.read_through(layout.real_parent, layout.tgid, 4)?;
    code.end_if(IF_EQUAL, 1, number(parent.0)?);
    code.send(libc::SIGCONT);
    code.set_word(word, 0);
    Ok(code.end())
}

/// Converts a number to an immediate operand.
fn number(number: u32) -> io::Result<i32> {
    i32::try_from(number).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}
