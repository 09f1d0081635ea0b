//! Kinds of frames in the formats that have a place for them, besides OTLP, which has a golden.

use std::collections::BTreeMap;

use heapbpf_ledger::model::{Frame, FrameKind};
use serde_json::Value;

use super::render;
use crate::testing as profiles;
use crate::{Format, View};

fn json(format: Format) -> Value {
    serde_json::from_str(&render(format, &profiles::kinds(), View::LiveBytes)).expect("the file is JSON")
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("a list").iter()
}

#[test]
fn firefox_has_categories_and_javascript() {
    let file = json(Format::Firefox);
    let thread = &file["threads"][0];
    let text = |index: &Value| {
        thread["stringArray"][usize::try_from(index.as_u64().expect("an index")).expect("small")].as_str()
    };
    let mut found = BTreeMap::new();
    let frames = &thread["frameTable"];
    for (function, category) in list(&frames["func"]).zip(list(&frames["category"])) {
        let at = |table: &'static str, name: &str, index: &Value| {
            let index = usize::try_from(index.as_u64().expect("an index")).expect("small");
            thread[table][name][index].clone()
        };
        let name = at("funcTable", "name", function);
        let category =
            &file["meta"]["categories"][usize::try_from(category.as_u64().expect("an index")).expect("small")];
        let is_script = at("funcTable", "isJS", function).as_bool();
        found.insert(
            text(&name).expect("a name").to_owned(),
            (category["name"].as_str().expect("a name").to_owned(), is_script),
        );
    }
    let of = |name: &str| found.get(name).map(|(category, is_script)| (category.as_str(), *is_script));
    assert_eq!(of("cache_insert"), Some(("JIT", Some(true))), "{found:?}");
    assert_eq!(of("handle_request"), Some(("Interpreted", Some(true))));
    assert_eq!(of("main"), Some(("Runtime", Some(false))));
    assert_eq!(of("__libc_start_call_main"), Some(("Native", Some(false))));
}

#[test]
fn flame_graphs_have_generated_code_in_the_legend() {
    let image = render(Format::Flamegraph, &profiles::kinds(), View::LiveBytes);
    assert!(image.contains("[jit]"), "{image:.3000}");
}

#[test]
fn nameless_generated_code_is_one_frame() {
    let frame = |address, kind| Frame { module: Some("[jit]".into()), kind, address, ..Frame::default() };
    assert_eq!([1, 2].map(|address| frame(address, FrameKind::Jitted).label()), ["[jit]", "[jit]"]);
    assert_eq!(frame(1, FrameKind::Native).label(), "[jit]+?");
}
