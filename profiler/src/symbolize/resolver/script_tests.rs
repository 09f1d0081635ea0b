//! Scripts and maps in files, as a program has loaded them.

use std::path::Path;

use heapbpf_base::ids::Pid;

use super::*;
use crate::object::interpreted::ScriptPlace;
use crate::object::script::{InScript, MapPlace, TargetFiles, TextIdentity};

/// The function `a` is `leak` of line 5 in `src/a.ts`; its body from column 20 on is in line 6.
const SCRIPT: &str = "function a(b){      c.push(Buffer.alloc(b))}\n";
const MAP: &str = r#"{"version":3,"sources":["../src/a.ts"],"names":["leak"],"mappings":"SAIAA,WACA"}"#;

/// A program's script in a folder of its own.
struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("temporary folder") }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("within the folder")).expect("ours");
        std::fs::write(path, text).expect("ours");
    }

    /// The function in a script with this text, as it was loaded from `dist/a.js`.
    fn translated(&self, text: &str) -> (CodeLocation, Vec<(String, NamesFrom)>) {
        let units: Vec<u16> = text.encode_utf16().collect();
        let file: Arc<str> = self.folder.path().join("dist/a.js").to_str().expect("UTF-8").into();
        let files = TargetFiles::of(Pid(std::process::id())).map(Arc::new);
        let script = Script::new(Arc::clone(&file), TextIdentity::of(&units), MapPlace::of(&units), files);
        let InScript { script, name } = InScript { script: Arc::new(script), name: Some(Spot { line: 1, column: 9 }) };
        let in_script = Some(ScriptPlace { script, at: Spot { line: 1, column: 27 }, name });
        let mut chains =
            [vec![CodeLocation { function: Some("a".into()), file: Some(file), line: Some(1), in_script }]];
        let mut state = State::default();
        state.translate(&mut chains);
        let [chain] = chains;
        let failures = state.failures.iter().map(|failure| (failure.reason.clone(), failure.names));
        (chain.into_iter().next().expect("it stays"), failures.collect())
    }

    fn check(&self, case: &str, text: &str) {
        let (location, failures) = self.translated(text);
        assert_eq!(failures, [], "{case}");
        let expected = self.folder.path().join("src/a.ts");
        assert_eq!(location.function.as_deref(), Some("leak"), "{case}");
        assert_eq!(location.file.as_deref().map(Path::new), Some(&*expected), "{case}");
        assert_eq!(location.line, Some(6), "{case}");
    }

    /// The script keeps its own names; returns why.
    fn reason(&self, text: &str) -> Option<String> {
        let (location, failures) = self.translated(text);
        assert_eq!((location.function.as_deref(), location.line), (Some("a"), Some(1)));
        assert!(location.file.is_some_and(|file| file.ends_with("dist/a.js")));
        assert!(failures.len() <= 1 && failures.iter().all(|(_, names)| *names == NamesFrom::Script), "{failures:?}");
        failures.into_iter().next().map(|(reason, _)| reason)
    }
}

fn named(name: &str) -> String {
    format!("{SCRIPT}//# sourceMappingURL={name}\n")
}

#[test]
fn functions_have_the_names_of_their_sources() {
    let program = Program::new();
    program.write("dist/a.js", SCRIPT);
    program.write("dist/a.js.map", MAP);
    program.check("beside the script", SCRIPT);
    program.write("dist/a.js", &named("../maps/own.map"));
    program.write("maps/own.map", MAP);
    program.check("with another name", &named("../maps/own.map"));
    let inline = format!("data:application/json,{}", MAP.replace('"', "%22"));
    program.check("in the script", &named(&inline));
}

#[test]
fn scripts_without_a_map_keep_their_names() {
    let program = Program::new();
    program.write("dist/a.js", SCRIPT);
    assert_eq!(program.reason(SCRIPT), None);
    assert_eq!(program.reason(&named("missing.map")), None);
    assert_eq!(program.reason(&named("https://example.com/a.map")), None);
}

#[test]
fn maps_of_another_build_are_not_used() {
    let program = Program::new();
    program.write("dist/a.js", &SCRIPT.replace("alloc", "other"));
    program.write("dist/a.js.map", MAP);
    assert_eq!(program.reason(SCRIPT).as_deref(), Some("the script was changed after the program loaded it"));
}

#[test]
fn hostile_maps_cost_their_mappings() {
    let program = Program::new();
    program.write("dist/a.js", SCRIPT);
    let no_map = Some("it is no source map of version 3");
    for map in ["", "{", "[]", r#"{"version":4,"sources":["a"],"mappings":"AAAA"}"#, &"[".repeat(1 << 20)] {
        program.write("dist/a.js.map", map);
        assert_eq!(program.reason(SCRIPT).as_deref(), no_map, "{map:.40}");
    }
    program.write("dist/a.js.map", &MAP.replace("../src/a.ts\"]", "\"]").replace("[\"\"]", "[]"));
    assert_eq!(program.reason(SCRIPT).as_deref(), Some("malformed mappings in its source map: 2"));
    let path = program.folder.path().join("dist/a.js.map");
    let large = std::fs::OpenOptions::new().write(true).open(path).expect("ours");
    large.set_len(1 << 40).expect("sparse");
    assert!(program.reason(SCRIPT).is_some(), "it is too large");
}

#[test]
fn maps_in_too_many_scripts_are_reported() {
    let file: Arc<str> = "/srv/a.js".into();
    let inline = MapPlace::Inline("data:,".into());
    let script = Script::new(file, TextIdentity::of(&[]), inline, None).without_inline();
    let mut state = State::default();
    assert_eq!(state.originals(&script, &[Spot { line: 1, column: 0 }]).map(|found| found.len()), Some(0));
    let [failure] = &state.failures[..] else { panic!("{:?}", state.failures) };
    assert_eq!(failure.module, "/srv/a.js (inline source map)");
}
