//! Parquet, read by the same library's reader: columns, nulls, lists and row groups. DuckDB reads it in
//! `tests/tests/viewers/parquet.rs`.

use std::io::Write as _;
use std::path::Path;

use heapbpf_ledger::model::Profile;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};

use super::written;
use crate::parquet::Writer;
use crate::testing as profiles;
use crate::{Format, Presentation, View};

type File = SerializedFileReader<std::fs::File>;

fn opened(bytes: Vec<u8>) -> File {
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(&bytes).expect("it can be written to");
    SerializedFileReader::new(file).expect("it is Parquet")
}

fn file(profile: &Profile) -> File {
    opened(written(Format::Parquet, profile, View::LiveBytes))
}

fn names(file: &File) -> Vec<String> {
    let schema = file.metadata().file_metadata().schema();
    schema.get_fields().iter().map(|field| field.name().to_owned()).collect()
}

fn rows(file: &File) -> Vec<Row> {
    file.get_row_iter(None).expect("it has rows").collect::<Result<_, _>>().expect("they can be read")
}

#[track_caller]
fn field<'a>(row: &'a Row, name: &str) -> &'a Field {
    row.get_column_iter().find(|(column, _)| *column == name).map(|(_, field)| field).expect("the column exists")
}

#[track_caller]
fn integer(row: &Row, name: &str) -> i64 {
    match field(row, name) {
        Field::Long(number) | Field::TimestampMicros(number) => *number,
        other => panic!("{name} is {other}"),
    }
}

/// The elements of a list; `None` for nulls.
#[track_caller]
fn list(row: &Row, name: &str) -> Vec<Option<String>> {
    let Field::ListInternal(list) = field(row, name) else { panic!("{name} is no list") };
    let text = |field: &Field| match field {
        Field::Null => None,
        Field::Str(text) => Some(text.clone()),
        other => panic!("{name} has {other}"),
    };
    list.elements().iter().map(text).collect()
}

#[test]
fn the_columns_are_those_of_the_documentation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/parquet.md");
    let text = std::fs::read_to_string(path).expect("it is in docs");
    let table =
        text.lines().skip_while(|line| *line != "|---|---|---|").skip(1).take_while(|line| line.starts_with('|'));
    let first = table.map(|line| line.split('|').nth(1).expect("it has cells"));
    let documented: Vec<&str> = first.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    assert_eq!(names(&file(&profiles::exact())), documented);
}

#[test]
fn each_callsite_is_a_row_with_its_amounts() {
    for profile in profiles::all() {
        let file = file(&profile);
        let rows = rows(&file);
        assert_eq!(rows.len(), profile.callsites().count());
        for (name, view) in [
            ("live_bytes", View::LiveBytes),
            ("live_blocks", View::LiveCount),
            ("alloc_bytes", View::AllocBytes),
            ("alloc_blocks", View::AllocCount),
        ] {
            let expected: u64 = profile.callsites().map(|(_, callsite)| view.of_callsite(callsite)).sum();
            let sum: i64 = rows.iter().map(|row| integer(row, name)).sum();
            assert_eq!(u64::try_from(sum), Ok(expected), "{name}");
        }
        for row in &rows {
            assert!(integer(row, "recording_start") <= integer(row, "window_start"));
            assert!(integer(row, "window_start") <= integer(row, "window_end"));
            let lengths = ["stack", "positions", "build_ids"].map(|name| list(row, name).len());
            assert_eq!(lengths, [lengths[0]; 3]);
        }
        let mut stacks: Vec<usize> = rows.iter().map(|row| list(row, "stack").len()).collect();
        let mut expected: Vec<usize> = profile.callsites().map(|(_, callsite)| callsite.stack.len()).collect();
        stacks.sort_unstable();
        expected.sort_unstable();
        assert_eq!(stacks, expected);
    }
}

#[test]
fn the_host_is_that_of_the_presentation() {
    let mut bytes = Vec::new();
    let presentation = Presentation { host: Some("web1".to_owned()), ..Presentation::default() };
    Format::Parquet.write(&profiles::exact(), &presentation, &mut bytes).expect("a vector takes all bytes");
    assert!(rows(&opened(bytes)).iter().all(|row| *field(row, "host") == Field::Str("web1".to_owned())));
    assert!(rows(&file(&profiles::exact())).iter().all(|row| *field(row, "host") == Field::Null));
}

/// The writer's memory is bounded by that of a row group.
#[test]
fn row_groups_are_bounded() {
    const ROWS_MAX: usize = 10;
    const WINDOWS: usize = 7;
    let profile = profiles::exact();
    let mut bytes = Vec::new();
    let mut writer = Writer::with_groups_of(ROWS_MAX, &mut bytes).expect("it starts");
    for _ in 0..WINDOWS {
        writer.add(&profile, &Presentation::default()).expect("a vector takes all bytes");
    }
    writer.finish().expect("a vector takes all bytes");
    let file = opened(bytes);
    let groups = file.metadata().row_groups().iter().map(|group| usize::try_from(group.num_rows()).expect("a size"));
    let groups: Vec<usize> = groups.collect();
    let rows = WINDOWS * profile.callsites().count();
    assert_eq!((groups.len(), groups.iter().sum()), (rows.div_ceil(ROWS_MAX), rows));
    assert!(rows > ROWS_MAX && groups.iter().all(|&rows| rows <= ROWS_MAX), "{groups:?}");
}
