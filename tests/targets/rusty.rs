//! A Rust program with the protocol of the C targets: `ready`, a command in, a ledger out.
//!
//! Sites are pairs of functions like those of `throwing.cpp`: the outer one is the site.

use std::hint::black_box;
use std::io::{Read, Write};

const COUNT: usize = 200;
const BYTES: usize = 3000;

#[inline(never)]
fn makes_vector(bytes: usize) -> Vec<u8> {
    black_box(Vec::with_capacity(bytes))
}

#[inline(never)]
fn leaks_vectors() {
    for _ in 0..COUNT {
        std::mem::forget(black_box(makes_vector(BYTES)));
    }
}

#[inline(never)]
fn drops_vectors() {
    for _ in 0..COUNT {
        drop(black_box(makes_vector(BYTES)));
    }
}

fn answer(text: &str) {
    // Writes directly to the file: `stdout()` would allocate its buffer.
    let mut stdout = std::mem::ManuallyDrop::new(std::fs::File::from(std::os::fd::OwnedFd::from(
        std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned().expect("stdout is open"),
    )));
    stdout.write_all(text.as_bytes()).expect("somebody reads");
}

fn read_line() -> bool {
    let mut byte = [0];
    let mut stdin = std::io::stdin().lock();
    loop {
        match stdin.read(&mut byte) {
            Ok(1) if byte[0] == b'\n' => return true,
            Ok(1) => {}
            _ => return false,
        }
    }
}

fn site(name: &str, freed: usize) -> String {
    format!(
        r#"{{"function":"{name}","line":0,"alloc_count":{COUNT},"alloc_bytes":{},"free_count":{freed},"free_bytes":{},"live_count":{},"live_bytes":{}}}"#,
        COUNT * BYTES,
        freed * BYTES,
        COUNT - freed,
        (COUNT - freed) * BYTES
    )
}

fn main() {
    answer("ready\n");
    if !read_line() {
        return;
    }
    leaks_vectors();
    drops_vectors();
    let sites = [site("leaks_vectors", 0), site("drops_vectors", COUNT)].join(",");
    answer(&format!("{{\"peak_bytes\":0,\"sites\":[{sites}]}}\n"));
    // The next line is always `exit`.
    read_line();
}
