//! Stacks and frames, in every JSON report.

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use crate::model::{Frame, FrameId, Profile};

/// Frames, the leaf first.
pub(in crate::report) struct StackFields<'a> {
    pub(in crate::report) profile: &'a Profile,
    pub(in crate::report) stack: &'a [FrameId],
}

impl Serialize for StackFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut frames = serializer.serialize_seq(Some(self.stack.len()))?;
        for &id in self.stack {
            frames.serialize_element(&FrameFields::new(self.profile.frame(id)))?;
        }
        frames.end()
    }
}

/// One frame.
#[derive(Serialize)]
pub(in crate::report) struct FrameFields<'a> {
    function: Option<&'a str>,
    module: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
    /// In hexadecimal: 64 bits do not survive readers that hold numbers in floats.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// In the module's file; in hexadecimal for the same reason.
    module_offset: Option<String>,
}

impl<'a> FrameFields<'a> {
    fn new(frame: &'a Frame) -> Self {
        Self { address: Some(format!("{:#x}", frame.address)), ..Self::of_any_process(frame) }
    }

    /// Without the address, which is of one process.
    pub(in crate::report) fn of_any_process(frame: &'a Frame) -> Self {
        Self {
            function: frame.function.as_deref(),
            module: frame.module.as_deref(),
            file: frame.file.as_deref(),
            line: frame.line,
            inlined: frame.inlined,
            address: None,
            module_offset: frame.module_offset.map(|offset| format!("{offset:#x}")),
        }
    }
}
