//! Tables of measurements: formats them, describes the machine, and writes them into pages of docs/.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::command;

/// Replaces the text between `<!-- bench NAME -->` and `<!-- end NAME -->`.
pub(crate) fn write(path: &Path, name: &str, text: &str) -> Result<()> {
    let page = fs::read_to_string(path).with_context(|| format!("could not read `{}`", path.display()))?;
    let (start, end) = markers(name);
    let Some(page) = replaced(&page, name, text) else {
        bail!("`{}` has no section between `{start}` and `{end}`", path.display());
    };
    fs::write(path, page).with_context(|| format!("could not write `{}`", path.display()))
}

fn markers(name: &str) -> (String, String) {
    (format!("<!-- bench {name} -->"), format!("<!-- end {name} -->"))
}

fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let (start, end) = markers(name);
    let start = page.find(&start)? + start.len();
    let end = start + page[start..].find(&end)?;
    Some(format!("{}\n{}\n{}", &page[..start], text.trim_end(), &page[end..]))
}

/// A table in Markdown. The first column is text, the others are numbers.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let rule: Vec<String> = (0..head.len()).map(|i| if i == 0 { "---" } else { "---:" }.to_owned()).collect();
    let rows = rows.iter().map(|row| line(row));
    [line(&head), line(&rule).replace(' ', "")].into_iter().chain(rows).collect()
}

/// Processors, kernel and date of a measurement. Contains no names of hosts or users.
pub(crate) fn provenance() -> Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let day = command::output(Command::new("date").args(["--utc", "+%Y-%m-%d"]))?;
    Ok(format!("Measured on {}, Linux {}, {}.", processors(&cpuinfo), kernel.trim(), day.trim()))
}

fn processors(cpuinfo: &str) -> String {
    let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let models: Vec<&str> = fields.filter(|(name, _)| name.trim() == "model name").map(|(_, it)| it.trim()).collect();
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
    fn only_the_marked_section_changes() {
        let page = "a\n<!-- bench x -->\nold\n<!-- end x -->\nb\n<!-- bench y -->\n<!-- end y -->\n";
        let new = replaced(page, "x", "new\n").expect("it is marked");
        assert_eq!(new, "a\n<!-- bench x -->\nnew\n<!-- end x -->\nb\n<!-- bench y -->\n<!-- end y -->\n");
        assert_eq!(replaced(&new, "x", "new").as_deref(), Some(new.as_str()));
        assert_eq!(replaced(page, "z", ""), None);
    }

    #[test]
    fn tables() {
        let row = vec!["a".to_owned(), "1".to_owned()];
        assert_eq!(table(&["name", "n"], &[row]), "| name | n |\n|---|---:|\n| a | 1 |\n");
    }

    #[test]
    fn processors_are_counted() {
        let cpuinfo = "model name\t: Fast 9000\nflags\t: fpu hypervisor\nmodel name\t: Fast 9000\n";
        assert_eq!(processors(cpuinfo), "2 × Fast 9000, virtual machine");
        assert_eq!(processors(""), "unknown processor");
    }
}
