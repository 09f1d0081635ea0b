//! Names that V8 gives to JavaScript functions (`--perf-basic-prof`, `--perf-prof`): `JS:*leak /srv/app.js:2:14`.

use super::super::facts::GeneratedName;

/// Kinds of code with a function, in releases since 2012.
const KINDS: [&str; 5] = ["JS:", "LazyCompile:", "Function:", "Eval:", "Script:"];
/// Marks of the compiler: none, Ignition, Sparkplug, Maglev, TurboFan. A function has the same name with all of them.
const TIERS: [char; 5] = ['~', '^', '+', '*', '-'];
/// Follows the mark of a compiler in newer versions of V8, such as 15.0.
const ANY_CONTEXT: char = '\'';
/// Compilers of WebAssembly.
const WEB_ASSEMBLY_TIERS: [&str; 2] = ["-liftoff", "-turbofan"];
const ANONYMOUS: &str = "(anonymous)";

/// Returns `None` for other code, and without a place unless it is WebAssembly.
pub(super) fn parse(name: &str) -> Option<GeneratedName<'_>> {
    let rest = KINDS.iter().find_map(|kind| name.strip_prefix(kind))?;
    if let Some(function) = web_assembly(rest) {
        return Some(GeneratedName { function, place: None });
    }
    let rest = rest.strip_prefix(TIERS).unwrap_or(rest);
    let rest = rest.strip_prefix(ANY_CONTEXT).unwrap_or(rest);
    let (rest, line) = number_behind(rest)?;
    // V8 10.2 (Node.js 18) gives no column.
    let (rest, line) = number_behind(rest).unwrap_or((rest, line));
    // Names of functions contain spaces in `get x`; paths in V8's files do so rarely.
    let (function, file) = match rest.split_once(" /").or_else(|| rest.split_once(" file:///")) {
        Some((function, path)) => (function, &rest[rest.len() - path.len() - 1..]),
        None => rest.rsplit_once(' ').unwrap_or(("", rest)),
    };
    let function = if function.is_empty() { ANONYMOUS } else { function };
    Some(GeneratedName { function, place: Some((file, line)) })
}

/// The function in `growCache-1-liftoff`: its name, its index and its compiler.
fn web_assembly(name: &str) -> Option<&str> {
    let name = name.strip_prefix(TIERS).unwrap_or(name);
    let rest = WEB_ASSEMBLY_TIERS.iter().find_map(|tier| name.strip_suffix(tier))?;
    let (function, index) = rest.rsplit_once('-')?;
    let is_index = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    (is_index && !function.is_empty()).then_some(function)
}

/// A text, and the number behind its last colon.
fn number_behind(text: &str) -> Option<(&str, u32)> {
    let (text, number) = text.rsplit_once(':')?;
    Some((text, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_one_name_in_all_tiers() {
        let leak = Some(GeneratedName { function: "leak", place: Some(("/srv/my app.js", 2)) });
        for name in [
            "JS:*leak /srv/my app.js:2:14",
            "JS:^leak /srv/my app.js:2:14",
            "JS:~leak /srv/my app.js:2:14",
            "JS:+'leak file:///srv/my app.js:2:14",
            "LazyCompile:leak /srv/my app.js:2:14",
            "Function:+leak file:///srv/my app.js:2:14",
            "LazyCompile:*leak /srv/my app.js:2",
        ] {
            assert_eq!(parse(name), leak, "{name}");
        }
        let of = |name| {
            let (function, place) = parse(name).map(|name| (name.function, name.place))?;
            place.map(|(file, line)| (function, file, line))
        };
        assert_eq!(of("JS:~ node:internal/timers:1:1"), Some(("(anonymous)", "node:internal/timers", 1)));
        assert_eq!(of("JS:*get size node:buffer:90:3"), Some(("get size", "node:buffer", 90)));
        for name in ["JS:growCache-1-liftoff", "JS:*growCache-1-turbofan"] {
            assert_eq!(parse(name), Some(GeneratedName { function: "growCache", place: None }), "{name}");
        }
        for other in [
            "JS:f-liftoff",
            "JS:-1-liftoff",
            "JS:f-x-liftoff",
            "Builtin:ArrayPush",
            "BytecodeHandler:Star",
            "JS:*leak",
            "JS:",
            "leak /a.js:1:1",
            "JS:a b:x:y",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
