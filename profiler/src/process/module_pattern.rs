//! Patterns for modules: `*` matches any characters, `?` one.

use std::fmt;

/// A pattern for modules. One that begins with `/` is compared with whole paths, any other with file names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModulePattern(String);

impl ModulePattern {
    /// Creates a pattern such as `libcudart.so*`, `/opt/app/lib/libarena.so`, `*`.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether it is `*`, which matches every module.
    pub fn is_any(&self) -> bool {
        self.0 == "*"
    }

    /// Whether it matches the module with this path.
    pub fn matches(&self, path: &str) -> bool {
        let name = if self.0.starts_with('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
        matches(self.0.as_bytes(), name.as_bytes())
    }

    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModulePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Compares byte by byte; on a mismatch, the last `*` takes one byte more. Quadratic, but names are short.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut in_pattern, mut in_name) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(in_pattern) {
            Some(b'*') => {
                star = Some((in_pattern, in_name));
                in_pattern += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[in_name] => {
                in_pattern += 1;
                in_name += 1;
            }
            _ => {
                let Some((behind, taken)) = star else { return false };
                star = Some((behind, taken + 1));
                in_pattern = behind + 1;
                in_name = taken + 1;
            }
        }
    }
    pattern[in_pattern..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_file_names_or_whole_paths() {
        let check = |pattern: &str, path: &str, expected: bool| {
            assert_eq!(ModulePattern::new(pattern).matches(path), expected, "{pattern} {path}");
        };
        check("libcudart.so*", "/usr/local/cuda/lib64/libcudart.so.12.4.99", true);
        check("libcudart.so*", "/usr/lib/libcuda.so.1", false);
        check("libarena.so", "/opt/libarena.so.1", false);
        check("/opt/*/libarena.so", "/opt/app/libarena.so", true);
        check("/opt/libarena.so", "/usr/libarena.so", false);
        check("python3.?", "/usr/bin/python3.9", true);
        check("python3.?", "/usr/bin/python3.11", false);
        check("*a*b*", "/xaxxb", true);
        check("*a*b*", "/xbxxa", false);
        check("*", "[vdso]", true);
        check("", "/", true);
    }

    proptest::proptest! {
        #[test]
        fn a_name_matches_itself_and_with_any_part_replaced_by_a_star(name in "[a-z.]{0,12}", from: usize, to: usize) {
            let (from, to) = (from % (name.len() + 1), to % (name.len() + 1));
            let (from, to) = (from.min(to), from.max(to));
            let pattern = format!("{}*{}", &name[..from], &name[to..]);
            proptest::prop_assert!(ModulePattern::new(&name).matches(&name));
            proptest::prop_assert!(ModulePattern::new(&pattern).matches(&name));
        }
    }
}
