//! A parsed pprof file with all references resolved and checked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;

use flate2::read::GzDecoder;

use super::wire::Message;

/// Strings replace their indices.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) sample_types: Vec<String>,
    pub(super) default_sample_type: String,
    pub(super) period: String,
    pub(super) time_nanos: u64,
    pub(super) duration_nanos: u64,
    pub(super) comments: Vec<String>,
    pub(super) mappings: Vec<Mapping>,
    pub(super) locations: Vec<Location>,
    pub(super) samples: Vec<Sample>,
}

#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) limit: u64,
    pub(super) offset: u64,
    pub(super) file: String,
    pub(super) build_id: String,
}

#[derive(Debug)]
pub(super) struct Location {
    /// Index into the mappings.
    pub(super) mapping: Option<usize>,
    pub(super) address: u64,
    /// Function, file and line, the innermost first.
    pub(super) lines: Vec<(String, String, u64)>,
}

#[derive(Debug)]
pub(super) struct Sample {
    /// Indexes into the locations, leaf first.
    pub(super) locations: Vec<usize>,
    pub(super) values: Vec<u64>,
    /// Numbers with their units.
    pub(super) labels: BTreeMap<String, String>,
}

impl Decoded {
    pub(super) fn new(compressed: &[u8]) -> Self {
        assert_eq!(compressed[4..8], [0; 4], "the time of writing is in it");
        let mut bytes = Vec::new();
        GzDecoder::new(compressed).read_to_end(&mut bytes).expect("it is compressed");
        let profile = Message::new(&bytes);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("texts are UTF-8");
        let strings: Vec<String> = profile.bytes(6).map(text).collect();
        assert_eq!(strings[0], "");
        let string = |message: &Message<'_>, field| strings[index(message.number(field))].clone();
        let kind = |message: &Message<'_>| format!("{}/{}", string(message, 1), string(message, 2));
        let functions: Vec<(String, String)> = numbered(profile.messages(5))
            .iter()
            .map(|function| {
                assert_eq!(function.number(3), 0, "it would be demangled again");
                (string(function, 2), string(function, 4))
            })
            .collect();
        let mappings: Vec<Mapping> = numbered(profile.messages(3))
            .iter()
            .map(|mapping| {
                assert_eq!([7, 8, 9, 10].map(|flag| mapping.number(flag)), [1; 4], "it would be symbolized again");
                let [start, limit, offset] = [2, 3, 4].map(|field| mapping.number(field));
                Mapping { start, limit, offset, file: string(mapping, 5), build_id: string(mapping, 6) }
            })
            .collect();
        let line = |line: &Message<'_>| {
            let (function, file) = functions[index(line.number(1)) - 1].clone();
            (function, file, line.number(2))
        };
        let locations: Vec<Location> = numbered(profile.messages(4))
            .iter()
            .map(|location| {
                let mapping = index(location.number(2)).checked_sub(1);
                assert!(mapping.is_none_or(|mapping| mapping < mappings.len()));
                Location {
                    mapping,
                    address: location.number(3),
                    lines: location.messages(4).iter().map(line).collect(),
                }
            })
            .collect();
        let samples = samples(&profile, locations.len(), &strings);
        let period = profile.messages(11).iter().map(kind).collect::<String>();
        Self {
            sample_types: profile.messages(1).iter().map(kind).collect(),
            default_sample_type: string(&profile, 14),
            period: format!("{period} {}", profile.number(12)),
            time_nanos: profile.number(9),
            duration_nanos: profile.number(10),
            comments: profile.numbers(13).into_iter().map(|comment| strings[index(comment)].clone()).collect(),
            mappings,
            locations,
            samples,
        }
    }

    /// The names of a sample's frames, leaf first.
    pub(super) fn names(&self, sample: &Sample) -> Vec<&str> {
        let locations = sample.locations.iter().map(|&location| &self.locations[location]);
        locations.flat_map(|location| &location.lines).map(|(function, ..)| function.as_str()).collect()
    }

    /// The whole file as text, one line per entry.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}, default {}\nperiod {}, from {}, for {}\n",
            self.sample_types.join(" "),
            self.default_sample_type,
            self.period,
            self.time_nanos,
            self.duration_nanos,
        );
        let mut line = |line: String| writeln!(text, "{line}").expect("a text takes all");
        self.comments.iter().for_each(|comment| line(format!("# {comment}")));
        for (mapping, id) in self.mappings.iter().zip(1..) {
            let Mapping { start, limit, offset, file, build_id } = mapping;
            line(format!("mapping {id}: {start:#x}-{limit:#x} from {offset:#x} {file:?} {build_id:?}"));
        }
        for (location, id) in self.locations.iter().zip(1..) {
            let mapping =
                location.mapping.map_or("no mapping".to_owned(), |mapping| format!("mapping {}", mapping + 1));
            line(format!("location {id}: {:#x} in {mapping}", location.address));
            location
                .lines
                .iter()
                .for_each(|(function, file, number)| line(format!("  {function:?} {file:?}:{number}")));
        }
        for sample in &self.samples {
            let locations: Vec<String> = sample.locations.iter().map(|location| (location + 1).to_string()).collect();
            line(format!("sample {:?} at {}", sample.values, locations.join(" ")));
            sample.labels.iter().for_each(|(key, value)| line(format!("  {key} = {value:?}")));
        }
        text
    }
}

/// The samples; checks that their locations exist.
fn samples(profile: &Message<'_>, location_count: usize, strings: &[String]) -> Vec<Sample> {
    let string = |message: &Message<'_>, field| strings[index(message.number(field))].clone();
    let label = |label: &Message<'_>| {
        let (number, unit) = (label.number(3), string(label, 4));
        let value = if label.number(2) > 0 { string(label, 2) } else { format!("{number} {unit}") };
        (string(label, 1), value)
    };
    let sample = |sample: &Message<'_>| {
        let locations: Vec<usize> = sample.numbers(1).into_iter().map(|id| index(id) - 1).collect();
        assert!(locations.iter().all(|&location| location < location_count));
        let labels: Vec<_> = sample.messages(3).iter().map(label).collect();
        let count = labels.len();
        let labels: BTreeMap<_, _> = labels.into_iter().collect();
        assert_eq!(labels.len(), count, "a label is there twice");
        Sample { locations, values: sample.numbers(2), labels }
    };
    profile.messages(2).iter().map(sample).collect()
}

/// The messages; checks that ids count from 1.
fn numbered(messages: Vec<Message<'_>>) -> Vec<Message<'_>> {
    for (message, id) in messages.iter().zip(1..) {
        assert_eq!(message.number(1), id);
    }
    messages
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("an index")
}
