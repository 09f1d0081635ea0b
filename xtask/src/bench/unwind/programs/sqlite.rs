//! sqlite3, filling and emptying a table by recursive queries.

use std::fs;
use std::fs::File;
use std::path::Path;

use anyhow::Result;

use super::super::program::{Program, Running};
use crate::bench::process::{Guarded, bound};

pub(in super::super) const PROGRAM: Program =
    Program { name: "sqlite3", load: "inserts from a recursive query", interval_bytes: 64, seconds: 4, start };

/// Rounds of filling and emptying: far more than are waited for.
const ROUNDS: usize = 200;

fn start(folder: &Path) -> Result<Running> {
    let script = folder.join("script.sql");
    let round = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000)
INSERT INTO t SELECT i, printf('%d-%s', i, hex(randomblob(12))), i * 0.5 FROM n;
SELECT count(*), group_concat(substr(b, 1, 3)) FROM t WHERE b LIKE '%7A%' GROUP BY a % 100;
DELETE FROM t;
";
    fs::write(
        &script,
        format!(
            "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);\nCREATE INDEX tb ON t(b);\n{}",
            round.repeat(ROUNDS)
        ),
    )?;
    let mut sqlite = bound("sqlite3");
    sqlite.arg(folder.join("data.sqlite")).stdin(File::open(&script)?);
    Ok(Running::alone(Guarded::spawn(&mut sqlite)?))
}
