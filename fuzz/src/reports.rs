//! All reports of a profile.

use std::io;

use heapbpf_ledger::model::Profile;
use heapbpf_report::diff::{Diff, Drawing, FORMATS as DIFF_FORMATS, Side, table as diff_table};
use heapbpf_report::{Format, Group, Presentation, View, summary};

/// Writes a profile in one format, as a table, or as the difference from a part of itself: the low four bits of `choice` select
/// the report, the others the view and the presentation. Writes one report only, because some formats take milliseconds.
pub fn write(profile: &Profile, choice: u8) {
    let view = View::ALL[usize::from(choice >> 4) % View::ALL.len()];
    let by = if choice & 0x40 != 0 { Group::ALL.to_vec() } else { Vec::new() };
    let threshold = (choice & 0x80 != 0).then(|| "10%".parse().expect("a share"));
    let presentation =
        Presentation { view, by, threshold, icicle: choice & 0x80 != 0, host: None, csv_raw: choice & 0x40 != 0 };
    match Format::ALL.get(usize::from(choice & 0xf)) {
        // Fails for formats that need single events only.
        Some(format) => {
            drop(format.write(&presentation.thinned(profile), &presentation, &mut io::sink()));
        }
        None if choice & 1 == 0 => drop(summary::summary(profile, view, 10, Some(80), false)),
        None => difference(profile, view),
    }
}

fn difference(profile: &Profile, view: View) {
    let mut part = profile.clone();
    part.targets.iter_mut().for_each(|target| drop(target.callsites.pop()));
    let diff = Diff::new(Side { name: "part", profile: &part }, Side { name: "whole", profile });
    for format in DIFF_FORMATS {
        let _ = diff.write(format, view, Drawing::default(), &mut io::sink());
    }
    let _ = diff_table(&diff, view, 10, 0, Some(80), false);
}
