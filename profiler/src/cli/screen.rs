//! The terminal while a full screen is shown: its modes, and its restoration in every case.

use std::io;
use std::sync::Once;

use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use super::terminal::{keep_messages, kept_messages, say_coloured, unfiltered_output};

/// The terminal in raw mode and on its alternate screen. Restored when this is dropped, and before the message of a panic.
pub(super) struct TakenTerminal(());

impl TakenTerminal {
    pub(super) fn take() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                report(panic);
            }));
        });
        keep_messages();
        let taken = Self(());
        taken.enter()?;
        Ok(taken)
    }

    /// Enters the screen, also after a shell has changed the modes.
    pub(super) fn enter(&self) -> io::Result<()> {
        // The modes to restore are those of the first call, unless they are set back.
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(unfiltered_output(), EnterAlternateScreen, Hide)
    }

    pub(super) fn leave(&self) -> io::Result<()> {
        execute!(unfiltered_output(), Show, LeaveAlternateScreen)?;
        disable_raw_mode()
    }
}

impl Drop for TakenTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, once per taken terminal.
fn restore() {
    let Some(kept) = kept_messages() else { return };
    // A terminal that has hung up needs no modes.
    let _ = execute!(unfiltered_output(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
    kept.iter().for_each(|message| say_coloured(message));
}
