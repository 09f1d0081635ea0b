//! Records of instruction sequences.

use std::mem::offset_of;

use heapbpf_ledger::ingest::field::{DecodeError, field, word};
use profiler_common::interpreter::{CODE_NAME_BYTES, CodeId};
use profiler_common::ruby::{IS_SINGLETON, NAMES_OWNERS, OWNER_BYTES, RubyCodeRecord};

use super::super::implementation::NamedCode;
use super::labels;
use crate::object::interpreted::{CodeLines, Function};

pub(super) fn decode(bytes: &[u8]) -> Result<NamedCode, DecodeError> {
    let label: [u8; CODE_NAME_BYTES] = word(bytes, offset_of!(RubyCodeRecord, label))?;
    let path: [u8; CODE_NAME_BYTES] = word(bytes, offset_of!(RubyCodeRecord, path))?;
    let owner: [u8; OWNER_BYTES] = word(bytes, offset_of!(RubyCodeRecord, owner))?;
    let flags = field!(bytes, RubyCodeRecord, flags, u32);
    let owner = labels::copied(&owner, field!(bytes, RubyCodeRecord, owner_bytes, u32));
    let label = labels::copied(&label, field!(bytes, RubyCodeRecord, label_bytes, u32));
    let name = label.map(|label| match flags & NAMES_OWNERS {
        0 => label,
        _ => labels::with_owner(&label, owner.as_deref(), flags & IS_SINGLETON != 0).into(),
    });
    let file = labels::copied(&path, field!(bytes, RubyCodeRecord, path_bytes, u32));
    let id = CodeId(field!(bytes, RubyCodeRecord, code_id, u64)).in_frames();
    Ok(NamedCode::of(id, Function { name, file, lines: CodeLines::Numbers, script: None }))
}
