//! Stacks of JSON reports, as in formats without labels.

use serde_json::Value;

/// Returns the names of a callsite's frames, the outermost first, with markers of missing frames.
pub(crate) fn names(callsite: &Value) -> Vec<String> {
    let frames = callsite["stack"].as_array().expect("a callsite has a stack");
    let end = match (callsite["end"].as_str(), frames.is_empty()) {
        (None, true) => Some("[stack lost]".to_owned()),
        (None, false) => Some("[unwind stopped: unknown reason]".to_owned()),
        (Some("complete"), true) => Some("[no frames]".to_owned()),
        (Some("complete"), false) => None,
        (Some(end), _) => Some(format!("[unwind stopped: {}]", reason(end))),
    };
    let inherited = callsite["inherited"].as_bool().expect("callsites are inherited or not");
    let above = inherited.then(|| "[inherited at the fork]".to_owned()).into_iter().chain(end);
    above.chain(frames.iter().rev().map(name)).collect()
}

fn reason(end: &str) -> &'static str {
    match end {
        "truncated" => "more than 1024 frames",
        "unreadable" => "unreadable memory",
        "broken_chain" => "broken frame pointers",
        "no_scratch" => "interrupted",
        "missing_module" => "no table",
        "no_row" => "no unwind information",
        "unsupported_rule" => "unsupported unwind rule",
        _ => panic!("`{end}` is no end of a stack"),
    }
}

fn name(frame: &Value) -> String {
    let text = |field: &str| frame[field].as_str();
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    match (text("function"), text("module"), text("module_offset")) {
        (Some(function), _, _) => function.to_owned(),
        (None, Some(module), Some(offset)) => format!("{}+{offset}", base(module)),
        (None, Some(module), None) => format!("{}+?", base(module)),
        (None, None, _) => text("address").expect("frames have addresses").to_owned(),
    }
}
