//! What a figure was measured on, in one line. Names no host and no user.

use std::fs;

/// Processor, number of processors, and kernel.
pub(crate) fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, Linux {}", processors(&cpuinfo), kernel.trim())
}

fn processors(cpuinfo: &str) -> String {
    let models: Vec<&str> = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.trim() == "model name")
        .map(|(_, model)| model.trim())
        .collect();
    let virtual_machine = if cpuinfo.contains(" hypervisor") { ", virtual machine" } else { "" };
    match models.first() {
        Some(model) => format!("{} × {model}{virtual_machine}", models.len()),
        None => "unknown processor".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        let cpuinfo = "model name\t: Fast 9000\nflags\t: fpu hypervisor\nmodel name\t: Fast 9000\n";
        assert_eq!(processors(cpuinfo), "2 × Fast 9000, virtual machine");
        assert_eq!(processors(""), "unknown processor");
    }
}
