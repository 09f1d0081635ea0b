//! `aya::Pod` for the types that cross BPF maps.

#![expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]

use crate::hotspot::Hotspot;
use crate::interpreter::Interpreter;
use crate::live::{LiveBlock, LiveKey};
use crate::mapped::{CodeFile, FileKey, MappingState};
use crate::php::Php;
use crate::ruby::Ruby;
use crate::sampling::SamplingRate;
use crate::unwind::{PageRows, ProcessMapping, ProcessMappings, RowCell, Rule};
use crate::v8::V8;

// SAFETY: `repr(C)` integers without padding (asserted by size beside the type); any bytes are a valid value.
unsafe impl aya::Pod for LiveKey {}
// SAFETY: as above.
unsafe impl aya::Pod for LiveBlock {}
// SAFETY: as above.
unsafe impl aya::Pod for SamplingRate {}
// SAFETY: as above.
unsafe impl aya::Pod for RowCell {}
// SAFETY: as above.
unsafe impl aya::Pod for PageRows {}
// SAFETY: as above.
unsafe impl aya::Pod for Rule {}
// SAFETY: as above.
unsafe impl aya::Pod for ProcessMapping {}
// SAFETY: as above.
unsafe impl aya::Pod for ProcessMappings {}
// SAFETY: as above.
unsafe impl aya::Pod for FileKey {}
// SAFETY: as above.
unsafe impl aya::Pod for CodeFile {}
// SAFETY: as above.
unsafe impl aya::Pod for MappingState {}
// SAFETY: as above.
unsafe impl aya::Pod for Hotspot {}
// SAFETY: as above.
unsafe impl aya::Pod for Interpreter {}
// SAFETY: as above.
unsafe impl aya::Pod for V8 {}
// SAFETY: as above.
unsafe impl aya::Pod for Ruby {}
// SAFETY: as above.
unsafe impl aya::Pod for Php {}
