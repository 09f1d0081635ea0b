//! ffmpeg, which maps some two hundred modules, encoding a generated picture.

use std::path::Path;

use anyhow::Result;

use super::super::program::{Program, Running};
use crate::bench::process::{Guarded, bound};

pub(in super::super) const PROGRAM: Program =
    Program { name: "ffmpeg", load: "testsrc2 to x264 and AAC", interval_bytes: 1, seconds: 6, start };

fn start(_: &Path) -> Result<Running> {
    let mut ffmpeg = bound("ffmpeg");
    ffmpeg.args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=30:duration=7200"]);
    ffmpeg.args(["-f", "lavfi", "-i", "sine=frequency=440:duration=7200", "-vf", "scale=160:120,hue=s=0"]);
    ffmpeg.args(["-c:v", "libx264", "-preset", "veryfast", "-c:a", "aac", "-f", "matroska", "-y", "/dev/null"]);
    Ok(Running::alone(Guarded::spawn(&mut ffmpeg)?))
}
