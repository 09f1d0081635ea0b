//! Entry points of the kernel side, one per kind of link; each only hands over to the hooks.
//!
//! A link has one program for all its probes, so that a whole allocator is attached and detached in one step. What a probe
//! is comes with its cookie. The entry points are written out instead of through aya's `#[uprobe]`, because that macro drops the program's return value, which
//! a session probe needs to skip the return.

#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod bounds;
mod config;
mod counter;
mod emit;
mod hook;
mod inflight;
mod live;
mod maps;
mod private_stack;
mod process;
mod sample;
mod scratch;
mod stack;

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_func_ip;

use hook::Call;
use maps::{HOOK_TAIL_CALLS, PROCESS_TAIL_CALLS};
use process::Arguments;

/// The entry of any hooked function, for links that see entries alone.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn hook_entry(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &HOOK_TAIL_CALLS);
    hook::entry(&Call::new(ctx));
    0
}

/// The return of any hooked function that allocates, for links that see returns alone.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uretprobe")]
extern "C" fn hook_return(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &HOOK_TAIL_CALLS);
    hook::finish(&Call::new(ctx));
    0
}

/// Entry and return of any hooked function, for links of the session kind (Linux 6.13): 1 at the entry skips the return,
/// which saves the second trap of every call that is not sampled.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn hook_session(ctx: *mut c_void) -> u32 {
    private_stack::deny(ctx, &HOOK_TAIL_CALLS);
    let call = Call::new(ctx);
    // The kernel function that tells the two apart needs kfunc relocation, which aya-obj 0.3 has not. At the entry the
    // program runs where it was attached, at the return elsewhere.
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

// The raw tracepoints `sched_process_exec` and `sched_process_exit`.
copies!(process::executed: process_exec_0 0; process_exec_1 1; process_exec_2 2; process_exec_3 3;);
copies!(process::ended: process_exit_0 0; process_exit_1 1;);

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // The programs cannot panic: a reachable panic would not pass the verifier, which refuses endless loops.
    loop {}
}
