//! What ran, read back.

use std::borrow::Cow;

use serde::Deserialize;

use super::Interner;
use super::fields::hexadecimal;
use crate::ids::Tid;
use crate::model::{MappingProfile, ModuleProfile, ThreadProfile};
use crate::report::text;

#[derive(Deserialize)]
pub(super) struct ModuleFields<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    build_id: Option<Cow<'a, str>>,
}

impl ModuleFields<'_> {
    pub(super) fn into_module(self, interner: &mut Interner) -> Result<ModuleProfile, String> {
        Ok(ModuleProfile {
            path: interner.name(&self.path),
            build_id: self.build_id.as_deref().map(bytes_of).transpose()?,
        })
    }
}

/// Bytes of which each is two hexadecimal digits.
fn bytes_of(digits: &str) -> Result<Vec<u8>, String> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    let bytes = bytes.filter(|bytes| !bytes.is_empty());
    bytes.ok_or_else(|| format!("`{}` is no build id", text::printable(digits)))
}

#[derive(Deserialize)]
pub(super) struct MappingFields<'a> {
    #[serde(borrow)]
    start: Cow<'a, str>,
    #[serde(borrow)]
    end: Cow<'a, str>,
    #[serde(borrow)]
    offset: Cow<'a, str>,
    #[serde(borrow)]
    bias: Option<Cow<'a, str>>,
    module: usize,
}

impl MappingFields<'_> {
    /// `modules` is how many there are.
    pub(super) fn into_mapping(self, modules: usize) -> Result<MappingProfile, String> {
        let Self { module, .. } = self;
        if module >= modules {
            return Err(format!("a mapping is of module `{module}`, and there are {modules}"));
        }
        let (start, end) = (hexadecimal(&self.start)?, hexadecimal(&self.end)?);
        if start > end {
            return Err(format!("a mapping begins at `{start:#x}` and ends at `{end:#x}`, which is before"));
        }
        let bias = self.bias.as_deref().map(hexadecimal).transpose()?;
        Ok(MappingProfile { start, end, offset: hexadecimal(&self.offset)?, bias, module })
    }
}

#[derive(Deserialize)]
pub(super) struct ThreadFields {
    tid: u32,
    name: Option<String>,
}

impl From<ThreadFields> for ThreadProfile {
    fn from(thread: ThreadFields) -> Self {
        Self { tid: Tid(thread.tid), name: thread.name.map(Into::into) }
    }
}

/// A place in the list of threads, of which there are so many.
pub(super) fn thread_at(place: Option<usize>, threads: usize) -> Result<Option<usize>, String> {
    match place {
        Some(place) if place >= threads => Err(format!("a callsite is of thread `{place}`, and there are {threads}")),
        place => Ok(place),
    }
}
