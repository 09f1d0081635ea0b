//! Tables of objects by type, for people and for programs.

use std::cmp::Reverse;

use heapbpf_ledger::model::{ObjectType, ObjectTypes};
use serde_json::{Value, json};

use super::page::{Column, HEADING, PLAIN, Page};
use super::text;

/// Objects of a process, by type.
pub fn text(all: &[ObjectTypes], rows: usize, width: Option<usize>, colour: bool) -> String {
    let mut page = Page::new(width, colour);
    for counted in all {
        page.types(counted, rows, "");
    }
    page.text
}

/// The same for programs: see docs/types.md.
pub fn json(all: &[ObjectTypes]) -> Value {
    let runtime = |counted: &ObjectTypes| {
        let ObjectTypes { language, types, more_types, blocks, other, unread, reserved_bytes, one_of, .. } = counted;
        json!({
            "language": language,
            "since_ns": counted.since.map(|since| counted.time.0.saturating_sub(since.0)),
            "types": types,
            "more_types": more_types,
            "blocks": blocks,
            "other": other,
            "unread": unread,
            "reserved_bytes": reserved_bytes,
            "one_of": one_of,
        })
    };
    json!({ "runtimes": all.iter().map(runtime).collect::<Vec<_>>() })
}

impl Page {
    /// `whose` is behind the heading, where a report has several processes.
    pub(super) fn types(&mut self, counted: &ObjectTypes, rows: usize, whose: &str) {
        let has_growth = counted.since.is_some();
        let listed = listed(counted, rows);
        let all = counted.types.len() as u64 + counted.more_types;
        let which = match all {
            all if all > listed.len() as u64 => format!("{} of {} types", listed.len(), text::count(all)),
            all => text::counted(all, "type"),
        };
        let since = counted.since.map_or_else(String::new, |since| {
            format!("; growth in {}", text::duration(counted.time.0.saturating_sub(since.0)))
        });
        let estimated = if counted.one_of > 1 { " (estimates)" } else { "" };
        self.line(HEADING, &format!("{which} of {} objects{whose}{estimated}{since}", counted.language.name()));
        let mut columns = vec![Column::Right("live"), Column::Right("objects")];
        columns.extend(has_growth.then_some([Column::Right("growth"), Column::Right("objects")]).into_iter().flatten());
        columns.push(Column::Left("type"));
        let row = |one: &&ObjectType| {
            let mut cells = vec![text::size(one.all_bytes()), text::count(one.objects)];
            if has_growth {
                cells.extend([change(one.grown_bytes), count_change(one.grown_objects)]);
            }
            cells.push(text::printable(&one.name).into_owned());
            cells
        };
        self.table(&columns, listed.iter().map(row).collect());
        let heap = format!(
            "{} in {} of small objects and their tables (512 bytes at most each), {} reserved",
            text::size(counted.blocks.bytes),
            text::counted(counted.blocks.blocks, "block"),
            text::size(counted.reserved_bytes),
        );
        let parts = [("no known objects", counted.other.bytes), ("not read", counted.unread.bytes)];
        let parts = parts
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(what, bytes)| format!("; {} {what}", text::size(*bytes)));
        self.wrapped(PLAIN, "  ", &format!("{heap}{}", parts.collect::<String>()));
        if counted.one_of > 1 {
            self.wrapped(PLAIN, "  ", &format!("one of {} blocks was read", counted.one_of));
        }
        self.gap();
    }
}

/// The largest types; of the last rows, the ones that grew most if they are not among them.
fn listed(counted: &ObjectTypes, rows: usize) -> Vec<&ObjectType> {
    let present: Vec<&ObjectType> =
        counted.types.iter().filter(|one| one.objects > 0 || one.grown_bytes != 0).collect();
    let mut grown: Vec<&ObjectType> = present.iter().copied().filter(|one| one.grown_bytes > 0).collect();
    grown.sort_by_key(|one| Reverse(one.grown_bytes));
    grown.truncate(rows / 4);
    let missing: Vec<&ObjectType> =
        grown.into_iter().filter(|one| present.iter().take(rows).all(|other| other.name != one.name)).collect();
    let largest = rows.saturating_sub(missing.len());
    let mut listed: Vec<&ObjectType> = present.into_iter().take(largest).collect();
    listed.extend(missing.into_iter().filter(|one| one.objects > 0));
    listed.retain(|one| one.objects > 0);
    listed
}

fn change(bytes: i64) -> String {
    if bytes == 0 { "0 B".to_owned() } else { text::change(bytes) }
}

fn count_change(objects: i64) -> String {
    let sign = match objects {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", text::count(objects.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use heapbpf_base::language::Language;
    use heapbpf_base::units::MonotonicNanos;
    use heapbpf_ledger::model::HeapBlocks;

    use super::*;

    fn one(name: &str, objects: u64, bytes: u64, grown_bytes: i64) -> ObjectType {
        ObjectType { name: name.into(), objects, bytes, large_bytes: 0, grown_objects: grown_bytes / 10, grown_bytes }
    }

    fn counted(types: Vec<ObjectType>) -> ObjectTypes {
        ObjectTypes {
            language: Language::Python,
            time: MonotonicNanos(15_000_000_000),
            since: Some(MonotonicNanos(5_000_000_000)),
            types,
            more_types: 3,
            blocks: HeapBlocks { blocks: 100, bytes: 5 << 20 },
            other: HeapBlocks { blocks: 1, bytes: 2048 },
            unread: HeapBlocks::default(),
            reserved_bytes: 8 << 20,
            one_of: 1,
        }
    }

    #[test]
    fn what_grew_most_is_listed_although_it_is_small() {
        let mut types: Vec<ObjectType> = (0..9).map(|n| one(&format!("big{n}"), 10, 1 << 20, -10)).collect();
        types.push(one("app.Leak", 40, 4096, 400));
        types.push(one("gone", 0, 0, -70));
        let text = text(&[counted(types)], 4, None, false);
        let expected = "\
4 of 14 types of Python objects; growth in 10s
     live  objects  growth  objects  type
  1.0 MiB       10   -10 B       -1  big0
  1.0 MiB       10   -10 B       -1  big1
  1.0 MiB       10   -10 B       -1  big2
  4.0 KiB       40  +400 B      +40  app.Leak
  5.0 MiB in 100 blocks of small objects and their tables (512 bytes at most each), 8.0 MiB reserved; 2.0 KiB no known objects

";
        assert_eq!(text, expected);
    }
}
