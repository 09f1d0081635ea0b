//! Medians, ratios and limits of few measurements; tables of them, which describe the machine, in pages of docs/.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context as _, Result, bail};

use crate::command;

#[derive(Clone, Debug)]
pub(crate) struct Spread {
    sorted: Vec<f64>,
}

impl Spread {
    /// Panics without values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        assert!(!sorted.is_empty(), "no measurements");
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    pub(crate) fn median(&self) -> f64 {
        let count = self.sorted.len();
        f64::midpoint(self.sorted[(count - 1) / 2], self.sorted[count / 2])
    }

    pub(crate) fn min(&self) -> f64 {
        self.sorted[0]
    }

    pub(crate) fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", self.median(), self.min(), self.max())
    }
}

/// Measures all variants in each round: a disturbance then affects all variants of a round. Returns the results by variant.
pub(crate) fn alternate<V, T>(
    rounds: usize,
    variants: &[V],
    mut measure: impl FnMut(&V) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = variants.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds.max(1) {
        for (variant, results) in variants.iter().zip(&mut results) {
            results.push(measure(variant)?);
        }
    }
    Ok(results)
}

pub(crate) fn ratios(variant: &[f64], to: &[f64]) -> Spread {
    Spread::of(variant.iter().zip(to).map(|(variant, to)| variant / to))
}

pub(crate) fn verdict(figure: f64, limit: f64) -> &'static str {
    if figure <= limit { "met" } else { "**not met**" }
}

pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

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

pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rule = format!("|---|{}", "---:|".repeat(head.len() - 1));
    let rows = rows.iter().map(|row| row.join(" | "));
    let lines = [head.join(" | ")].into_iter().chain(rows).map(|cells| format!("| {cells} |\n"));
    lines.enumerate().map(|(row, line)| if row == 0 { format!("{line}{rule}\n") } else { line }).collect()
}

pub(crate) type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

pub(crate) fn columns<T>(items: impl IntoIterator<Item = T>, columns: &[Column<'_, T>]) -> String {
    let cells = |item: T| columns.iter().map(|(_, cell)| cell(&item)).collect();
    let heads: Vec<_> = columns.iter().map(|(head, _)| *head).collect();
    table(&heads, &items.into_iter().map(cells).collect::<Vec<_>>())
}

pub(crate) fn pairs(head: [&str; 2], rows: impl IntoIterator<Item = (impl Into<String>, String)>) -> String {
    table(&head, &rows.into_iter().map(|(name, figure)| vec![name.into(), figure]).collect::<Vec<_>>())
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
    fn medians_and_extremes() {
        assert_eq!(Spread::of([3.0, 1.0, 100.0]).to_string(), "3 (1 to 100)");
        assert_eq!(format!("{:.1}", Spread::of([4.0, 1.0, 2.0, 3.0])), "2.5 (1.0 to 4.0)");
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]).to_string(), "2 (2 to 3)");
    }

    #[test]
    fn variants_alternate() {
        let mut order = Vec::new();
        let results = alternate(2, &["a", "b"], |variant| {
            order.push(*variant);
            Ok(order.len())
        });
        assert_eq!(results.expect("no error"), [[1, 3], [2, 4]]);
        assert_eq!(order, ["a", "b", "a", "b"]);
    }

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
        let expected = "| name | n |\n|---|---:|\n| a | 1 |\n";
        assert_eq!(table(&["name", "n"], &[row]), expected);
        assert_eq!(columns([1], &[("name", &|_| "a".to_owned()), ("n", &|n| n.to_string())]), expected);
    }

    #[test]
    fn processors_are_counted() {
        let cpuinfo = "model name\t: Fast 9000\nflags\t: fpu hypervisor\nmodel name\t: Fast 9000\n";
        assert_eq!(processors(cpuinfo), "2 × Fast 9000, virtual machine");
        assert_eq!(processors(""), "unknown processor");
    }
}
