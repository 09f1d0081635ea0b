//! Records of functions.

use std::mem::offset_of;

use heapbpf_ledger::ingest::field::{DecodeError, field, word};
use profiler_common::interpreter::CodeId;
use profiler_common::php::{PHP_TEXT_BYTES, PhpCodeRecord, PhpText};

use super::super::implementation::NamedCode;
use super::names::{Part, function};

pub(super) fn decode(bytes: &[u8]) -> Result<NamedCode, DecodeError> {
    let part = |head: usize, content: usize| -> Result<Option<Part<'_>>, DecodeError> {
        let length = u64::from_ne_bytes(word(bytes, head + offset_of!(PhpText, length))?);
        let copied = u32::from_ne_bytes(word(bytes, head + offset_of!(PhpText, bytes))?) as usize;
        let is_present = u32::from_ne_bytes(word(bytes, head + offset_of!(PhpText, is_present))?) != 0;
        let content = bytes.get(content..).and_then(|rest| rest.get(..copied.min(PHP_TEXT_BYTES)));
        let bytes = content.ok_or(DecodeError::Short)?;
        Ok(is_present.then_some(Part { bytes, is_cut: length > bytes.len() as u64 }))
    };
    let name = part(offset_of!(PhpCodeRecord, name), offset_of!(PhpCodeRecord, name_bytes))?;
    let class = part(offset_of!(PhpCodeRecord, class), offset_of!(PhpCodeRecord, class_bytes))?;
    let file = part(offset_of!(PhpCodeRecord, file), offset_of!(PhpCodeRecord, file_bytes))?;
    let id = CodeId(field!(bytes, PhpCodeRecord, code_id, u64)).in_frames();
    Ok(NamedCode::of(id, function(name, class, file)))
}
