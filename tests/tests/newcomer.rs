//! docs/find-a-leak.md: its commands, run as they are, name the function that leaks.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::binary;
use heapbpf_tests::kernel::require_root;

const PORT: &str = "6399";
const COMMANDS_MAX: usize = 5;

/// The first block of code: all commands from the installation to the page.
fn commands() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/find-a-leak.md");
    let page = fs::read_to_string(&page).unwrap_or_else(|error| panic!("`{}`: {error}", page.display()));
    let block = page.split("```").nth(1).expect("the page has a block of code");
    block.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    listener.local_addr().expect("it is bound").port()
}

#[test]
fn a_newcomer_finds_a_leak_of_redis() {
    require_root();
    let commands = commands();
    assert!(commands.len() <= COMMANDS_MAX, "{commands:#?}");
    assert!(commands[0].contains("apt-get install"), "{commands:#?}");
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    symlink(binary(), directory.path().join("heapbpf")).expect("the directory is ours");
    let port = free_port().to_string();
    // The test is root, the binary is the one under test, and there may be no browser.
    let is_needed = |line: &&String| !line.contains("apt-get") && !line.contains("xdg-open");
    let script: Vec<String> =
        commands.iter().filter(is_needed).map(|line| line.replace("sudo ", "").replace(PORT, &port)).collect();
    let clean_up = format!("trap 'redis-cli -p {port} shutdown nosave; kill $(jobs -p)' EXIT");
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("{clean_up}\n{}", script.join("\n"))]).current_dir(directory.path());
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").expect("there is a PATH"));
    let output = shell.env("PATH", path).output().expect("bash can be started");
    let text = String::from_utf8_lossy(&output.stdout);

    let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("largest")).skip(2).take(10).collect();
    let named = |line: &&&str| line.contains("luaCreateFunction") && line.contains("evalGenericCommand");
    assert!(table.iter().filter(named).count() >= 2, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(directory.path().join("heap.html")).expect("the page is written");
    assert!(page.to_lowercase().starts_with("<!doctype html>"));
}
