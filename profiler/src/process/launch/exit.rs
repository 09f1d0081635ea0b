//! A launched program that is held when it ends, and that can be stopped at any time before.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::threads::{News, OPTIONS, Threads};
use super::{Launch, LaunchError, State, leaving};
use crate::linux::ptrace::{Stop, Tracee};

/// Longest wait for all threads of a program to stop.
const ALL_STOP_WAIT: Duration = Duration::from_millis(500);

/// Why a followed program is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stir {
    /// It has called exec: nothing of the new program has run.
    Exec,
    /// It ends, as a whole: nothing of it will run any more, and its memory is there still.
    Exiting,
}

impl Launch {
    /// From now on a held program is held again when it ends, by a call or a signal: [`next_stir`](Self::next_stir) tells.
    /// All its threads are traced for that, which costs it two stops for each that it makes and one for each that ends, and
    /// one for each signal. Children that it makes are not held. To be called before it has made threads.
    pub(crate) fn hold_at_exit(&mut self) -> Result<(), LaunchError> {
        if let State::Held(_) = self.state {
            self.tracee.set_options(OPTIONS).map_err(|error| self.untraceable(error))?;
            self.threads = Some(Threads::new(self.tracee.clone()));
        }
        Ok(())
    }

    /// Why a followed program is held, if it is: [`follow_execs`](Self::follow_execs) lets it go on, for one that ends to its
    /// end. Tells the same until then. To be asked whenever `SIGCHLD` comes, or every so often: it lets signals through. Blocks
    /// only while some threads have come to their end and others are about to, and for no more than a second.
    pub(crate) fn next_stir(&mut self) -> Result<Option<Stir>, LaunchError> {
        let Some(threads) = &mut self.threads else {
            return Ok(self.next_exec()?.then_some(Stir::Exec));
        };
        if let State::Followed = self.state {
            let news = threads.news();
            match news.map_err(|error| self.untraceable(error))? {
                Some(News::Exec) => self.state = State::Held(Stop::Exec),
                Some(News::Exiting) => return Ok(Some(Stir::Exiting)),
                Some(News::Ended(stop)) => self.stopped_at(stop),
                None => {}
            }
        }
        Ok(matches!(self.state, State::Held(Stop::Exec)).then_some(Stir::Exec))
    }

    /// Stops all threads of a followed program wherever they are, until [`follow_execs`](Self::follow_execs) lets them go on. Interrupted
    /// system calls are made again then. False, and it runs on, where it calls exec or ends instead, which
    /// [`next_stir`](Self::next_stir) tells, and where it is not held at its exit.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Unstoppable`] where a thread waits in the kernel, as `vfork` does: the program runs on.
    pub(crate) fn stop(&mut self) -> Result<bool, LaunchError> {
        if !matches!(self.state, State::Followed) || self.next_stir()?.is_some() {
            return Ok(false);
        }
        // It may have been found to have ended.
        if !matches!(self.state, State::Followed) {
            return Ok(false);
        }
        let Some(threads) = &mut self.threads else { return Ok(false) };
        let stopped = threads.stop(ALL_STOP_WAIT);
        if stopped.map_err(|error| self.untraceable(error))? {
            return Ok(true);
        }
        let pid = self.pid();
        self.go_on()?;
        match self.next_stir()? {
            None if !matches!(self.state, State::Ended(_)) => Err(LaunchError::Unstoppable(pid)),
            _ => Ok(false),
        }
    }

    /// The threads of a program that is stopped or ends, held, each with the reason of its stop: their registers can be asked for. The first thread is not among
    /// them where it has ended before the others; then memory and mappings are those of `/proc/TID` of another.
    pub(crate) fn held_threads(&self) -> Vec<(Tracee, Stop)> {
        self.threads.as_ref().map(Threads::held).unwrap_or_default()
    }

    /// Lets all threads run that are held.
    pub(super) fn go_on(&mut self) -> Result<(), LaunchError> {
        let Some(threads) = &mut self.threads else { return Ok(()) };
        threads.run().map_err(|error| LaunchError::Trace(self.program.clone(), error))
    }

    /// Lets go of all threads.
    pub(super) fn release_threads(&mut self, mut threads: Threads) -> Result<(), LaunchError> {
        match self.state {
            State::Held(stop) => threads.hold(0, stop),
            State::Followed | State::Leaving => {}
            State::Free | State::Ended(_) => return Ok(()),
        }
        self.state = State::Free;
        let (left, ended) = threads.release(ALL_STOP_WAIT).map_err(|error| self.untraceable(error))?;
        if let Some(stop) = ended {
            self.stopped_at(stop);
        }
        left.into_iter().for_each(leaving::add);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
