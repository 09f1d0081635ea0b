//! Who has compiled a module, as far as advice depends on it: paths of packages, and names that compilers choose.

use heapbpf_ledger::model::{Frame, FrameKind, Profile};
use rustc_hash::FxHashMap;

use super::text;

/// A compiler with options of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compiler {
    Rust,
    Haskell,
}

/// Functions of Rust's libraries, which each program has, begin with these.
const OF_RUST: [&str; 7] = ["std::rt::", "std::alloc::", "core::ops::", "alloc::", "<alloc::", "<core::", "__rustc::"];

/// The compilers of a profile's modules.
#[derive(Debug, Default)]
pub(super) struct Compilers<'a>(FxHashMap<&'a str, Compiler>);

impl<'a> Compilers<'a> {
    pub(super) fn of(profile: &'a Profile) -> Self {
        let native = profile.frames.iter().filter(|frame| frame.kind == FrameKind::Native);
        Self(native.filter_map(|frame| Some((frame.module.as_deref()?, compiler(frame)?))).collect())
    }

    pub(super) fn get(&self, frame: &Frame) -> Option<Compiler> {
        compiler(frame).or_else(|| self.0.get(frame.module.as_deref()?).copied())
    }
}

fn compiler(frame: &Frame) -> Option<Compiler> {
    let name = frame.function.as_deref().unwrap_or_default();
    if frame.file.as_deref().is_some_and(|file| file.ends_with(".rs")) || OF_RUST.iter().any(|of| name.starts_with(of))
    {
        return Some(Compiler::Rust);
    }
    // Names of GHC's runtime, and of modules in its encoding: `base_GHCziBase_map_info`.
    let is_haskell = name == "hs_main" || name.starts_with("stg_") || (name.ends_with("_info") && name.contains("zi"));
    is_haskell.then_some(Compiler::Haskell)
}

/// The package of another language that has a compiled file: "the npm package `@img/sharp-libvips-linux-x64`".
pub(super) fn package(path: &str) -> Option<String> {
    let (kind, name) = if let Some((_, below)) = path.rsplit_once("/node_modules/") {
        let mut parts = below.split('/');
        let (first, second) = (parts.next()?, parts.next()?);
        ("npm", if first.starts_with('@') { format!("{first}/{second}") } else { first.to_owned() })
    } else {
        let (_, below) = path.rsplit_once("/site-packages/")?;
        let first = below.split('/').next()?;
        let name = first.strip_suffix(".libs").or_else(|| first.split('.').next()).unwrap_or(first);
        ("Python", name.to_owned())
    };
    (!name.is_empty()).then(|| format!("the {kind} package `{}`", text::printable(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_named_by_paths() {
        for (path, expected) in [
            (
                "/app/node_modules/@img/sharp-libvips-linux-x64/lib/libvips-cpp.so.8.17.3",
                Some("the npm package `@img/sharp-libvips-linux-x64`"),
            ),
            ("/a/node_modules/b/node_modules/bcrypt/lib/x.node", Some("the npm package `bcrypt`")),
            ("/v/lib/python3.12/site-packages/numpy.libs/libopenblas.so", Some("the Python package `numpy`")),
            ("/v/lib/python3.12/site-packages/numpy/core/x.so", Some("the Python package `numpy`")),
            ("/v/site-packages/_cffi_backend.cpython-312.so", Some("the Python package `_cffi_backend`")),
            ("/app/node_modules/x.node", None),
            ("/usr/lib/libvips.so.42", None),
        ] {
            assert_eq!(package(path).as_deref(), expected, "{path}");
        }
    }
}
