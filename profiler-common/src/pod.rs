//! Marks what crosses BPF maps as plain data for aya.

#![expect(unsafe_code, reason = "aya::Pod is an unsafe trait")]

use crate::live::{LiveBlock, LiveKey};
use crate::sampling::SamplingRate;

// SAFETY: `repr(C)` integers without padding (asserted by size beside the type); any bytes are a valid value.
unsafe impl aya::Pod for LiveKey {}
// SAFETY: as above.
unsafe impl aya::Pod for LiveBlock {}
// SAFETY: as above.
unsafe impl aya::Pod for SamplingRate {}
