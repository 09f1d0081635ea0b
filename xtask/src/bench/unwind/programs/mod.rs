//! The programs that are profiled: servers, interpreters, compilers, and whatever maps many modules.

mod compilers;
mod ffmpeg;
mod git;
mod nginx;
mod postgres;
mod python;
mod redis;
mod sqlite;

use super::program::Program;

pub(super) use postgres::PROGRAM as POSTGRES;

/// All of them.
pub(super) const ALL: &[Program] = &[
    redis::PROGRAM,
    nginx::PROGRAM,
    postgres::PROGRAM,
    python::PROGRAM,
    git::PROGRAM,
    compilers::CC1,
    sqlite::PROGRAM,
    ffmpeg::PROGRAM,
    compilers::RUSTC,
];
