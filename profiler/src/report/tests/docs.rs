//! Tables of the documentation that tests compare with the code.

use std::path::Path;

/// Compares the text between the marks `<!-- NAME: generated -->` and `<!-- end -->` of a file in docs.
/// `UPDATE_GOLDEN=1` rewrites it.
#[track_caller]
pub(crate) fn check_table(file: &str, name: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
    let text = std::fs::read_to_string(&path).expect("it is in docs");
    let mark = format!("<!-- {name}: generated -->\n");
    let (start, rest) = text.split_once(&mark).expect("the mark before the table");
    let (documented, end) = rest.split_once("<!-- end -->").expect("the mark after the table");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(&path, format!("{start}{mark}{table}<!-- end -->{end}")).expect("docs can be written to");
    } else {
        assert!(documented == table, "{} has another table; UPDATE_GOLDEN=1 rewrites it:\n{table}", path.display());
    }
}
