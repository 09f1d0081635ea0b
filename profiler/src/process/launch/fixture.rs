//! Starts programs that this process traces itself.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::{Launch, LaunchError};
use crate::linux::inherited::Inherited;
use crate::linux::spawn::spawn;

impl Launch {
    /// Starts a command, and holds it at its exec.
    pub(crate) fn start(command: &[OsString], inherited: Inherited) -> Result<Self, LaunchError> {
        let (program, arguments) = command.split_first().ok_or(LaunchError::Empty)?;
        let name = program.to_string_lossy().into_owned();
        let mut child = Command::new(program);
        child.args(arguments);
        let mut spawned = spawn(child, inherited).map_err(|error| LaunchError::Fork(name.clone(), error))?;
        let mut launch = Self::seize(spawned.pid(), name.clone())?;
        spawned.go_on();
        match launch.run_to_exec(Some(&mut spawned), &|| true) {
            Err(LaunchError::Trace(_, error)) => Err(LaunchError::not_run(Path::new(program), name, error)),
            result => result.map(|()| launch),
        }
    }
}
