//! Source maps (<https://tc39.es/ecma426/>). All questions are answered in one pass over the mappings, so that memory is that of the
//! file, and the texts of sources are skipped.

use std::fs::File;
use std::io::Read;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use super::STRING_BYTES_MAX;
use crate::object::script::{MAP_BYTES_MAX, Spot};
use crate::symbolize::names::ResolvedFrame;

const VERSION: u64 = 3;
/// Precedes some maps that servers send.
const GUARD: &[u8] = b")]}";
const INLINE: &[u8] = b"data:";
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why a file is no source map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMap {
    TooLarge,
    Malformed,
}

#[derive(Debug)]
pub(super) struct SourceMap {
    /// By the place in the script from which they apply.
    parts: Vec<(Spot, Document)>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: Option<u64>,
    source_root: Option<String>,
    #[serde(default)]
    sources: Vec<Option<String>>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    mappings: String,
    sections: Option<Vec<Section>>,
}

#[derive(Debug, Deserialize)]
struct Section {
    offset: Offset,
    map: Document,
}

/// From 0.
#[derive(Debug, Deserialize)]
struct Offset {
    line: u32,
    column: u32,
}

/// Numbers of a mapping, relative to the one before. Those of the column start again with each line.
#[derive(Clone, Copy, Debug, Default)]
struct Mapping {
    column: i64,
    source: i64,
    line: i64,
    name: i64,
    has_source: bool,
    has_name: bool,
}

impl SourceMap {
    pub(super) fn read(file: &File) -> Result<Self, NoMap> {
        let mut bytes = Vec::new();
        let mut file = file;
        std::io::Seek::rewind(&mut file).map_err(|_| NoMap::Malformed)?;
        file.take(MAP_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|_| NoMap::Malformed)?;
        if bytes.len() as u64 > MAP_BYTES_MAX {
            return Err(NoMap::TooLarge);
        }
        Self::parse(&bytes).ok_or(NoMap::Malformed)
    }

    /// Parses the text of a map, or a URL with it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let decoded;
        let bytes = match bytes.strip_prefix(INLINE) {
            Some(rest) => {
                decoded = data(rest)?;
                &decoded[..]
            }
            None => bytes,
        };
        let bytes = match bytes.strip_prefix(GUARD) {
            Some(rest) => &rest[rest.iter().position(|&byte| byte == b'\n')?..],
            None => bytes,
        };
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        let mut document: Document = serde_json::from_slice(bytes).ok()?;
        if document.version != Some(VERSION) {
            return None;
        }
        let Some(sections) = document.sections.take() else {
            return Some(Self { parts: vec![(Spot { line: 0, column: 0 }, document)] });
        };
        let place = |Section { offset, map }| (Spot { line: offset.line, column: offset.column }, map);
        let mut parts: Vec<(Spot, Document)> = sections.into_iter().map(place).collect();
        parts.sort_by_key(|(start, _)| *start);
        Some(Self { parts })
    }

    /// For places in ascending order: the source, its line, and the original name of what is there; `None` if none is known. Also returns
    /// the number of mappings up to there that are out of range.
    pub(super) fn originals(&self, spots: &[Spot]) -> (Vec<Option<ResolvedFrame>>, u64) {
        // Lines of maps begin at 0.
        let spots: Vec<Spot> = spots.iter().map(|spot| Spot { line: spot.line.saturating_sub(1), ..*spot }).collect();
        let mut found = Vec::with_capacity(spots.len());
        let (mut rest, mut malformed) = (&spots[..], 0);
        for (index, (start, document)) in self.parts.iter().enumerate() {
            let end = self.parts.get(index + 1).map(|(next, _)| *next);
            found.extend(rest.iter().take_while(|spot| *spot < start).map(|_| None));
            rest = &rest[rest.partition_point(|spot| spot < start)..];
            let (own, others) = rest.split_at(end.map_or(rest.len(), |end| rest.partition_point(|spot| *spot < end)));
            rest = others;
            let inside = |spot: &Spot| Spot {
                line: spot.line - start.line,
                column: if spot.line == start.line { spot.column - start.column } else { spot.column },
            };
            found.extend(document.originals(&own.iter().map(inside).collect::<Vec<_>>(), &mut malformed));
        }
        found.resize(spots.len(), None);
        (found, malformed)
    }
}

impl Document {
    fn originals(&self, spots: &[Spot], malformed: &mut u64) -> Vec<Option<ResolvedFrame>> {
        let mut found = Vec::with_capacity(spots.len());
        let mut mapping = Mapping::default();
        for (line, segments) in (0u32..).zip(self.mappings.as_bytes().split(|&byte| byte == b';')) {
            let Some(next) = spots.get(found.len()) else { break };
            mapping.column = 0;
            // The mapping before each place of this line.
            let (mut last, mut last_column) = (None, 0);
            let pass = |found: &mut Vec<Option<ResolvedFrame>>, last: Option<Mapping>, until: i64| {
                while let Some(spot) = spots.get(found.len()).filter(|spot| spot.line == line) {
                    if i64::from(spot.column) >= until {
                        break;
                    }
                    found.push(last.and_then(|mapping| self.original(mapping, *spot)));
                }
            };
            for segment in segments.split(|&byte| byte == b',').filter(|segment| !segment.is_empty()) {
                if mapping.add(segment).is_none() || mapping.column < last_column || !self.has(mapping) {
                    *malformed += 1;
                    continue;
                }
                if next.line == line {
                    pass(&mut found, last, mapping.column);
                }
                (last, last_column) = (Some(mapping), mapping.column);
            }
            pass(&mut found, last, i64::MAX);
        }
        found.resize(spots.len(), None);
        found
    }

    fn has(&self, mapping: Mapping) -> bool {
        let is_index = |number: i64, length: usize| usize::try_from(number).is_ok_and(|index| index < length);
        (!mapping.has_source || is_index(mapping.source, self.sources.len()) && u32::try_from(mapping.line).is_ok())
            && (!mapping.has_name || is_index(mapping.name, self.names.len()))
    }

    fn original(&self, mapping: Mapping, spot: Spot) -> Option<ResolvedFrame> {
        let source =
            self.sources.get(usize::try_from(mapping.source).ok()?).filter(|_| mapping.has_source)?.as_deref()?;
        let file = match self.source_root.as_deref().filter(|root| !root.is_empty()) {
            Some(root) => format!("{}/{source}", root.trim_end_matches('/')),
            None => source.to_owned(),
        };
        let is_there = mapping.has_name && mapping.column == i64::from(spot.column);
        let name = usize::try_from(mapping.name).ok().filter(|_| is_there).and_then(|index| self.names.get(index));
        Some(ResolvedFrame {
            function: name.filter(|name| !name.is_empty()).map(|name| short(name).into()),
            file: Some(short(&file).into()),
            line: Some(u32::try_from(mapping.line).ok()?.saturating_add(1)),
            ..ResolvedFrame::default()
        })
    }
}

impl Mapping {
    /// Adds the differences of a segment. `None` if it is malformed.
    fn add(&mut self, mut segment: &[u8]) -> Option<()> {
        self.column = self.column.checked_add(number(&mut segment)?)?;
        (self.has_source, self.has_name) = (!segment.is_empty(), false);
        if self.has_source {
            self.source = self.source.checked_add(number(&mut segment)?)?;
            self.line = self.line.checked_add(number(&mut segment)?)?;
            // The column.
            number(&mut segment)?;
            self.has_name = !segment.is_empty();
        }
        if self.has_name {
            self.name = self.name.checked_add(number(&mut segment)?)?;
        }
        segment.is_empty().then_some(())
    }
}

/// A number in digits of 5 bits, the lowest first, with the sign in the lowest bit.
fn number(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0u64;
    for shift in (0..35).step_by(5) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        value |= u64::from(digit & 31) << shift;
        if digit & 32 == 0 {
            let magnitude = i64::try_from(value >> 1).ok()?;
            return Some(if value & 1 == 1 { -magnitude } else { magnitude });
        }
    }
    None
}

/// The data of a URL, behind `data:`.
fn data(url: &[u8]) -> Option<Vec<u8>> {
    let comma = url.iter().position(|&byte| byte == b',')?;
    let (kind, data) = (&url[..comma], &url[comma + 1..]);
    if kind.ends_with(b";base64") {
        BASE64.decode(data).ok()
    } else {
        Some(crate::object::script::percent_decoded(data))
    }
}

fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(STRING_BYTES_MAX.min(text.len()))]
}

/// Parses a map for the fuzz targets, and asks for places.
pub(crate) fn exercise(bytes: &[u8], spots: &[(u32, u32)]) {
    let Some(map) = SourceMap::parse(bytes) else { return };
    let mut spots: Vec<Spot> = spots.iter().map(|&(line, column)| Spot { line, column }).collect();
    spots.sort_unstable();
    assert_eq!(map.originals(&spots).0.len(), spots.len(), "each place has an answer");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Function, file, line.
    type Facts = Option<(Option<String>, String, u32)>;

    fn originals(json: &str, spots: &[(u32, u32)]) -> (Vec<Facts>, u64) {
        let map = SourceMap::parse(json.as_bytes()).expect("a map");
        let spots: Vec<Spot> = spots.iter().map(|&(line, column)| Spot { line, column }).collect();
        let text = |text: Option<std::sync::Arc<str>>| text.map(|text| text.to_string());
        let (found, malformed) = map.originals(&spots);
        let found = found.into_iter().map(|frame| {
            let frame = frame?;
            Some((text(frame.function), text(frame.file)?, frame.line?))
        });
        (found.collect(), malformed)
    }

    fn at(file: &str, line: u32) -> Facts {
        Some((None, file.to_owned(), line))
    }

    fn named(name: &str, file: &str, line: u32) -> Facts {
        Some((Some(name.to_owned()), file.to_owned(), line))
    }

    /// `a` at column 9 of line 1 is `leak` in line 5 of `a.ts`, what comes from column 20 on is in line 6; columns from 30 on have no
    /// source. Line 3 is line 2 of `b.ts`.
    const MAP: &str = r#"{"version":3,"sources":["a.ts","b.ts"],"names":["leak"],"sourcesContent":["x","y"],
        "mappings":"SAIAA,WACA,U;;ACJA"}"#;

    #[test]
    fn places_have_the_source_of_the_mapping_before_them() {
        let spots = [(1, 0), (1, 9), (1, 10), (1, 20), (1, 29), (1, 30), (2, 5), (3, 0), (3, 99), (9, 0)];
        let expected = [
            None,
            named("leak", "a.ts", 5),
            at("a.ts", 5),
            at("a.ts", 6),
            at("a.ts", 6),
            None,
            None,
            at("b.ts", 2),
            at("b.ts", 2),
            None,
        ];
        assert_eq!(originals(MAP, &spots), (expected.to_vec(), 0));
    }

    #[test]
    fn maps_come_in_several_forms() {
        let spots = [(1, 9)];
        let expected = (vec![named("leak", "a.ts", 5)], 0);
        let encoded = format!("data:application/json;charset=utf-8;base64,{}", BASE64.encode(MAP));
        let unpadded = encoded.trim_end_matches('=').to_owned();
        let escaped = format!("data:application/json,{}", MAP.replace('"', "%22"));
        for form in [&encoded, &unpadded, &escaped, &format!(")]}}'\n{MAP}"), &format!("\u{feff}{MAP}")] {
            assert_eq!(originals(form, &spots), expected, "{form}");
        }
        let root = MAP.replace("\"sources\"", "\"sourceRoot\":\"/srv/\",\"sources\"");
        assert_eq!(originals(&root, &spots), (vec![named("leak", "/srv/a.ts", 5)], 0));
    }

    #[test]
    fn sections_begin_at_their_offsets() {
        let section =
            |line: u32, column: u32| format!(r#"{{"offset":{{"line":{line},"column":{column}}},"map":{MAP}}}"#);
        let json = format!(r#"{{"version":3,"sections":[{},{}]}}"#, section(0, 100), section(10, 0));
        let spots = [(1, 9), (1, 109), (2, 9), (3, 0), (11, 9), (13, 0)];
        let leak = named("leak", "a.ts", 5);
        let expected = [None, leak.clone(), None, at("b.ts", 2), leak, at("b.ts", 2)];
        assert_eq!(originals(&json, &spots), (expected.to_vec(), 0));
    }

    #[test]
    fn hostile_maps_have_no_mappings() {
        let map = |mappings: &str| format!(r#"{{"version":3,"sources":["a.ts"],"names":[],"mappings":"{mappings}"}}"#);
        // A source, a name and a line that do not exist; a column before the last; digits without an end; no digits.
        for (mappings, count) in
            [("AEAA", 1), ("AAAAA", 1), ("ADAA", 1), ("AADA", 1), ("Q,D", 1), ("ggggggggggA", 1), ("!,AA", 2)]
        {
            let (found, malformed) = originals(&map(mappings), &[(1, 0), (1, 50)]);
            assert_eq!(malformed, count, "{mappings}");
            assert!(found.iter().all(Option::is_none), "{mappings}");
        }
        let deep = format!("{{\"version\":3,\"x\":{}", "[".repeat(100_000));
        let cyclic = r#"{"version":3,"sections":[{"offset":{"line":0,"column":0},"url":"self.map"}]}"#;
        for other in
            ["", "{}", "[]", "null", r#"{"version":2,"mappings":"AAAA"}"#, "data:", "data:x;base64,!", &deep, cyclic]
        {
            assert!(SourceMap::parse(other.as_bytes()).is_none(), "{other:.80}");
        }
    }

    proptest! {
        #[test]
        fn any_mappings_are_read(mappings in "[A-Za-z0-9+/,;]{0,200}", spots: Vec<(u32, u32)>) {
            let json = format!(r#"{{"version":3,"sources":["a"],"names":["b"],"mappings":"{mappings}"}}"#);
            exercise(json.as_bytes(), &spots);
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            exercise(&bytes, &[(1, 0)]);
        }
    }
}
