//! Entry points of the kernel side, one per kind of link.
//!
//! A link has one program for all its probes, so that a whole allocator is attached and detached in one step. The cookie
//! describes the probe. The entry points do not use aya's `#[uprobe]`, because that macro drops the program's return value,
//! which a session probe needs to skip the return.
//!
//! `hook` and `process` have what the entry points call. `sample` decides about a call, `walk` unwinds its stack with the files of
//! the interpreters, and `emit` writes records. The files of one walk use each other: a stack of an interpreter continues in native
//! frames, and these in another interpreter.

#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod arch;
mod asm;
mod call;
mod code;
mod config;
mod copy;
mod cpython;
mod emit;
mod fault;
mod frames;
mod helpers;
mod hook;
mod hotspot;
mod inflight;
mod interpreter;
mod layout;
mod limits;
mod live;
mod machine;
mod mapped;
mod maps;
mod php;
mod private_stack;
mod process;
mod remap;
mod returns;
mod ruby;
mod sample;
mod scratch;
mod seen;
mod stack;
mod v8;
mod walk;
mod window;

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_func_ip;

use call::Call;
use maps::{FREE_TAIL_CALLS, HOOK_TAIL_CALLS, PROCESS_TAIL_CALLS};
use process::Arguments;
use profiler_common::hook::Site;

/// Entry of any hooked function, for links of entries.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn hook_entry(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &HOOK_TAIL_CALLS);
    if let Some(call) = Call::at_entry(ctx) {
        hook::entry(&call);
    }
    0
}

/// Return of any hooked function that allocates, for links of returns.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uretprobe")]
extern "C" fn hook_return(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &HOOK_TAIL_CALLS);
    if let Some(call) = Call::at_return(ctx) {
        hook::finish(&call);
    }
    0
}

/// Entry of functions that free, for links of entries beside session links. A session link calls its program at the return as well if
/// another process has one on the same function (`uprobe_multi_link_handler` in kernel/trace/bpf_trace.c).
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn hook_free(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &FREE_TAIL_CALLS);
    hook::free(&Call::new(ctx));
    0
}

/// Entry and return in the stubs of the inline engine, for links of entries.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn hook_stub(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &FREE_TAIL_CALLS);
    let call = Call::new(ctx);
    if call.cookie.site() == Site::StubReturn as u8 {
        hook::finish(&call);
    } else {
        hook::entry(&call);
    }
    0
}

/// Entry and return of any hooked function, for session links (Linux 6.13). A result of 1 at the entry skips the return, which
/// saves the second trap of every unsampled call.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn hook_session(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &HOOK_TAIL_CALLS);
    let call = Call::new(ctx);
    // The kernel function that distinguishes the two needs kfunc relocation, which aya-obj 0.3 lacks. At the entry the
    // instruction pointer is the attached address, at the return it is not.
    // SAFETY: `ctx` is the program's own context.
    if unsafe { bpf_get_func_ip(ctx) } == call.ip() {
        return !hook::entry(&call) as u32;
    }
    hook::finish(&call);
    0
}

/// The raw tracepoint `sched_wakeup_new`: see [`process::forked`].
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
extern "C" fn process_fork(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &PROCESS_TAIL_CALLS);
    process::forked(&Arguments::new(ctx));
    0
}

/// Several copies of a program for one raw tracepoint: see [`process`].
macro_rules! copies {
    ($handle:path: $($name:ident $argument:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(link_section = "raw_tp")]
            extern "C" fn $name(ctx: *mut c_void) -> u32 {
                private_stack::deny(ctx, &PROCESS_TAIL_CALLS);
                $handle(&Arguments::new(ctx), $argument);
                0
            }
        )*
    };
}

// The raw tracepoints `vm_unmapped_area`, `sched_process_exec` and `sched_process_exit`.
copies!(mapped::mapped: area_mapped_0 0; area_mapped_1 1;);
copies!(process::executed: process_exec_0 0; process_exec_1 1; process_exec_2 2; process_exec_3 3;);
copies!(process::exited: process_exit_0 0; process_exit_1 1;);

/// The raw tracepoints `page_fault_user` and `page_fault_kernel`: see [`fault`].
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
extern "C" fn page_fault(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &PROCESS_TAIL_CALLS);
    fault::faulted(&Arguments::new(ctx));
    0
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // The programs cannot panic: a reachable panic would not pass the verifier, which rejects infinite loops.
    loop {}
}
