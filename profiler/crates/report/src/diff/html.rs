//! A page of a difference: totals, the flame graph, and tables of all callsites that grew and shrank. It needs neither a
//! network nor, except for the flame graph's zoom and search, scripts.

use std::io;

use heapbpf_base::shown;
use quick_xml::escape::escape;

use super::comparison::{Delta, Diff};
use super::describe as words;
use super::flamegraph::{self, Drawing};
use super::table::{Row, changed_rows};
use crate::{ReportError, View, text};

const STYLE: &str = include_str!("page.css");

/// Beyond it, the page would be slow. The JSON report has all callsites.
const ROWS_MAX: usize = 2000;

pub(super) fn write(diff: &Diff<'_>, view: View, drawing: Drawing, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let [before, after] = [diff.before, diff.after].map(words::name);
    let title = format!("growth of {} of {} · {before} → {after}", view.title(), words::subject(diff));
    let title = escape(&title);
    writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    )?;
    about(diff, view, out)?;
    totals(diff, out)?;
    writeln!(out, "<figure>")?;
    let mut image = Vec::new();
    flamegraph::write(diff, view, drawing, &mut image)?;
    let image = shown::text(&image);
    // The XML declaration and the document type are not part of HTML.
    out.write_all(image.find("<svg").map_or("", |start| &image[start..]).as_bytes())?;
    writeln!(out, "</figure>")?;
    let (grew, shrank): (Vec<_>, Vec<_>) =
        changed_rows(diff, view).into_iter().partition(|(_, delta)| delta.growth(view) > 0.0);
    rows(diff, view, "Grew", &grew, out)?;
    rows(diff, view, "Shrank", &shrank, out)?;
    Ok(writeln!(out, "</body>\n</html>")?)
}

fn about(diff: &Diff<'_>, view: View, out: &mut dyn io::Write) -> io::Result<()> {
    let sides = [("before", diff.before), ("after", diff.after)];
    let mut lines: Vec<String> = sides
        .iter()
        .map(|(when, side)| format!("{when}: {} · {}", words::name(*side), words::side(side.profile)))
        .collect();
    lines.extend(words::notes(diff, view));
    lines.extend(words::losses(diff).iter().map(|loss| format!("incomplete: {loss}")));
    writeln!(out, "<ul>")?;
    lines.iter().try_for_each(|line| writeln!(out, "<li>{}</li>", escape(line.as_str())))?;
    writeln!(out, "</ul>")
}

fn totals(diff: &Diff<'_>, out: &mut dyn io::Write) -> io::Result<()> {
    let total = diff.total();
    head(&["", "before", "after", "growth", "95 % interval"], out)?;
    for view in View::ALL {
        let [before, after] = [&total.before, &total.after].map(|side| view.amount(view.rounded(side)));
        let range = words::range(view, &total).unwrap_or_else(|| "exact".to_owned());
        let growth = words::signed(view, total.growth(view));
        row([view.title(), &before, &after, &growth, &range], class(view, &total), out)?;
    }
    writeln!(out, "</tbody>\n</table>")
}

fn rows(
    diff: &Diff<'_>,
    view: View,
    heading: &str,
    rows: &[(Row<'_>, Delta)],
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let count = text::counted(rows.len() as u64, "callsite");
    let shown =
        if rows.len() > ROWS_MAX { format!(", the largest {}", text::count(ROWS_MAX as u64)) } else { String::new() };
    writeln!(out, "<h2>{heading}: {count}{shown}</h2>")?;
    if rows.is_empty() {
        return Ok(());
    }
    head(&["growth", "before", "after", "95 % interval", "program", "heap", "where"], out)?;
    for (callsite, delta) in rows.iter().take(ROWS_MAX) {
        let [before, after] = [&delta.before, &delta.after].map(|side| view.amount(view.rounded(side)));
        let range = match words::range(view, delta) {
            Some(range) if delta.is_noise(view) => format!("{range} (noise)"),
            Some(range) => range,
            None => "exact".to_owned(),
        };
        let program = callsite.program.map(|program| diff.programs[program].name()).unwrap_or_default();
        let growth = words::signed(view, delta.growth(view));
        let heap = callsite.heap.unwrap_or_default();
        row([&growth, &before, &after, &range, &program, heap, &callsite.chain], class(view, delta), out)?;
    }
    writeln!(out, "</tbody>\n</table>")
}

fn class(view: View, delta: &Delta) -> &'static str {
    match delta.growth(view) {
        _ if !delta.is_exact() && delta.is_noise(view) => "noise",
        growth if growth > 0.0 => "grew",
        growth if growth < 0.0 => "shrank",
        _ => "same",
    }
}

fn head(columns: &[&str], out: &mut dyn io::Write) -> io::Result<()> {
    let cells: String = columns.iter().map(|column| format!("<th scope=\"col\">{column}</th>")).collect();
    writeln!(out, "<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>")
}

fn row<const N: usize>(cells: [&str; N], class: &str, out: &mut dyn io::Write) -> io::Result<()> {
    let cells = cells.map(|cell| format!("<td>{}</td>", escape(text::printable(cell))));
    writeln!(out, "<tr class=\"{class}\">{}</tr>", cells.concat())
}
