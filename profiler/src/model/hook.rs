//! Hooks of a target, attached or not.

use serde::{Deserialize, Serialize};

/// What became of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookStatus {
    /// The function.
    pub function: String,
    /// The module that defines it, as the target names its path.
    pub module: String,
    /// How it was attached (`perf`, …).
    pub backend: String,
    /// Offset of the probed instruction in the module's file.
    pub offset: u64,
    /// That instruction as GNU tools print it, where it was looked at.
    pub instruction: Option<String>,
    /// The kernel emulates it, which makes for a cheap probe; else it takes a single step.
    pub emulated: Option<bool>,
    /// Without it the profile is not whole.
    pub required: bool,
    /// Why it is not attached, if it is not.
    pub error: Option<String>,
}

impl HookStatus {
    /// Whether the profile is not whole because it is not attached.
    pub fn is_missing(&self) -> bool {
        self.required && self.error.is_some()
    }
}
