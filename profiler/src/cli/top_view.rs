//! The thread of `heapbpf top`, which shows a recording and ends it when the user quits.

use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use crossterm::event::{self, Event};
use heapbpf_base::shown::Shown;
use heapbpf_ledger::model::{Profile, TargetFacts};
use heapbpf_linux::signals;
use heapbpf_report::Presentation;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use tokio::sync::{mpsc, watch};

use super::exit::usage;
use super::output::{Access, Output};
use super::screen::TakenTerminal;
use super::top_settings::{TopSettings, term};
use super::{runtime, source, terminal};
use crate::live::{Feed, Unavailable};
use crate::top::Phase;
use crate::top::screen::{self, Host, Saved, Screen};
use crate::top::script;
use crate::top::theme::Theme;

/// Period of checking whether keys are still wanted.
const KEYS_PERIOD: Duration = Duration::from_millis(500);
/// Maximum number of keys that wait.
const KEYS_MAX: usize = 256;

/// The thread that shows a recording.
pub(super) struct Top {
    thread: Option<JoinHandle<Result<()>>>,
    phase: watch::Sender<Phase>,
    /// Channel that is closed when the thread ends.
    closed: watch::Receiver<()>,
}

impl Top {
    pub(super) fn start(settings: TopSettings, feed: Feed) -> Self {
        let (phase, of_thread) = watch::channel(Phase::Recording);
        let (open, closed) = watch::channel(());
        let thread = thread::spawn(move || {
            let _open = open;
            show(settings, &feed, of_thread)
        });
        Self { thread: Some(thread), phase, closed }
    }

    /// Waits until the user quits, or everything is printed.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + use<> {
        let mut closed = self.closed.clone();
        async move { while closed.changed().await.is_ok() {} }
    }

    /// Notes that the recording has ended: the feed has the last snapshot.
    pub(super) fn end_recording(&self) {
        let _ = self.phase.send(Phase::Ended);
    }

    /// Restores the terminal. Returns the error that ended the screen.
    pub(super) fn close(mut self) -> Result<()> {
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        let _ = self.phase.send(Phase::Closing);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().map_err(|_| anyhow!("internal error: the screen's thread panicked; please report it"))?
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // An error of the screen is ignored here, because another error is being reported.
        let _ = self.join();
    }
}

fn show(settings: TopSettings, feed: &Feed, mut phase: watch::Receiver<Phase>) -> Result<()> {
    let mut closing = phase.clone();
    runtime::view_runtime()?.block_on(async {
        let profile = tokio::select! {
            _ = closing.wait_for(|phase| *phase == Phase::Closing) => return Ok(()),
            profile = first(feed, &mut phase) => profile?,
        };
        match settings.style {
            None => show_screen(settings, feed, profile, phase).await,
            Some(style) => {
                let TopSettings { period, is_once, has_duration, callsites_max, .. } = settings;
                let csv_raw = settings.presentation.csv_raw;
                let settings = script::Settings { style, period, is_once, has_duration, callsites_max, csv_raw };
                match script::run(feed, profile, settings, phase, &mut terminal::output()).await {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                    written => written.context("cannot write to standard output"),
                }
            }
        }
    })
}

async fn first(feed: &Feed, phase: &mut watch::Receiver<Phase>) -> Result<Arc<Profile>> {
    loop {
        match feed.profile(Duration::ZERO).await {
            Ok(profile) => return Ok(profile),
            Err(Unavailable::Busy) => {}
            // The recording has ended already.
            Err(error) => return script::last(feed, phase).await.ok_or(error.into()),
        }
    }
}

async fn show_screen(
    settings: TopSettings,
    feed: &Feed,
    profile: Arc<Profile>,
    phase: watch::Receiver<Phase>,
) -> Result<()> {
    let colorterm = std::env::var("COLORTERM").unwrap_or_default();
    let theme = Theme::of_terminal(!terminal::wants_colour(), &term().unwrap_or_default(), &colorterm);
    let TopSettings { period, focus, is_stoppable, presentation, .. } = settings;
    let taken = TakenTerminal::take().context("cannot set the terminal's modes")?;
    let backend = CrosstermBackend::new(BufWriter::new(terminal::unfiltered_output()));
    let mut output = Terminal::new(backend).context("cannot write to the terminal")?;
    let mut host = ThisTerminal { taken, is_stoppable, presentation };
    let settings = screen::Settings { period, filter: focus, theme };
    let screen = Screen::new(&mut output, &mut host, feed.clone(), profile, settings);
    match screen.run(keys(), phase).await {
        // The terminal has hung up.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(()),
        shown => shown.context("cannot write to the terminal"),
    }
}

/// Keys and resizes, from a thread that waits for them until the receiver is dropped.
fn keys() -> mpsc::Receiver<Event> {
    let (sender, events) = mpsc::channel(KEYS_MAX);
    thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEYS_PERIOD) {
                Ok(false) => {}
                Ok(true) => match event::read() {
                    Ok(event) => {
                        if sender.blocking_send(event).is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    events
}

struct ThisTerminal {
    taken: TakenTerminal,
    is_stoppable: bool,
    presentation: Presentation,
}

impl ThisTerminal {
    fn write(&self, profile: &Profile, path: &Path) -> Result<String> {
        if path == Path::new("-") {
            return Err(usage("standard output has the screen: name a file"));
        }
        let output = Output::open_for_profile(path, None, Access::All)?;
        let description = output.format().spec().description;
        let shown = self.presentation.thinned(profile);
        output.write(|format, out| Ok(format.write(&shown, &self.presentation, out)?))?;
        Ok(format!("wrote {} ({description})", Shown::of(path)))
    }
}

impl Host for ThisTerminal {
    fn source_line(&mut self, target: &TargetFacts, file: &str, line: u32) -> Option<String> {
        source::line(target, Path::new(file), line)
    }

    fn save(&mut self, profile: &Profile, path: &Path, replaces: bool) -> Saved {
        if !replaces && path.symlink_metadata().is_ok() {
            return Saved::Exists;
        }
        match self.write(profile, path) {
            Ok(text) => Saved::Written(text),
            Err(error) => Saved::Failed(format!("{error:#}")),
        }
    }

    fn suspend(&mut self) -> io::Result<()> {
        if self.is_stoppable {
            self.taken.leave()?;
            signals::stop_process();
        }
        Ok(())
    }

    fn resume(&mut self) -> io::Result<()> {
        self.taken.enter()
    }
}
