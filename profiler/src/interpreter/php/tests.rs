//! PHP as Debian has it.

use std::path::Path;

use super::layout::VERSIONS;
use super::*;
use crate::object::module::ModuleStore;

#[test]
fn versions_follow_their_header() {
    let version = |text: &str| Version::in_text(text.as_bytes()).map(|version| version.to_string());
    assert_eq!(version("XX-Powered-By: X-Powered-By: PHP/8.2.36\0").as_deref(), Some("8.2"));
    assert_eq!(version("X-Powered-By: PHP/%s\0X-Powered-By: PHP/8.10.0").as_deref(), Some("8.10"));
    for text in ["", "X-Powered-By: PHP/", "X-Powered-By: PHP/8", "X-Powered-By: PHP/8.2", "X-Powered-By: PHP/999.2.1"]
    {
        assert_eq!(version(text), None, "{text}");
    }
}

fn version_of(text: &str) -> Version {
    Version::in_text(format!("X-Powered-By: PHP/{text}").as_bytes()).expect("well-formed")
}

#[test]
fn known_versions_have_offsets() {
    for (minor, _) in VERSIONS.minors() {
        let php = version_of(&format!("8.{minor}.1")).php().expect("known");
        assert!(usize::from(php.function_line) + 4 <= profiler_common::php::FUNCTION_WORDS * 8);
    }
    for other in ["7.4.33", "8.99.0", "9.0.0"] {
        let error = version_of(other).php().expect_err("unknown");
        let version = other.rsplit_once('.').expect("three numbers").0;
        assert_eq!(error.to_string(), format!("PHP {version} is not supported ({VERSIONS} are)"));
    }
}

fn of(path: &str) -> Option<Php> {
    let mut modules = ModuleStore::default();
    let path = Path::new(path).canonicalize().expect("the tests install it");
    let id = modules.intern_path(&path).expect("it opens");
    Php::of(modules.get(id)).expect("it is an ELF file")
}

#[test]
fn frames_and_loop_of_debians_php_are_found() {
    let php = of("/usr/bin/php").expect("it exports its loop");
    let known = php.0.as_ref().expect("supported");
    let [hot, cold] = known.loops.as_slice() else { panic!("{known:#x?}") };
    assert!(hot.end - hot.start > 10_000 && cold.end > cold.start, "{known:#x?}");
    let placed = php.in_process(0x1000_0000).expect("supported");
    assert!(placed.globals.contains(placed.current), "{placed:#x?}");
    assert_eq!(placed.current, known.current.0 + 0x1000_0000);
    assert_eq!(of("/bin/true"), None);
}

#[test]
fn thread_safe_builds_are_refused() {
    let error = Php(Err(Unsupported::ThreadSafe)).in_process(0).expect_err("unsupported");
    assert_eq!(error.to_string(), "thread-safe builds of PHP (ZTS) are not supported");
}
