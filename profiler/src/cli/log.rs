//! The log on standard error: warnings like all other messages, more about heapbpf itself with `--verbose`.

use std::fmt;

use anstyle::{AnsiColor, Style};
use heapbpf_report::text;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::terminal;

/// Starts logging. `RUST_LOG` takes precedence.
pub(super) fn start(verbose: u8, quiet: bool, is_agent: bool) {
    let default = match verbose {
        0 if quiet => "error",
        0 if is_agent => "warn,heapbpf::cli::agent=info",
        0 => "warn",
        1 => "heapbpf=info",
        2 => "heapbpf=debug",
        _ => "heapbpf=trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| terminal::Log).with_ansi(false);
    // There is no other place to report errors of logging to.
    log.log_internal_errors(false).event_format(Lines { colour: terminal::errors_have_colour() }).init();
}

/// Format of log lines: `heapbpf: warning: …`; below information, with the module.
struct Lines {
    colour: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let (name, style) = match *metadata.level() {
            Level::ERROR => ("error", AnsiColor::Red.on_default().bold()),
            Level::WARN => ("warning", AnsiColor::Yellow.on_default().bold()),
            Level::INFO => ("info", Style::new()),
            Level::DEBUG => ("debug", Style::new()),
            Level::TRACE => ("trace", Style::new()),
        };
        let style = if self.colour { style } else { Style::new() };
        write!(out, "heapbpf: {style}{name}:{style:#} ")?;
        if *metadata.level() > Level::INFO {
            write!(out, "{}: ", metadata.target())?;
        }
        let mut fields = String::new();
        context.field_format().format_fields(Writer::new(&mut fields), event)?;
        // Names that targets have chosen get no colours.
        writeln!(out, "{}", text::plain(&fields))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no writer panics").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(colour: bool) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_max_level(Level::DEBUG);
        let log = log.with_writer(move || writer.clone()).event_format(Lines { colour }).finish();
        tracing::subscriber::with_default(log, || {
            tracing::warn!("cannot do it: {}", "no reason");
            tracing::debug!(count = 3, "done");
        });
        let bytes = kept.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn names_in_messages_get_no_colours() {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let log = log.event_format(Lines { colour: false }).finish();
        tracing::subscriber::with_default(log, || tracing::warn!(name = "\x1b[31mb", "cannot read `{}`", "\x1b[31ma"));
        let bytes = kept.0.lock().expect("no writer panics").clone();
        let text = String::from_utf8(bytes).expect("text");
        assert!(!text.contains('\x1b') && text.contains("[31ma`"), "{text:?}");
    }

    #[test]
    fn warnings_are_plain_text_unless_on_a_terminal() {
        let expected =
            format!("heapbpf: warning: cannot do it: no reason\nheapbpf: debug: {}: done count=3\n", module_path!());
        assert_eq!(logged(false), expected);
        assert!(logged(true).starts_with("heapbpf: \x1b[1m\x1b[33mwarning:\x1b[0m cannot do it"), "{:?}", logged(true));
    }
}
