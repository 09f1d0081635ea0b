//! Offsets in V8's objects. The engine publishes most of them for debuggers, as exported integers (`v8dbg_…`); others are those of the
//! versions that were tried.

use std::sync::Arc;

use profiler_common::v8::V8;
use rustc_hash::FxHashMap;
use thiserror::Error;

/// Why functions of an engine are not shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Unsupported {
    #[error("V8 {0} is not supported (10 to 13 are, of Node.js 18 to 24)")]
    Version(i32),
    #[error("its own description of its objects lacks `v8dbg_{0}`")]
    Missing(&'static str),
    #[error("its builtins are not known: its symbol table was removed")]
    NoBuiltins,
}

/// What an engine publishes, by name without `v8dbg_`.
#[derive(Debug)]
pub(super) struct Published(pub(super) FxHashMap<String, i32>);

impl Published {
    /// Names of fields end with their types, which versions spell differently.
    fn find(&self, name: &str) -> Option<u64> {
        let exact = self.0.get(name);
        let field = || {
            let begins = |key: &&String| key.strip_prefix(name).is_some_and(|rest| rest.starts_with("__"));
            // Two fields with one name have the same offset; the lowest name makes the choice the same each time.
            self.0.keys().filter(begins).min().and_then(|key| self.0.get(key))
        };
        exact.or_else(field).and_then(|&value| u64::try_from(value).ok())
    }

    fn get(&self, name: &'static str) -> Result<u64, Unsupported> {
        self.find(name).ok_or(Unsupported::Missing(name))
    }

    /// The number of a type of objects.
    fn kind(&self, name: &'static str) -> Result<u16, Unsupported> {
        self.get(name).and_then(|number| u16::try_from(number).map_err(|_| Unsupported::Missing(name)))
    }
}

/// Offsets are in bytes, from an object's first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Layout {
    pub(super) function_shared: u64,
    pub(super) function_code: u64,
    /// In the shared part of functions: name, or scope; script; and, since V8 9, first of all the bytecode or code.
    pub(super) shared_name: u64,
    pub(super) shared_script: u64,
    /// In the wrapper of a shared part.
    pub(super) wrapper_shared: u64,
    pub(super) map_type: u64,
    pub(super) kinds: Kinds,
    pub(super) script_name: u64,
    pub(super) script_source: u64,
    /// In the shared part of functions: flags, of which the lowest ones are the kind; 0 before V8 12, where it is in names.
    pub(super) shared_flags: u64,
    /// Index of the first variable in a scope, and whether the position comes right before it.
    pub(super) scope_variables: u64,
    pub(super) scope_has_position_first: bool,
    pub(super) bytecode_data: u64,
    /// Of the table with the positions of bytecode.
    pub(super) bytecode_positions: u64,
    /// Bytes of each bytecode, for operands of 1, 2 and 4 bytes; empty if they are not known.
    pub(super) bytecode_sizes: Arc<[u8]>,
    pub(super) code: CodeLayout,
}

/// Numbers of types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Kinds {
    pub(super) shared: u16,
    pub(super) shared_wrapper: Option<u16>,
    pub(super) bytecode: u16,
    pub(super) interpreter_data: u16,
    pub(super) scope: u16,
    /// `undefined` and others.
    pub(super) oddball: u16,
    pub(super) script: u16,
    pub(super) code: u16,
    pub(super) bytes: [Option<u16>; 2],
    /// Arrays of objects.
    pub(super) arrays: [Option<u16>; 6],
}

/// Offsets in code objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub(super) struct CodeLayout {
    /// Bytes before instructions: of the code object, or of what refers to it.
    pub(super) header: u64,
    /// The instructions follow the code object.
    pub(super) is_inline: bool,
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) flags: u64,
    /// In the flags: the kind, and that of code without optimization.
    pub(super) kind_mask: u32,
    pub(super) baseline: u32,
    /// Data for deoptimization, or bytecode.
    pub(super) data: u64,
    pub(super) positions: u64,
    /// Indices in the data for deoptimization.
    pub(super) literals: u64,
    pub(super) shared: u64,
    pub(super) inlinings: u64,
}

/// V8 of Node.js 22, whose code objects have other offsets.
const TRUSTED_SPACE: i32 = 12;
/// Variables of a scope begin with 5 words, of which two are the position, since V8 13.
const WORDS_WITH_POSITION: u64 = 5;

impl Layout {
    pub(super) fn new(published: &Published, major: i32, bytecode_sizes: Arc<[u8]>) -> Result<Self, Unsupported> {
        if !(10..=13).contains(&major) {
            return Err(Unsupported::Version(major));
        }
        let is_new = major >= TRUSTED_SPACE;
        let or = |name: &str, other: u64| published.find(name).unwrap_or(other);
        let kind = |name: &str| published.find(name).and_then(|number| u16::try_from(number).ok());
        let is_inline = major == 10;
        let script = published.find("class_SharedFunctionInfo__script_or_debug_info");
        let script = script.map_or_else(|| published.get("class_SharedFunctionInfo__script"), Ok)?;
        let scope_variables = published.get("scopeinfo_idx_first_vars")?;
        Ok(Self {
            function_shared: published.get("class_JSFunction__shared")?,
            function_code: or("class_JSFunction__code", if is_new { 24 } else { 48 }),
            shared_name: published.get("class_SharedFunctionInfo__name_or_scope_info")?,
            shared_script: script,
            wrapper_shared: or("class_SharedFunctionInfoWrapper__shared_info", 8),
            map_type: published.get("class_Map__instance_type")?,
            kinds: Kinds {
                shared: published.kind("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE")?,
                shared_wrapper: kind("type_SharedFunctionInfoWrapper__SHARED_FUNCTION_INFO_WRAPPER_TYPE"),
                bytecode: published.kind("type_BytecodeArray__BYTECODE_ARRAY_TYPE")?,
                interpreter_data: published.kind("type_InterpreterData__INTERPRETER_DATA_TYPE")?,
                scope: published.kind("type_ScopeInfo__SCOPE_INFO_TYPE")?,
                oddball: published.kind("type_Oddball__ODDBALL_TYPE")?,
                script: published.kind("type_Script__SCRIPT_TYPE")?,
                code: published.kind("type_Code__CODE_TYPE")?,
                bytes: [
                    kind("type_ByteArray__BYTE_ARRAY_TYPE"),
                    kind("type_TrustedByteArray__TRUSTED_BYTE_ARRAY_TYPE"),
                ],
                arrays: [
                    kind("type_FixedArray__FIXED_ARRAY_TYPE"),
                    kind("type_WeakFixedArray__WEAK_FIXED_ARRAY_TYPE"),
                    kind("type_TrustedFixedArray__TRUSTED_FIXED_ARRAY_TYPE"),
                    kind("type_ProtectedFixedArray__PROTECTED_FIXED_ARRAY_TYPE"),
                    kind("type_TrustedWeakFixedArray__TRUSTED_WEAK_FIXED_ARRAY_TYPE"),
                    kind("type_ProtectedWeakFixedArray__PROTECTED_WEAK_FIXED_ARRAY_TYPE"),
                ],
            },
            script_name: published.get("class_Script__name")?,
            script_source: published.get("class_Script__source")?,
            shared_flags: if is_new { or("class_SharedFunctionInfo__flags", 0) } else { 0 },
            scope_variables,
            scope_has_position_first: scope_variables == WORDS_WITH_POSITION,
            bytecode_data: published.get("class_BytecodeArray__data")?,
            bytecode_positions: if is_new { 24 } else { 32 },
            bytecode_sizes,
            code: CodeLayout {
                header: if is_inline {
                    published.get("class_Code__instruction_start")?
                } else {
                    published.get("class_InstructionStream__instruction_start")?
                },
                is_inline,
                start: or("class_Code__instruction_start", 40),
                bytes: or("class_Code__instruction_size", 56),
                flags: or("class_Code__flags", 48),
                kind_mask: u32::try_from(published.get("CodeKindFieldMask")?).unwrap_or(0),
                baseline: u32::try_from(published.get("CodeKindBaseline")?).unwrap_or(0),
                data: if is_new { 8 } else { 16 },
                positions: if is_new { 16 } else { 24 },
                literals: or("DeoptimizationDataLiteralArrayIndex", 2),
                shared: published
                    .find("DeoptimizationDataWrappedSharedFunctionInfoIndex")
                    .unwrap_or_else(|| or("DeoptimizationDataSharedFunctionInfoIndex", 6)),
                inlinings: or("DeoptimizationDataInliningPositionsIndex", 7),
            },
        })
    }

    /// For the kernel side, without the ranges of code.
    pub(super) fn place(&self) -> Result<V8, Unsupported> {
        let short = |offset: u64| u16::try_from(offset).ok();
        let fields = (|| {
            Some(V8 {
                function_shared: short(self.function_shared)?,
                function_code: short(self.function_code)?,
                shared_name: short(self.shared_name)?,
                map_type: short(self.map_type)?,
                shared_type: self.kinds.shared,
                bytecode_type: self.kinds.bytecode,
                ..V8::default()
            })
        })();
        fields.ok_or(Unsupported::Missing("class_JSFunction__shared"))
    }
}
