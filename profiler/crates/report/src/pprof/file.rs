//! A pprof file that receives names. Of any tool: fields that heapbpf does not write are dropped.

use std::io::{self, Read};

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use prost::Message;
use rustc_hash::FxHashMap;

use crate::proto::pprof as proto;

/// Limit for a file, uncompressed.
const BYTES_MAX: u64 = 1 << 30;
const BUILD_ID_DIGITS_MAX: usize = 128;

pub struct PprofFile {
    profile: proto::Profile,
    texts: FxHashMap<String, i64>,
    /// By name and source file.
    functions: FxHashMap<[i64; 2], u64>,
    next_function: u64,
}

/// A mapped file.
pub struct PprofMapping {
    pub path: String,
    pub build_id: Option<Vec<u8>>,
    pub start: u64,
    /// Exclusive.
    pub end: u64,
    pub file_offset: u64,
    /// Sum of the absolute values of samples through it, of the last sample type.
    pub weight: u64,
}

/// A location without a source file.
#[derive(Clone, Copy)]
pub struct OpenLocation {
    location: usize,
    /// Index into [`PprofFile::mappings`].
    pub mapping: usize,
    pub file_offset: u64,
}

/// A function of a location; empty texts are unknown.
pub struct PprofLine<'a> {
    pub function: &'a str,
    pub file: &'a str,
    /// 0 if unknown.
    pub line: u32,
}

impl PprofFile {
    /// Compressed or not. Fails for other contents.
    pub fn read(file: impl Read) -> Result<Self, String> {
        let mut bytes = Vec::new();
        GzDecoder::new(file).take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(format!("it exceeds the limit of {}", bytesize::ByteSize(BYTES_MAX)));
        }
        let profile = proto::Profile::decode(&*bytes).map_err(|error| format!("it is not a pprof file: {error}"))?;
        if profile.sample_type.is_empty() || profile.string_table.is_empty() {
            return Err("it is not a pprof file: it has no sample types".to_owned());
        }
        let texts = profile.string_table.iter().cloned().zip(0..).collect();
        let functions = profile.function.iter().map(|it| ([it.name, it.filename], it.id)).collect();
        let next_function = profile.function.iter().map(|it| it.id).max().unwrap_or(0).saturating_add(1);
        Ok(Self { profile, texts, functions, next_function })
    }

    fn text(&self, index: i64) -> &str {
        let text = usize::try_from(index).ok().and_then(|index| self.profile.string_table.get(index));
        text.map_or("", String::as_str)
    }

    pub fn mappings(&self) -> Vec<PprofMapping> {
        let by_id = self.mapping_indices();
        let of_location: FxHashMap<u64, usize> = self
            .profile
            .location
            .iter()
            .filter_map(|location| Some((location.id, *by_id.get(&location.mapping_id)?)))
            .collect();
        let mut weights = vec![0_u64; self.profile.mapping.len()];
        for sample in &self.profile.sample {
            let weight = sample.value.last().map_or(0, |value| value.unsigned_abs());
            let mut met: Vec<usize> = sample.location_id.iter().filter_map(|id| of_location.get(id)).copied().collect();
            met.sort_unstable();
            met.dedup();
            met.into_iter().for_each(|index| weights[index] = weights[index].saturating_add(weight));
        }
        let mapping = |(mapping, weight): (&proto::Mapping, u64)| PprofMapping {
            path: self.text(mapping.filename).to_owned(),
            build_id: bytes_of(self.text(mapping.build_id)),
            start: mapping.memory_start,
            end: mapping.memory_limit,
            file_offset: mapping.file_offset,
            weight,
        };
        self.profile.mapping.iter().zip(weights).map(mapping).collect()
    }

    fn mapping_indices(&self) -> FxHashMap<u64, usize> {
        self.profile.mapping.iter().enumerate().map(|(index, mapping)| (mapping.id, index)).collect()
    }

    /// Addresses of locations lie inside of the calls.
    pub fn open(&self) -> Vec<OpenLocation> {
        let mappings = self.mapping_indices();
        let files: FxHashMap<u64, i64> =
            self.profile.function.iter().map(|function| (function.id, function.filename)).collect();
        let open = |(location, found): (usize, &proto::Location)| {
            let &mapping = mappings.get(&found.mapping_id)?;
            let has_file =
                |line: &proto::Line| files.get(&line.function_id).is_some_and(|&file| !self.text(file).is_empty());
            if found.line.len() > 1 || found.line.iter().any(has_file) {
                return None;
            }
            let proto::Mapping { memory_start, memory_limit, file_offset, .. } = self.profile.mapping[mapping];
            let is_inside = (memory_start..memory_limit).contains(&found.address);
            let file_offset = found.address.wrapping_sub(memory_start).wrapping_add(file_offset);
            is_inside.then_some(OpenLocation { location, mapping, file_offset })
        };
        self.profile.location.iter().enumerate().filter_map(open).collect()
    }

    /// Names a location: innermost function first.
    pub fn name(&mut self, at: OpenLocation, lines: &[PprofLine<'_>]) {
        let line = |line: &PprofLine<'_>| {
            let key = [self.intern(line.function), self.intern(line.file)];
            let function_id = *self.functions.entry(key).or_insert_with(|| {
                let id = self.next_function;
                self.next_function = id.saturating_add(1);
                let [name, filename] = key;
                self.profile.function.push(proto::Function { id, name, system_name: 0, filename });
                id
            });
            proto::Line { function_id, line: line.line.into() }
        };
        let lines = lines.iter().map(line).collect();
        self.profile.location[at.location].line = lines;
    }

    fn intern(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.texts.get(text) {
            return known;
        }
        let index = i64::try_from(self.profile.string_table.len()).unwrap_or(i64::MAX);
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), index);
        index
    }

    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let mut compressed = GzBuilder::new().mtime(0).write(out, Compression::default());
        io::Write::write_all(&mut compressed, &self.profile.encode_to_vec())?;
        compressed.finish().map(|_| ())
    }
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    if digits.is_empty() || digits.len() > BUILD_ID_DIGITS_MAX || !digits.is_ascii() {
        return None;
    }
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()).collect()
}
