//! Everything that `heapbpf convert` and `heapbpf diff` make of a profile.

use std::io;

use heapbpf::report::diff::{self, Diff, Drawing, Side};
use heapbpf::report::profile::Profile;
use heapbpf::report::{Format, Group, Presentation, View, summary};

/// Writes a profile in all formats, and its difference from a part of itself. `choice` selects the view and the grouping.
pub fn write_all(profile: &Profile, choice: u8) {
    let view = View::ALL[usize::from(choice) % View::ALL.len()];
    let by = if choice & 0x10 != 0 { Group::ALL.to_vec() } else { Vec::new() };
    let threshold = (choice & 0x20 != 0).then(|| "10%".parse().expect("a share"));
    let presentation = Presentation { view, by, threshold, icicle: choice & 0x40 != 0 };
    let thinned = presentation.thinned(profile);
    for format in Format::ALL {
        // The only errors are those of formats that need single events.
        let _ = format.report().write(&thinned, &presentation, &mut io::sink());
    }
    let _ = summary::summary(profile, view, 10, Some(80), false);
    let mut part = profile.clone();
    part.targets.iter_mut().for_each(|target| drop(target.callsites.pop()));
    let diff = Diff::new(Side { name: "part", profile: &part }, Side { name: "whole", profile });
    for format in diff::FORMATS {
        let _ = diff.write(format, view, Drawing::default(), &mut io::sink());
    }
    let _ = diff::table(&diff, view, 10, 0, Some(80), false);
}
