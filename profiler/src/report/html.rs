//! The HTML report: one interactive page that needs no network.
//!
//! The page consists of static parts (`html/page.html`, `html/style/*.css`, `html/page/*.js`, and the time chart's library
//! in `html/vendor`), a content security policy that allows these parts only, and the profile's data, compressed and in
//! base64, so that no name of a target is part of the page's markup.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};

use super::presentation::Presentation;
use crate::model::Profile;
use document::Document;

mod callsites;
mod column;
mod document;
mod health;
mod names;

/// The page, with `{{…}}` as placeholders for parts.
const PAGE: &str = include_str!("html/page.html");

const STYLE: &str = concat!(
    include_str!("html/vendor/uplot/uPlot.min.css"),
    include_str!("html/style/ground.css"),
    include_str!("html/style/charts.css"),
    include_str!("html/style/lists.css"),
);

/// The chart's library, unmodified.
const CHART: &str = include_str!("html/vendor/uplot/uPlot.iife.min.js");

const LICENCE: &str = include_str!("html/vendor/uplot/LICENSE");

/// The page's own script: one function, so that its modules share a scope of their own.
const SCRIPT: &str = concat!(
    "(() => {\n\"use strict\";\n",
    include_str!("html/page/text.js"),
    include_str!("html/page/element.js"),
    include_str!("html/page/data.js"),
    include_str!("html/page/period.js"),
    include_str!("html/page/selection.js"),
    include_str!("html/page/amounts.js"),
    include_str!("html/page/tree.js"),
    include_str!("html/page/colour.js"),
    include_str!("html/page/flame.js"),
    include_str!("html/page/flame_panel.js"),
    include_str!("html/page/timeline.js"),
    include_str!("html/page/histogram.js"),
    include_str!("html/page/callsite.js"),
    include_str!("html/page/table.js"),
    include_str!("html/page/leaks.js"),
    include_str!("html/page/health.js"),
    include_str!("html/page/header.js"),
    include_str!("html/page/main.js"),
    "})();\n",
);

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = PAGE;
    while let Some((before, (part, after))) =
        rest.split_once("{{").and_then(|(before, rest)| Some((before, rest.split_once("}}")?)))
    {
        out.write_all(before.as_bytes())?;
        match part {
            "policy" => out.write_all(policy().as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "licence" => out.write_all(LICENCE.as_bytes())?,
            "chart" => out.write_all(CHART.as_bytes())?,
            "script" => out.write_all(SCRIPT.as_bytes())?,
            "profile" => write_data(profile, presentation, out)?,
            _ => return Err(io::Error::other(format!("unknown placeholder `{part}` in the page"))),
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// The content security policy: the page runs its own two scripts and its style, identified by their hashes, and can neither
/// load nor send anything.
fn policy() -> String {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())));
    format!(
        "default-src 'none'; script-src {} {}; style-src {}; base-uri 'none'; form-action 'none'",
        hash(CHART),
        hash(SCRIPT),
        hash(STYLE)
    )
}

/// Writes the profile's data: JSON, compressed with gzip, in base64. The output is reproducible: it has no timestamp.
fn write_data(profile: &Profile, presentation: &Presentation, out: &mut dyn Write) -> io::Result<()> {
    let encoder = EncoderWriter::new(out, &STANDARD);
    let mut packer = io::BufWriter::with_capacity(1 << 16, GzBuilder::new().write(encoder, Compression::new(7)));
    serde_json::to_writer(&mut packer, &Document::new(profile, presentation))?;
    let mut encoder = packer.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
    encoder.finish()?;
    Ok(())
}
