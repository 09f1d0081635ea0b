//! Files of `/proc/PID`, and what a process may be called by: its arguments, its executable, and patterns of users.

#![no_main]

use heapbpf::fuzzing;
use heapbpf::proc::auxv::Auxv;
use heapbpf::target::module_pattern::ModulePattern;
use heapbpf::target::names::Names;
use heapbpf::target::pattern::Pattern;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzzing::proc_file(bytes);
    let _ = Auxv::parse(bytes).map(|auxv| auxv.get(3));
    let text = String::from_utf8_lossy(bytes);
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let arguments: Vec<String> = rest.split('\0').map(str::to_owned).collect();
    let names = Names::of(&arguments, arguments.last().map(String::as_str), "comm");
    let _ = first.parse::<Pattern>().map(|pattern| pattern.matches(&names));
    // The longest path of the kernel's, and the longest pattern of users'.
    let short = |text: &str| text.chars().take(4096).collect::<String>();
    let _ = ModulePattern::new(&short(first)).matches(&short(rest));
});
