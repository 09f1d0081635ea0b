//! Scripts that tools have translated from other sources, such as TypeScript, and the files with their source maps. The target
//! controls both: files are opened with its rights, beneath its root directory, and maps are parsed by the symbolizer process.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use heapbpf_linux::proc::process;
use heapbpf_linux::rights::Rights;
use serde::{Deserialize, Serialize};

use super::ObjectError;
use super::image::Image;
use crate::reader::Wanted;

/// Maximum size of a source map. Those of large bundles with their sources have some dozens of megabytes.
pub(crate) const MAP_BYTES_MAX: u64 = 128 << 20;
/// Maximum size of the file of a script, as the program has loaded it.
const SCRIPT_BYTES_MAX: u64 = 64 << 20;
/// Maximum length of the name of a map, in UTF-16 units.
const NAME_UNITS_MAX: usize = 4096;
/// Lines from the end of a script that are searched for the name of its map.
const LINES_MAX: usize = 16;
/// Begin the comment with the name of a map; see <https://tc39.es/ecma426/#sec-linking-inline>.
const COMMENTS: [&str; 2] = ["//# sourceMappingURL=", "//@ sourceMappingURL="];
const INLINE: &str = "data:";

/// A place in a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Spot {
    /// From 1.
    pub(crate) line: u32,
    /// From 0, in UTF-16 units.
    pub(crate) column: u32,
}

/// A function in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InScript {
    pub(crate) script: Arc<Script>,
    /// Where the function's name is written, if it is.
    pub(crate) name: Option<Spot>,
}

/// A script that may have a source map.
#[derive(Debug)]
pub(crate) struct Script {
    /// Path or URL, as the runtime has it.
    pub(crate) file: Arc<str>,
    text: TextIdentity,
    map: MapPlace,
    /// `None`: files of the program cannot be opened.
    files: Option<Arc<TargetFiles>>,
}

/// What distinguishes the texts of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextIdentity {
    bytes: u64,
    checksum: u32,
}

impl TextIdentity {
    /// Of the UTF-8 form of this text.
    pub(crate) fn of(units: &[u16]) -> Self {
        const PART_BYTES: usize = 1 << 16;
        if units.iter().all(|&unit| unit < 0x80) {
            #[expect(clippy::cast_possible_truncation, reason = "they are below 0x80")]
            let bytes: Vec<u8> = units.iter().map(|&unit| unit as u8).collect();
            return Self { bytes: bytes.len() as u64, checksum: crc32fast::hash(&bytes) };
        }
        let (mut hasher, mut part, mut bytes) = (crc32fast::Hasher::new(), String::new(), 0);
        let mut add = |part: &mut String| {
            hasher.update(part.as_bytes());
            bytes += part.len() as u64;
            part.clear();
        };
        for character in char::decode_utf16(units.iter().copied()) {
            part.push(character.unwrap_or(char::REPLACEMENT_CHARACTER));
            if part.len() >= PART_BYTES {
                add(&mut part);
            }
        }
        add(&mut part);
        Self { bytes, checksum: hasher.finalize() }
    }

    /// Runtimes skip the mark at the beginning of a file.
    fn of_file(bytes: &[u8]) -> Self {
        let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        Self { bytes: text.len() as u64, checksum: crc32fast::hash(text) }
    }
}

/// Where the source map of a script is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapPlace {
    /// At the script's path, with `.map` behind it.
    Beside,
    /// In the file with this name, as the script has it.
    Named(Arc<str>),
    /// In the script: a URL with the data.
    Inline(Arc<str>),
    /// In the script, which is not kept: the process has too many of them.
    Dropped,
}

impl MapPlace {
    pub(crate) fn of(units: &[u16]) -> Self {
        let lines = units.rsplit(|unit| matches!(unit, 0x0a | 0x0d | 0x2028 | 0x2029));
        let Some(url) = lines.take(LINES_MAX).find_map(url_in) else { return Self::Beside };
        let inline: Vec<u16> = INLINE.encode_utf16().collect();
        let text = |units: &[u16]| Arc::from(String::from_utf16_lossy(units));
        match url {
            url if url.starts_with(&inline) => Self::Inline(text(url)),
            url if url.len() <= NAME_UNITS_MAX => Self::Named(text(url)),
            _ => Self::Beside,
        }
    }
}

/// The name of a map, if the line has nothing else.
fn url_in(line: &[u16]) -> Option<&[u16]> {
    const SPACES: [u16; 2] = [0x20, 0x09];
    let first = line.iter().position(|unit| !SPACES.contains(unit))?;
    let line = &line[first..];
    let comment = COMMENTS.iter().find(|comment| {
        comment.len() < line.len() && comment.encode_utf16().eq(line[..comment.len()].iter().copied())
    })?;
    let url = line[comment.len()..].split(|unit| SPACES.contains(unit)).next()?;
    (!url.is_empty()).then_some(url)
}

/// Opens files for a program, beneath its root directory and with its rights.
#[derive(Debug)]
pub(crate) struct TargetFiles {
    rights: Rights,
    root: File,
}

impl TargetFiles {
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        Some(Self { root: process::root(pid).ok()?, rights: Rights::of(pid)? })
    }

    fn open(&self, path: &Path, bytes_max: u64) -> Result<Image, ObjectError> {
        let wanted = Wanted { path, follows: true, owners: None, bytes_max };
        Image::open_for(&self.rights, &self.root, wanted)
    }
}

impl PartialEq for Script {
    fn eq(&self, other: &Self) -> bool {
        (&self.file, self.text, &self.map) == (&other.file, other.text, &other.map)
    }
}

impl Eq for Script {}

/// A source map that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MapError {
    #[error("the script was changed after the program loaded it")]
    Changed,
    #[error("the source maps within the scripts of its process exceed the limit")]
    Dropped,
    #[error("{0}")]
    Unreadable(ObjectError),
}

/// A source map.
#[derive(Debug)]
pub(crate) struct MapFile {
    pub(crate) image: Image,
    /// The folder from which the paths of its sources start; empty if it is not known.
    folder: PathBuf,
}

impl Script {
    pub(crate) fn new(file: Arc<str>, text: TextIdentity, map: MapPlace, files: Option<Arc<TargetFiles>>) -> Self {
        Self { file, text, map, files }
    }

    /// Size of a map that the script contains.
    pub(crate) fn inline_bytes(&self) -> usize {
        match &self.map {
            MapPlace::Inline(url) => url.len(),
            MapPlace::Beside | MapPlace::Named(_) | MapPlace::Dropped => 0,
        }
    }

    pub(crate) fn without_inline(self) -> Self {
        Self { map: MapPlace::Dropped, ..self }
    }

    /// What reports call the source map.
    pub(crate) fn map_name(&self) -> String {
        match &self.map {
            MapPlace::Inline(_) | MapPlace::Dropped => format!("{} (inline source map)", self.file),
            MapPlace::Beside | MapPlace::Named(_) => {
                self.map_path().map_or_else(|| self.file.to_string(), |path| shown::os_text(&path).into_owned())
            }
        }
    }

    /// `Ok(None)` if there is no map.
    pub(crate) fn open_map(&self) -> Result<Option<MapFile>, MapError> {
        match &self.map {
            MapPlace::Dropped => return Err(MapError::Dropped),
            MapPlace::Inline(url) => {
                let image = Image::from_bytes(url.as_bytes()).map_err(MapError::Unreadable)?;
                let path = path_of(&self.file);
                let folder = path.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
                return Ok(Some(MapFile { image, folder }));
            }
            MapPlace::Beside | MapPlace::Named(_) => {}
        }
        let (Some(files), Some(script), Some(path)) = (&self.files, path_of(&self.file), self.map_path()) else {
            return Ok(None);
        };
        let image = match files.open(&path, MAP_BYTES_MAX) {
            Ok(image) => image,
            // Packages are published with the names of maps, and without the maps.
            Err(ObjectError::Gone) => return Ok(None),
            Err(error) => return Err(MapError::Unreadable(error)),
        };
        if self.is_text_of(files, &script) != Some(true) {
            return Err(MapError::Changed);
        }
        Ok(Some(MapFile { image, folder: path.parent().unwrap_or(Path::new("")).to_owned() }))
    }

    /// Whether the file has the text that the program has loaded.
    fn is_text_of(&self, files: &TargetFiles, path: &Path) -> Option<bool> {
        let file = files.open(path, SCRIPT_BYTES_MAX).ok()?;
        let bytes = file.read(FileOffset(0), file.identity().size_bytes, SCRIPT_BYTES_MAX).ok()?;
        Some(TextIdentity::of_file(&bytes) == self.text)
    }

    fn map_path(&self) -> Option<PathBuf> {
        let script = path_of(&self.file)?;
        match &self.map {
            MapPlace::Named(name) => Some(lexical(&script.parent()?.join(path_in(name)?))),
            MapPlace::Beside => {
                let mut path = script.into_os_string();
                path.push(".map");
                Some(path.into())
            }
            MapPlace::Inline(_) | MapPlace::Dropped => None,
        }
    }
}

impl MapFile {
    /// The text for a source that the map names; nothing is opened.
    pub(crate) fn source(&self, name: &str) -> String {
        match path_in(name) {
            Some(path) => shown::os_text(&lexical(&self.folder.join(path))).into_owned(),
            // Such as `webpack://app/./src/leak.ts`.
            None => name.to_owned(),
        }
    }
}

/// Absolute path of a script; `None` for other names, such as `node:buffer`.
fn path_of(file: &str) -> Option<PathBuf> {
    path_in(file).filter(|path| path.is_absolute())
}

/// The path in a URL without scheme, or of a file; `None` for others.
fn path_in(url: &str) -> Option<PathBuf> {
    let Some(rest) = url.strip_prefix("file://") else {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| !scheme.is_empty());
        let is_scheme =
            |scheme: &str| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        return if scheme.is_some_and(is_scheme) { None } else { Some(url.into()) };
    };
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    Some(Path::new(OsStr::from_bytes(&percent_decoded(path.as_bytes()))).to_owned()).filter(|path| path.is_absolute())
}

/// Bytes with `%` and two digits in place of some.
pub(crate) fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (mut decoded, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, behind)) = rest.split_first() {
        let escaped = match behind {
            [high, low, ..] if first == b'%' => digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        decoded.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    decoded
}

/// A path without `.` and `..`.
fn lexical(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(result.components().next_back(), Some(Component::Normal(_))) => {
                result.pop();
            }
            Component::ParentDir if result.has_root() => {}
            part => result.push(part),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(text: &str) -> Vec<u16> {
        text.encode_utf16().collect()
    }

    #[test]
    fn the_last_line_with_a_comment_names_the_map() {
        let place = |text: &str| MapPlace::of(&units(text));
        let named = |name: &str| MapPlace::Named(name.into());
        assert_eq!(place("a()\n//# sourceMappingURL=a.js.map\n\n"), named("a.js.map"));
        assert_eq!(place("a()\r\n  //@ sourceMappingURL=a.map \r\n// end"), named("a.map"));
        assert_eq!(place("//# sourceMappingURL=a\n//# sourceMappingURL=b"), named("b"));
        assert_eq!(place("//# sourceMappingURL=data:x,{}"), MapPlace::Inline("data:x,{}".into()));
        for other in ["", "a", "x = '//# sourceMappingURL=a'", "//# sourceMappingURL=", "//#sourceMappingURL=a"] {
            assert_eq!(place(other), MapPlace::Beside, "{other}");
        }
        let far = format!("//# sourceMappingURL=a{}", "\n".repeat(LINES_MAX));
        assert_eq!(place(&far), MapPlace::Beside);
        assert_eq!(place(&format!("//# sourceMappingURL={}", "a".repeat(NAME_UNITS_MAX + 1))), MapPlace::Beside);
    }

    #[test]
    fn maps_are_beside_scripts_or_where_these_say() {
        let script = |file: &str, map: MapPlace| Script::new(file.into(), TextIdentity::of(&[]), map, None);
        let named = |file: &str, name: &str| script(file, MapPlace::Named(name.into())).map_path();
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(script("/srv/a.js", MapPlace::Beside).map_path(), path("/srv/a.js.map"));
        assert_eq!(script("file:///srv/a%20b.mjs?x=1", MapPlace::Beside).map_path(), path("/srv/a b.mjs.map"));
        assert_eq!(named("/srv/dist/a.js", "../maps/a.js.map"), path("/srv/maps/a.js.map"));
        assert_eq!(named("/srv/a.js", "../../../../etc/a.map"), path("/etc/a.map"));
        for (file, name) in [("/srv/a.js", "http://x/a.map"), ("node:buffer", "a.map"), ("evalmachine", "a.map")] {
            assert_eq!(named(file, name), None, "{file} {name}");
        }
    }

    #[test]
    fn sources_are_texts_beside_the_map() {
        let image = Image::from_bytes(b"").expect("a memfd");
        let file = MapFile { image, folder: "/srv/dist".into() };
        for (name, shown) in [
            ("../src/leak.ts", "/srv/src/leak.ts"),
            ("./leak.ts", "/srv/dist/leak.ts"),
            ("/opt/leak.ts", "/opt/leak.ts"),
            ("file:///opt/my%20leak.ts", "/opt/my leak.ts"),
            ("webpack://app/./src/leak.ts", "webpack://app/./src/leak.ts"),
        ] {
            assert_eq!(file.source(name), shown);
        }
    }

    #[test]
    fn a_text_is_the_one_of_its_file() {
        let text = "const ä = '😀';\n";
        let long = text.repeat(10_000);
        for text in [text, &long, ""] {
            assert_eq!(TextIdentity::of(&units(text)), TextIdentity::of_file(text.as_bytes()));
            assert_eq!(TextIdentity::of(&units(text)), TextIdentity::of_file(format!("\u{feff}{text}").as_bytes()));
        }
        assert_ne!(TextIdentity::of(&units("a")), TextIdentity::of_file(b"b"));
    }
}
