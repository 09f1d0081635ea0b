//! Tables for spreadsheets.

use super::{check_golden, render};
use crate::testing as profiles;
use crate::{Format, Presentation, View};

#[test]
fn goldens() {
    for (name, profile, view) in [
        ("exact", profiles::exact(), View::LiveBytes),
        ("sampled", profiles::sampled(), View::AllocBytes),
        ("empty", profiles::empty(), View::LiveBytes),
    ] {
        check_golden(&format!("csv/{name}.csv"), &render(Format::Csv, &profile, view));
        check_golden(&format!("csv/{name}.functions.csv"), &render(Format::CsvFunctions, &profile, view));
    }
}

#[test]
fn names_that_a_spreadsheet_evaluates_are_marked_unless_they_are_wanted_raw() {
    for (name, marked) in [
        ("=1+2", "'=1+2"),
        ("+1", "'+1"),
        ("-cmd|' /C calc'!A0", "'-cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'=1"),
        ("＝1", "'＝1"),
        ("=a,b", "\"'=a,b\""),
        ("\u{feff}=1", "'\u{fffd}=1"),
        ("\u{200b}=1", "'\u{fffd}=1"),
        ("\u{61c} =1", "'\u{fffd} =1"),
        ("\u{202e}=1", "'\u{fffd}=1"),
        ("operator=", "operator="),
    ] {
        let mut profile = profiles::exact();
        profile.targets[0].facts.comm = name.to_owned();
        let table = |csv_raw| {
            let presentation = Presentation { csv_raw, ..Presentation::default() };
            let mut out = Vec::new();
            Format::Csv.write(&profile, &presentation, &mut out).expect("vectors accept all bytes");
            String::from_utf8(out).expect("text")
        };
        assert!(table(false).contains(&format!(",{marked},")), "{name}: {}", table(false));
        let raw = marked.replacen('\'', "", usize::from(marked != name));
        assert!(table(true).contains(&format!(",{raw},")), "{name}: {}", table(true));
    }
}

/// The cells of a line (RFC 4180).
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            _ => cells.last_mut().expect("there is one").push(character),
        }
    }
    cells
}

#[test]
fn rows_have_the_columns_of_the_header_and_add_up() {
    for format in [Format::Csv, Format::CsvFunctions] {
        for profile in [profiles::exact(), profiles::sampled(), profiles::mixed()] {
            let text = render(format, &profile, View::LiveBytes);
            let rows: Vec<Vec<String>> = text.lines().map(cells).collect();
            let header = rows[0].clone();
            assert!(rows.iter().all(|row| row.len() == header.len()), "{text}");
            let name = if format == Format::Csv { "live_bytes" } else { "self_live_bytes" };
            let column = header.iter().position(|cell| cell == name).expect(name);
            let sum: u64 = rows[1..].iter().map(|row| row[column].parse::<u64>().expect("a number")).sum();
            let expected: u64 = profile.callsites().map(|(_, site)| View::LiveBytes.of_callsite(site)).sum();
            assert_eq!(sum, expected, "{text}");
        }
    }
}
