//! gcc's and rustc's compilers proper, at work on big sources made for it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::super::program::{Program, READY_WITHIN, Running};
use crate::bench::process::{Guarded, bound, comm, descendants};
use crate::command;

pub(in super::super) const CC1: Program =
    Program { name: "cc1", load: "gcc -O2 of a big C file", interval_bytes: 128, seconds: 4, start: start_cc1 };

pub(in super::super) const RUSTC: Program =
    Program { name: "rustc", load: "a big Rust file, optimised", interval_bytes: 128, seconds: 4, start: start_rustc };

/// Functions in a source: several times what is compiled while it is profiled.
const FUNCTIONS: usize = 12_000;

fn start_cc1(folder: &Path) -> Result<Running> {
    let source = folder.join("big.c");
    fs::write(&source, c_source())?;
    let mut gcc = bound("gcc");
    gcc.args(["-O2", "-g", "-c", "-o"]).arg(folder.join("big.o")).arg(&source);
    let mut gcc = Guarded::spawn(&mut gcc)?;
    let compiler = gcc.until(READY_WITHIN, |pid| descendants(pid).into_iter().find(|&child| comm(child) == "cc1"))?;
    Ok(Running { pids: vec![compiler], guards: vec![gcc] })
}

fn start_rustc(folder: &Path) -> Result<Running> {
    let source = folder.join("big.rs");
    fs::write(&source, rust_source())?;
    // What is in `PATH` may be rustup's, which starts the compiler as another process.
    let root = command::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let mut rustc = bound(Path::new(root.trim()).join("bin/rustc"));
    rustc.args(["--edition=2024", "--crate-type=lib", "-O", "--out-dir"]).arg(folder).arg(&source);
    Ok(Running::alone(Guarded::spawn(&mut rustc)?))
}

fn c_source() -> String {
    let function = |i: usize| {
        format!(
            "struct s{i} {{ int a, b[{n}]; double c; struct s{i} *next; }};
static int sum{i}(const struct s{i} *s) {{ int t = 0; for (int i = 0; i < {n}; i++) t += s->b[i] * s->a; return t; }}
int walk{i}(struct s{i} *s, int key) {{
    int found = 0;
    while (s) {{
        switch ((s->a ^ key) & 7) {{
        case 0: found += sum{i}(s); break;
        case 1: s->c *= 1.5; break;
        case 2: for (int i = 0; i < {n}; i += 2) s->b[i] = key + i; break;
        case 3: if (s->next && s->next->a > s->a) {{ found--; s = s->next; continue; }} break;
        default: found ^= key >> (s->a & 15);
        }}
        s = s->next;
    }}
    return found;
}}
",
            n = i % 13 + 3
        )
    };
    (0..FUNCTIONS).map(function).collect()
}

fn rust_source() -> String {
    let function = |i: usize| {
        format!(
            "#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct S{i} {{ pub name: String, pub values: Vec<u{width}>, pub next: Option<Box<S{i}>> }}
pub fn walk{i}(items: &[S{i}], key: u64) -> std::collections::BTreeMap<String, u64> {{
    let mut found = std::collections::BTreeMap::new();
    for item in items.iter().filter(|item| item.values.len() as u64 > key % {n}) {{
        let total: u64 = item.values.iter().map(|value| u64::from(*value)).sum();
        *found.entry(format!(\"{{}}-{{key:x}}\", item.name)).or_insert(0) += total;
    }}
    found
}}
",
            width = [8, 16, 32][i % 3],
            n = i % 13 + 3
        )
    };
    (0..FUNCTIONS / 8).map(function).collect()
}
