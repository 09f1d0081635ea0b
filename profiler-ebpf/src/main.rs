//! Entry points of the kernel side, one per call shape and direction; each only hands over to its hook.
//!
//! They are written out instead of through aya's `#[uprobe]`, because that macro drops the program's return value, which
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
mod sample;
mod scratch;
mod stack;

use core::ffi::c_void;

use hook::Call;

/// `malloc`-like: the block is the return value.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn alloc_entry(ctx: *mut c_void) -> u32 {
    hook::alloc::entry(&Call::new(ctx))
}

/// `posix_memalign`-like: the block is stored through a pointer, the return value is an error number.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn alloc_out_entry(ctx: *mut c_void) -> u32 {
    hook::alloc::entry_out(&Call::new(ctx))
}

/// `realloc`-like.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn realloc_entry(ctx: *mut c_void) -> u32 {
    hook::realloc::entry(&Call::new(ctx))
}

/// `free`-like.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
extern "C" fn free_entry(ctx: *mut c_void) -> u32 {
    hook::free::entry(&Call::new(ctx))
}

/// The return of any call that allocates.
#[unsafe(no_mangle)]
#[unsafe(link_section = "uretprobe")]
extern "C" fn call_return(ctx: *mut c_void) -> u32 {
    hook::finish(&Call::new(ctx))
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // The programs cannot panic: a reachable panic would not pass the verifier, which refuses endless loops.
    loop {}
}
