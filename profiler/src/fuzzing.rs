//! Entry points for the fuzz targets in `fuzz/` to private parsers. Panics if a result violates an invariant.

use heapbpf_base::address::LinkAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use heapbpf_ledger::ingest::decode;
use heapbpf_ledger::ingest::record::Record;
use heapbpf_ledger::model::{Pod, Workload};
use heapbpf_linux::proc::process::Auxv;
use heapbpf_linux::proc::{maps, process, stat};

use crate::collect::memory as process_copies;
use crate::interpreter;
use crate::interpreter::implementation::{NamedCode, Sent};
use crate::object::interpreted::CodeBody;
use crate::process::link_map::{LinkMap, Memory};
use crate::symbolize::demangle::demangle;
use crate::symbolize::element::{self, Qualified, implemented};
use crate::symbolize::generated;
use crate::symbolize::sandbox;
use crate::unwind::Table;
use crate::unwind::table::CHECKED_FROM;

/// Decodes a record, and searches the lines of a code object.
pub fn record(bytes: &[u8]) {
    if let Ok(Record::Code(record)) = decode(bytes)
        && let Ok(Sent::Named(_, NamedCode { code, .. })) = interpreter::decode(&record)
        && let CodeBody::Function(function) = &code.body
    {
        let last = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        for unit in [0, 1, 7, last / 2, last, u32::MAX] {
            let _ = function.lines.at(unit);
        }
    }
}

pub fn proc_file(bytes: &[u8]) {
    for line in bytes.split(|&byte| byte == b'\n') {
        let _ = (maps::parse_mapping(line), maps::parse_region(line), process_copies::mapping_start(line));
    }
    let text = shown::text(bytes);
    for line in text.lines() {
        let _ = (process::of_epoll(line), process::of_timer(line), process::number(line));
        let _ = (Workload::of_cgroup(line), Pod::of_directory(line));
    }
    let _ = (stat::parse(&text, 4096), stat::parse_status(&text), process::parse_cgroups(&text));
}

/// Reads a link map. `read` copies memory. Returns the number of `biases` in the list.
pub fn link_map(auxv: &[u8], read: &dyn Fn(u64, &mut [u8]) -> Option<()>, biases: &[u64]) -> Option<usize> {
    struct Borrowed<'a>(&'a dyn Fn(u64, &mut [u8]) -> Option<()>);
    impl Memory for Borrowed<'_> {
        fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
            (self.0)(address, bytes)
        }
    }
    let map = LinkMap::read_from(Pid(1), &Borrowed(read), &Auxv::parse(auxv)?)?;
    Some(biases.iter().filter_map(|&bias| map.position(bias)).count())
}

/// Panics unless a table is consistent, survives encoding for the cache, and can be searched at all addresses.
pub fn unwind_table(table: &Table) {
    const NAME: &[u8] = b"fuzz";
    assert!(table.is_consistent(), "the table is inconsistent");
    assert_eq!(Table::decode(NAME, &table.encode(NAME)).as_ref(), Some(table), "the cache changes a table");
    for (number, page) in (0..).zip(&table.pages) {
        for row in &table.rows[page.first as usize..page.end as usize] {
            let _ = table.lookup(LinkAddr(
                table.base.0 + (number << profiler_common::unwind::PAGE_BITS) + u64::from(row.pc_low),
            ));
        }
    }
    let _ = (table.lookup(LinkAddr(0)), table.lookup(LinkAddr(u64::MAX)));
}

pub fn unwind_cache(bytes: &[u8]) {
    const NAME: &[u8] = b"fuzz";
    let _ = Table::decode(NAME, bytes);
    let Some(checked) = bytes.get(CHECKED_FROM..) else { return };
    let mut sealed = bytes.to_vec();
    sealed[CHECKED_FROM - 4..CHECKED_FROM].copy_from_slice(&crc32fast::hash(checked).to_le_bytes());
    if let Some(table) = Table::decode(NAME, &sealed) {
        unwind_table(&table);
    }
}

pub fn symbol_name(symbol: &str) {
    let name = demangle(symbol);
    for name in [symbol, &name] {
        let _ = element::element_of(name);
        let _ = (Qualified::of_function(name), Qualified::of_type(name), implemented(name));
    }
}

/// Exercises the formats of just-in-time compilers: a perf map or a jitdump, searched at an address and a time.
pub fn generated_code(is_dump: bool, bytes: &[u8], address: u64, time_ns: u64) {
    generated::exercise(is_dump, bytes, address, time_ns);
}

/// Exercises source maps: a map, or a URL with it, and places in its script.
pub fn source_map(bytes: &[u8], spots: &[(u32, u32)]) {
    sandbox::exercise(bytes, spots);
}
