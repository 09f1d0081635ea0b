//! Writes measured tables into a page of docs/, between two comments that mark their place.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Replaces what stands between `<!-- bench NAME -->` and `<!-- end NAME -->`.
pub(crate) fn write(path: &Path, name: &str, text: &str) -> Result<()> {
    let page = fs::read_to_string(path).with_context(|| format!("could not read `{}`", path.display()))?;
    let Some(page) = replaced(&page, name, text) else {
        bail!("`{}` has no place marked by `{}` and `{}`", path.display(), opening(name), closing(name));
    };
    fs::write(path, page).with_context(|| format!("could not write `{}`", path.display()))
}

fn opening(name: &str) -> String {
    format!("<!-- bench {name} -->")
}

fn closing(name: &str) -> String {
    format!("<!-- end {name} -->")
}

fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let begin = page.find(&opening(name))? + opening(name).len();
    let end = begin + page[begin..].find(&closing(name))?;
    Some(format!("{}\n{}\n{}", &page[..begin], text.trim_end(), &page[end..]))
}

/// A table in Markdown. The first column is text, the others are numbers.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let rule: Vec<String> = (0..head.len()).map(|i| if i == 0 { "---" } else { "---:" }.to_owned()).collect();
    let mut text = line(&head) + &line(&rule).replace(' ', "");
    rows.iter().for_each(|row| text.push_str(&line(row)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marked_place_changes() {
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
}
