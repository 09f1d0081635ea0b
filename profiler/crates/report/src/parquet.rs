//! Apache Parquet: one row per callsite and window, for databases that aggregate a fleet. `docs/parquet.md` describes the
//! columns and has queries.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use heapbpf_ledger::model::Profile;
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use rows::{FLAGS, Group, NUMBERS, ROWS_MAX, Row, STACKS, TEXTS, TIMES, VARIANCES};

use super::describe;
use super::presentation::Presentation;

mod rows;

/// zstd's own default.
const COMPRESSION_LEVEL: i32 = 3;
/// Rows whose stacks are expanded at a time.
const BATCH_ROWS: usize = 1024;

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let mut writer = Writer::new(out)?;
    writer.add(profile, presentation)?;
    writer.finish()
}

/// Writes the rows of any number of profiles. Holds at most one row group in memory.
pub struct Writer<'a> {
    /// Written into memory: the format's library requires an output that can be sent between threads.
    file: SerializedFileWriter<Vec<u8>>,
    group: Group,
    group_rows: usize,
    /// Of the latest profile.
    left_out: Option<String>,
    out: &'a mut dyn io::Write,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut dyn io::Write) -> io::Result<Self> {
        Self::with_groups_of(ROWS_MAX, out)
    }

    /// `rows` is the maximum size of a row group.
    pub(super) fn with_groups_of(rows: usize, out: &'a mut dyn io::Write) -> io::Result<Self> {
        let schema = parse_message_type(&schema()).map_err(failed)?;
        let file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties()?)).map_err(failed)?;
        Ok(Self { file, group: Group::default(), group_rows: rows, left_out: None, out })
    }

    /// Adds a row for each callsite.
    pub fn add(&mut self, profile: &Profile, presentation: &Presentation) -> io::Result<()> {
        self.left_out = describe::left_out(profile).or(self.left_out.take());
        for target in &profile.targets {
            let mut code = rows::Code::new(profile, target, presentation);
            for callsite in &target.callsites {
                self.group.add(&mut code, callsite);
                if self.group.rows.len() >= self.group_rows {
                    self.write_group()?;
                }
            }
        }
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<()> {
        if !self.group.rows.is_empty() {
            self.write_group()?;
        }
        if let Some(left_out) = self.left_out.take() {
            self.file.append_key_value_metadata(KeyValue::new("heapbpf.left_out".to_owned(), left_out));
        }
        self.file.finish().map_err(failed)?;
        self.pass_on()
    }

    fn write_group(&mut self) -> io::Result<()> {
        let mut group = std::mem::take(&mut self.group);
        group.sort();
        let columns = self.file.next_row_group().map_err(failed)?;
        write_columns(columns, &group).map_err(failed)?;
        self.pass_on()
    }

    fn pass_on(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.out.write_all(self.file.inner())?;
        self.file.inner_mut().clear();
        Ok(())
    }
}

fn failed(error: ParquetError) -> io::Error {
    io::Error::other(error)
}

/// Columns in the order of `write_columns`.
fn schema() -> String {
    let mut text = "message heapbpf {".to_owned();
    let mut columns = |names: &[&str], kind: &str, logical: &str| {
        for name in names {
            let _ = write!(text, " {kind} {name}{logical};");
        }
    };
    columns(&TEXTS, "optional binary", " (STRING)");
    columns(&TIMES, "required int64", " (TIMESTAMP(MICROS,true))");
    columns(&NUMBERS, "required int64", "");
    columns(&VARIANCES, "required double", "");
    columns(&FLAGS, "required boolean", "");
    for name in STACKS {
        let _ = write!(
            text,
            " required group {name} (LIST) {{ repeated group list {{ optional binary element (STRING); }} }}"
        );
    }
    text + " }"
}

fn properties() -> io::Result<WriterProperties> {
    let level = ZstdLevel::try_new(COMPRESSION_LEVEL).map_err(failed)?;
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("heapbpf ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Chunk);
    // Nothing selects row groups by these.
    for name in STACKS {
        let path = ColumnPath::new([name, "list", "element"].map(str::to_owned).to_vec());
        properties = properties.set_column_statistics_enabled(path, EnabledStatistics::None);
    }
    Ok(properties.build())
}

fn write_columns(mut columns: SerializedRowGroupWriter<'_, Vec<u8>>, group: &Group) -> Result<(), ParquetError> {
    let rows = &group.rows;
    let strings: Vec<ByteArray> = group.strings.iter().map(|text| ByteArray::from(&**text)).collect();
    for at in 0..TEXTS.len() {
        let mut column = columns.next_column()?.expect("the schema has it");
        let present: Vec<ByteArray> =
            rows.iter().filter_map(|row| row.texts[at]).map(|text| strings[text as usize].clone()).collect();
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.texts[at].is_some())).collect();
        column.typed::<ByteArrayType>().write_batch(&present, Some(&levels), None)?;
        column.close()?;
    }
    for at in 0..TIMES.len() + NUMBERS.len() {
        let values: Vec<i64> = rows.iter().map(|row| row.number(at)).collect();
        let mut column = columns.next_column()?.expect("the schema has it");
        column.typed::<Int64Type>().write_batch(&values, None, None)?;
        column.close()?;
    }
    for at in 0..VARIANCES.len() {
        let values: Vec<f64> = rows.iter().map(|row| row.variances[at]).collect();
        let mut column = columns.next_column()?.expect("the schema has it");
        column.typed::<DoubleType>().write_batch(&values, None, None)?;
        column.close()?;
    }
    for at in 0..FLAGS.len() {
        let values: Vec<bool> = rows.iter().map(|row| row.flags[at]).collect();
        let mut column = columns.next_column()?.expect("the schema has it");
        column.typed::<BoolType>().write_batch(&values, None, None)?;
        column.close()?;
    }
    for at in 0..STACKS.len() {
        let mut column = columns.next_column()?.expect("the schema has it");
        for rows in rows.chunks(BATCH_ROWS) {
            let lists = Lists::new(group, rows, at, &strings);
            column.typed::<ByteArrayType>().write_batch(
                &lists.values,
                Some(&lists.definitions),
                Some(&lists.repetitions),
            )?;
        }
        column.close()?;
    }
    columns.close()?;
    Ok(())
}

/// Values of a list column in Dremel's encoding: an empty list has one entry of definition level 0, a null element level
/// 1; all elements but the first of a list repeat.
#[derive(Default)]
struct Lists {
    values: Vec<ByteArray>,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

impl Lists {
    fn new(group: &Group, rows: &[Row], column: usize, strings: &[ByteArray]) -> Self {
        let mut lists = Self::default();
        for row in rows {
            let stack = &group.stacks[row.stack as usize];
            if stack.is_empty() {
                lists.definitions.push(0);
                lists.repetitions.push(0);
            }
            for (at, frame) in stack.iter().enumerate() {
                let value = frame[column].map(|text| strings[text as usize].clone());
                lists.definitions.push(1 + i16::from(value.is_some()));
                lists.repetitions.push(i16::from(at > 0));
                lists.values.extend(value);
            }
        }
        lists
    }
}
