//! Descendants of a command in a leak check: lets them run, and inspects them at their exits.

use tracing::{debug, warn};

use super::config::Listener;
use super::launching::log_release;
use super::session::Session;
use crate::check::heap_snapshot::HeapSnapshot;
use crate::collect::Method;
use crate::keeper::Launch;
use crate::process::launch::{LaunchError, ProgramStop};

impl Session {
    /// Lets a held process run until its next exec or its exit.
    pub(super) fn follow_child(&mut self, mut launch: Launch) {
        if self.gives_way(launch.pid()) {
            return log_release(launch.release());
        }
        let resumed = launch.follow_execs();
        match (&mut self.followed, resumed) {
            (Some(followed), Ok(())) => followed.add(launch),
            (_, resumed) => {
                debug!("process {} is not followed: {resumed:?}", launch.pid());
            }
        }
    }

    pub(super) fn attend_followed(&mut self, listener: &mut dyn Listener) {
        let Some(followed) = &mut self.followed else { return };
        for mut launch in followed.take() {
            // Each heap snapshot is a copy of a process's memory: the next process waits at its exit.
            let attended = if listener.has_room() { self.attend_child(&mut launch, listener) } else { Ok(()) };
            if let Err(error) = attended {
                warn!("{error}");
                continue;
            }
            if let Some(followed) = self.followed.as_mut().filter(|_| !launch.is_over()) {
                followed.add(launch);
            }
        }
    }

    fn attend_child(&mut self, launch: &mut Launch, listener: &mut dyn Listener) -> Result<(), LaunchError> {
        while let Some(stop) = launch.next_stop()? {
            match (stop, self.config.checks) {
                (ProgramStop::Exec, _) => {
                    self.step(launch)?;
                    if self.gives_way(launch.pid()) {
                        return launch.release();
                    }
                }
                (ProgramStop::Exiting, Some(method)) => self.inspect_child(launch, method, true, listener),
                (ProgramStop::Exiting, None) => {}
            }
            launch.follow_execs()?;
        }
        Ok(())
    }

    fn inspect_child(&mut self, launch: &Launch, method: Method, at_exit: bool, listener: &mut dyn Listener) {
        match self.inspect_launched(launch, method, at_exit) {
            Ok(snapshot) => {
                if let Some(followed) = self.followed.as_mut().filter(|_| at_exit) {
                    followed.count_checked();
                }
                // The command's own check counts those of all descendants.
                listener.inspected(Ok(HeapSnapshot { unchecked_children: 0, ..snapshot }));
            }
            Err(error) => warn!("{error:#}"),
        }
    }

    /// Inspects those that run.
    pub(super) fn inspect_followed(&mut self, method: Method, listener: &mut dyn Listener) {
        let Some(followed) = &mut self.followed else { return };
        for mut launch in followed.take() {
            match launch.stop() {
                Ok(true) => self.inspect_child(&launch, method, false, listener),
                Ok(false) => {}
                Err(error) => debug!("{error}"),
            }
            self.follow_child(launch);
        }
    }
}
