//! Paths and queries. No path names a file.

use heapbpf_base::ids::Pid;
use heapbpf_report::{Format, View};
use hyper::{Method, StatusCode};

use super::refusal::Refusal;

/// Permission that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// No permission: for load balancers, which have no token.
    Nothing,
    /// Like `Read`; pages of other sites may link to it.
    Page,
    Read,
    /// Permission to change what heapbpf does.
    Control,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Dump,
    Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint<'a> {
    Page,
    Document,
    Events,
    /// A report, with the extension or name of its format.
    Report(&'a str),
    Control(Action),
    PprofIndex,
    /// A pprof profile, with the default sample type.
    Pprof(View),
    Metrics,
    Health,
    Unknown,
}

pub(super) const PATHS: &str = "/, /api/report.EXTENSION, /api/document, /api/events, /api/dump, /api/mark, \
    /debug/pprof/heap, /debug/pprof/allocs, /metrics, /healthz";

impl<'a> Endpoint<'a> {
    pub(super) fn of(path: &'a str) -> Self {
        match path {
            "/" => Self::Page,
            "/api/document" => Self::Document,
            "/api/events" => Self::Events,
            "/api/dump" => Self::Control(Action::Dump),
            "/api/mark" => Self::Control(Action::Mark),
            "/debug/pprof/" | "/debug/pprof" => Self::PprofIndex,
            "/debug/pprof/heap" => Self::Pprof(View::LiveBytes),
            "/debug/pprof/allocs" => Self::Pprof(View::AllocBytes),
            "/metrics" => Self::Metrics,
            "/healthz" => Self::Health,
            _ => path.strip_prefix("/api/report.").map_or(Self::Unknown, Self::Report),
        }
    }

    pub(super) fn need(self) -> Need {
        match self {
            Self::Page => Need::Page,
            Self::Control(_) => Need::Control,
            Self::Health => Need::Nothing,
            _ => Need::Read,
        }
    }

    pub(super) fn check_method(self, method: &Method) -> Result<(), Refusal> {
        let is_control = self.need() == Need::Control;
        match *method {
            Method::POST if is_control => Ok(()),
            Method::GET | Method::HEAD if !is_control => Ok(()),
            _ => Err(Refusal::method(if is_control { "POST" } else { "GET, HEAD" })),
        }
    }
}

/// The parameters of a request. Values are not percent-decoded: no valid value has characters that are encoded.
pub(super) struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    pub(super) fn of(query: Option<&'a str>) -> Self {
        let parts = query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
        Self(parts.map(|part| part.split_once('=').unwrap_or((part, ""))).collect())
    }

    fn take(&mut self, name: &str) -> Result<Option<&'a str>, Refusal> {
        let mut found = self.0.extract_if(.., |(known, _)| *known == name).map(|(_, value)| value);
        let value = found.next();
        if found.next().is_some() { Err(wrong(format!("`{name}` is given twice"))) } else { Ok(value) }
    }

    /// Fails if there is an unknown parameter: a misspelt parameter must not silently select another answer.
    fn finish(self, known: &str) -> Result<(), Refusal> {
        match self.0.first() {
            Some((name, _)) => Err(wrong(format!("unknown parameter `{}`; this path has {known}", shown(name)))),
            None => Ok(()),
        }
    }
}

fn wrong(reason: String) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, reason)
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Parses `since=N` of the page's document.
pub(super) fn since(mut query: Query<'_>) -> Result<Option<u64>, Refusal> {
    let since = query.take("since")?;
    query.finish("`since`")?;
    let number = |text: &str| text.parse().map_err(|_| wrong(format!("`since={}` is not a number", shown(text))));
    since.map(number).transpose()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReportQuery {
    pub(super) format: Format,
    pub(super) target: Option<Pid>,
    pub(super) view: Option<View>,
}

impl ReportQuery {
    pub(super) fn of(name: &str, mut query: Query<'_>) -> Result<Self, Refusal> {
        let format = format(name)?;
        let target = match query.take("target")? {
            Some(text) => {
                let pid = text.parse().map_err(|_| wrong(format!("`target={}` is not a process id", shown(text))))?;
                Some(Pid(pid))
            }
            None => None,
        };
        let view =
            match query.take("view")? {
                Some(text) => {
                    let names = || View::ALL.map(View::name).join(", ");
                    let view = View::ALL.into_iter().find(|view| view.name() == text);
                    Some(view.ok_or_else(|| {
                        wrong(format!("`{}` is not a valid view; use one of {}", shown(text), names()))
                    })?)
                }
                None => None,
            };
        query.finish("`target` and `view`")?;
        Ok(Self { format, target, view })
    }
}

/// Finds a format by its extension or name.
fn format(name: &str) -> Result<Format, Refusal> {
    let is_named = |format: &Format| [format.spec().extension, format.spec().name].contains(&name);
    match Format::ALL.into_iter().find(is_named) {
        Some(format) if format.needs_recording() => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            format!(
                "{} needs single events: record with `-o x.heapbpf`, then `heapbpf convert`",
                format.spec().description
            ),
        )),
        Some(format) => Ok(format),
        None => {
            let all = Format::ALL.iter().filter(|format| !format.needs_recording());
            let all = all.map(|format| format.spec().extension).collect::<Vec<_>>().join(", ");
            Err(Refusal::new(StatusCode::NOT_FOUND, format!("unknown format `{}`; use one of {all}", shown(name))))
        }
    }
}

/// Maximum length of a delta profile, in seconds.
const SECONDS_MAX: u32 = 3600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PprofQuery {
    /// Length of a delta profile.
    pub(super) seconds: Option<u32>,
    /// Whether to write the text format instead of the binary one.
    pub(super) as_text: bool,
}

impl PprofQuery {
    /// Parses the parameters like `net/http/pprof` of Go: unknown parameters, and `gc`, change nothing.
    pub(super) fn of(mut query: Query<'_>) -> Result<Self, Refusal> {
        let number = |name: &str, text: &str, max: u32| {
            let number = text.parse::<u32>().ok().filter(|number| *number <= max);
            number.ok_or_else(|| wrong(format!("`{name}={}` is not a number from 0 to {max}", shown(text))))
        };
        let seconds = query.take("seconds")?.map(|text| number("seconds", text, SECONDS_MAX)).transpose()?;
        let debug = query.take("debug")?.map(|text| number("debug", text, 2)).transpose()?;
        let seconds = seconds.filter(|&seconds| seconds > 0);
        let as_text = debug.is_some_and(|debug| debug > 0);
        if as_text && seconds.is_some() {
            return Err(wrong("`seconds` and `debug` cannot be combined".to_owned()));
        }
        Ok(Self { seconds, as_text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_one_endpoint_each() {
        for path in PATHS.split(", ").filter(|path| !path.contains("EXTENSION")) {
            assert_ne!(Endpoint::of(path), Endpoint::Unknown, "{path}");
        }
        for path in
            ["", "//", "/index.html", "/api", "/api/report", "/metrics/", "/debug/pprof/profile", "/../etc/passwd", "*"]
        {
            assert_eq!(Endpoint::of(path), Endpoint::Unknown, "{path}");
        }
    }

    #[test]
    fn methods_depend_on_the_path() {
        let allowed = |path, method| Endpoint::of(path).check_method(&method).is_ok();
        assert!(allowed("/", Method::GET) && allowed("/metrics", Method::HEAD) && allowed("/api/mark", Method::POST));
        assert!(
            !allowed("/", Method::POST) && !allowed("/api/dump", Method::GET) && !allowed("/healthz", Method::OPTIONS)
        );
    }

    #[test]
    fn formats_are_named_by_extension_or_name() {
        for format in Format::ALL {
            let spec = format.spec();
            for name in [spec.name, spec.extension] {
                let found = super::format(name);
                assert_eq!(found.ok(), (!format.needs_recording()).then_some(format), "{name}");
            }
        }
        for name in ["", "x", "svg/", "../svg", "x.svg", ".svg"] {
            super::format(name).expect_err(name);
        }
    }

    #[test]
    fn report_queries_select_target_and_view() {
        let parse = |text| ReportQuery::of("json", Query::of(Some(text))).map_err(|refusal| refusal.status);
        let query = ReportQuery { format: Format::Json, target: Some(Pid(12)), view: Some(View::AllocCount) };
        assert_eq!(parse("target=12&view=alloc-count"), Ok(query));
        assert_eq!(parse("&&"), Ok(ReportQuery { target: None, view: None, ..query }));
        for text in ["target=x", "target=-1", "target=1&target=2", "view=live", "vew=live-bytes", "view", "a"] {
            assert_eq!(parse(text), Err(StatusCode::BAD_REQUEST), "{text}");
        }
    }

    #[test]
    fn pprof_queries_are_those_of_go() {
        let parse = |text| PprofQuery::of(Query::of(Some(text))).map_err(|refusal| refusal.status);
        let whole = PprofQuery { seconds: None, as_text: false };
        for text in ["", "gc=1", "debug=0", "seconds=0", "other=1"] {
            assert_eq!(parse(text), Ok(whole), "{text}");
        }
        assert_eq!(parse("seconds=3600"), Ok(PprofQuery { seconds: Some(3600), ..whole }));
        assert_eq!(parse("debug=1&gc=1"), Ok(PprofQuery { as_text: true, ..whole }));
        for text in ["seconds=3601", "seconds=-1", "seconds=1.5", "seconds=", "debug=3", "seconds=1&debug=1"] {
            assert_eq!(parse(text), Err(StatusCode::BAD_REQUEST), "{text}");
        }
    }

    #[test]
    fn since_is_a_number() {
        assert_eq!(since(Query::of(None)).ok(), Some(None));
        assert_eq!(since(Query::of(Some("since=7"))).ok(), Some(Some(7)));
        assert!(since(Query::of(Some("since=x"))).is_err() && since(Query::of(Some("sinc=1"))).is_err());
    }
}
