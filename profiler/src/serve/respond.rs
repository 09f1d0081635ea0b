//! Produces the response to a request.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use heapbpf_base::ids::Pid;
use heapbpf_ledger::model::{Others, Profile};
use heapbpf_report::{Format, Presentation, ReportError, View, html, write_pprof_change};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::access::{Access, Peer};
use super::body::Body;
use super::events::{self, Updates};
use super::metrics::{self, Metrics};
use super::refusal::Refusal;
use super::render::{Key, Rendered, Renders};
use super::route::{self, Action, Endpoint, PprofQuery, Query, ReportQuery};
use super::source::{self, Source, State};

/// Maximum size of a request's body. No path has a use for a body.
const BODY_BYTES_MAX: u64 = 64 << 10;
const BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of streams of events and of delta profiles, which are the connections that last long.
const STREAMS_MAX: usize = 32;
const DELTAS_MAX: usize = 8;

const SEQUENCE: HeaderName = HeaderName::from_static("heapbpf-sequence");
const RECORDING: HeaderName = HeaderName::from_static("heapbpf-recording");

pub(super) struct Service {
    pub(super) access: Access,
    pub(super) source: Arc<Source>,
    pub(super) renders: Arc<Renders>,
    pub(super) updates: Arc<Updates>,
    /// Presentation of reports, unless a request has a view of its own.
    pub(super) presentation: Presentation,
    metrics: Mutex<Metrics>,
    streams: Arc<AtomicUsize>,
    deltas: Semaphore,
}

type Answer = Result<Response<Body>, Refusal>;

impl Service {
    pub(super) fn new(access: Access, source: Source, presentation: Presentation) -> Self {
        Self {
            access,
            source: Arc::new(source),
            renders: Arc::new(Renders::new()),
            updates: Arc::new(events::updates()),
            presentation,
            metrics: Mutex::default(),
            streams: Arc::default(),
            deltas: Semaphore::new(DELTAS_MAX),
        }
    }

    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub(super) async fn respond(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let (head, body) = request.into_parts();
        let answer = match self.check(&head, peer) {
            Ok(endpoint) => match discard(&head.headers, body).await {
                Ok(()) => self.answer(endpoint, &head).await,
                Err(refusal) => Err(refusal),
            },
            Err(refusal) => Err(refusal),
        };
        let mut response = answer.unwrap_or_else(Refusal::response);
        secure(response.headers_mut());
        response
    }

    fn check<'a>(&self, head: &'a Parts, peer: Peer) -> Result<Endpoint<'a>, Refusal> {
        let endpoint = Endpoint::of(head.uri.path());
        self.access.check(head, peer, endpoint.need())?;
        endpoint.check_method(&head.method)?;
        Ok(endpoint)
    }

    async fn answer(&self, endpoint: Endpoint<'_>, head: &Parts) -> Answer {
        let query = Query::of(head.uri.query());
        match endpoint {
            Endpoint::Page => page(&head.headers),
            Endpoint::Document => self.document(route::since(query)?, &head.headers).await,
            Endpoint::Events => self.events(),
            Endpoint::Report(name) => self.report(ReportQuery::of(name, query)?, &head.headers).await,
            Endpoint::Control(action) => self.control(action).await,
            Endpoint::PprofIndex if !head.uri.path().ends_with('/') => Ok(redirect("/debug/pprof/")),
            Endpoint::PprofIndex => Ok(response(Body::from(INDEX), "text/html; charset=utf-8")),
            Endpoint::Pprof(view) => self.pprof(view, PprofQuery::of(query)?, &head.headers).await,
            Endpoint::Metrics => self.metrics().await,
            Endpoint::Health => Ok(self.health()),
            Endpoint::Unknown => {
                Err(Refusal::new(StatusCode::NOT_FOUND, format!("no such path; there are {}", route::PATHS)))
            }
        }
    }

    async fn document(&self, since: Option<u64>, headers: &HeaderMap) -> Answer {
        let update = *self.updates.borrow();
        if since.is_some_and(|since| since >= update.sequence) {
            let mut response = Response::new(Body::Whole(None));
            *response.status_mut() = StatusCode::NO_CONTENT;
            return Ok(response);
        }
        // The profile is at least as new as the update that announced it.
        let State { value: profile, is_recording } = self.source.profile(update.time.elapsed()).await?;
        let presentation = self.presentation.clone();
        let write = move |profile: &Profile, out: &mut dyn io::Write| {
            html::write_document(&presentation.thinned(profile), &presentation, out)
        };
        let rendered = self.renders.shared(&profile, Key::Document, false, write).await?;
        let mut response = sent(rendered, "application/json", headers);
        response.headers_mut().insert(SEQUENCE, update.sequence.into());
        Ok(marked(response, is_recording))
    }

    fn events(&self) -> Answer {
        let free = self
            .streams
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < STREAMS_MAX).then_some(count + 1));
        if free.is_err() {
            return Err(Refusal::unavailable("too many pages are connected"));
        }
        let parts = events::stream(&self.updates, Arc::clone(&self.streams));
        Ok(response(Body::Stream(parts), "text/event-stream"))
    }

    async fn report(&self, query: ReportQuery, headers: &HeaderMap) -> Answer {
        let ReportQuery { format, target, view } = query;
        let State { value: profile, is_recording } = self.source.profile(self.source.age()).await?;
        if let Some(pid) = target
            && !profile.targets.iter().any(|target| target.facts.pid == pid)
        {
            return Err(Refusal::new(StatusCode::NOT_FOUND, format!("process {pid} is not a target")));
        }
        let mut presentation = self.presentation.clone();
        presentation.view = view.unwrap_or(presentation.view);
        let write = move |profile: &Profile, out: &mut dyn io::Write| match target {
            Some(pid) => write(format, &only(profile, pid), &presentation, out),
            None => write(format, profile, &presentation, out),
        };
        let rendered = self.renders.shared(&profile, Key::Report(query), format == Format::Pprof, write).await?;
        let mut response = sent(rendered, content_type(format), headers);
        let of_target = target.map(|pid| format!("-{pid}")).unwrap_or_default();
        let name = format!("heapbpf{of_target}.{}", format.spec().extension);
        disposition(response.headers_mut(), format, &name);
        Ok(marked(response, is_recording))
    }

    async fn pprof(&self, view: View, query: PprofQuery, headers: &HeaderMap) -> Answer {
        let presentation = Presentation { view, ..self.presentation.clone() };
        if let Some(seconds) = query.seconds {
            return self.pprof_change(Duration::from_secs(seconds.into()), presentation, headers).await;
        }
        let format = if query.as_text { Format::Gperftools } else { Format::Pprof };
        let State { value: profile, is_recording } = self.source.profile(self.source.age()).await?;
        let key = Key::Report(ReportQuery { format, target: None, view: Some(view) });
        let write = move |profile: &Profile, out: &mut dyn io::Write| write(format, profile, &presentation, out);
        let rendered = self.renders.shared(&profile, key, format == Format::Pprof, write).await?;
        let mut response = sent(rendered, content_type(format), headers);
        if !query.as_text {
            attach(response.headers_mut(), if view == View::LiveBytes { "heap" } else { "allocs" });
        }
        Ok(marked(response, is_recording))
    }

    async fn pprof_change(&self, time: Duration, presentation: Presentation, headers: &HeaderMap) -> Answer {
        let waits = self.deltas.try_acquire();
        let _permit = waits.map_err(|_| Refusal::unavailable("too many clients wait for delta profiles"))?;
        let base = self.source.snapshot(Duration::ZERO).await?;
        if !base.is_recording {
            return Err(Refusal::unavailable("nothing is being recorded"));
        }
        sleep(time).await;
        // If the recording ended while we waited, the delta ends there.
        let end = self.source.snapshot(Duration::ZERO).await?;
        let profile = self.source.feed.window(&base.value, &end.value).await.map_err(source::refusal)?;
        drop(base);
        let write = move |profile: &Profile, out: &mut dyn io::Write| {
            write_pprof_change(&presentation.thinned(profile), &presentation, out)
        };
        let rendered = self.renders.single(profile, write).await?;
        let mut response = sent(rendered, content_type(Format::Pprof), headers);
        attach(response.headers_mut(), "delta");
        Ok(marked(response, end.is_recording))
    }

    async fn metrics(&self) -> Answer {
        let snapshot = self.source.snapshot(self.source.age()).await;
        let is_recording = snapshot.as_ref().is_ok_and(|snapshot| snapshot.is_recording);
        let snapshot = snapshot.ok().map(|snapshot| snapshot.value);
        let mut metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        let pushed = self.source.pushed();
        let text = metrics.describe(snapshot.as_deref(), is_recording, self.streams(), pushed.as_ref());
        Ok(response(Body::from(text), metrics::CONTENT_TYPE))
    }

    fn health(&self) -> Response<Body> {
        let is_recording = self.source.feed.progress().borrow().is_some();
        let mut response = response(Body::from(format!("{{\"recording\":{is_recording}}}\n")), "application/json");
        if !is_recording {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }

    async fn control(&self, action: Action) -> Answer {
        let done = match action {
            Action::Dump => self.source.feed.dump().await,
            Action::Mark => self.source.feed.mark().await,
        };
        done.map_err(source::refusal)?;
        let mut response = Response::new(Body::Whole(None));
        *response.status_mut() = StatusCode::ACCEPTED;
        Ok(response)
    }
}

fn write(format: Format, profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let written = format.write(&presentation.thinned(profile), presentation, out);
    written.map_err(|error| match error {
        ReportError::Write(error) => error,
        other => io::Error::other(other),
    })
}

/// Profile of the targets with this pid: a process can execute several programs.
fn only(profile: &Profile, pid: Pid) -> Profile {
    let targets = profile.targets.iter().filter(|target| target.facts.pid == pid).cloned().collect();
    let filter = Some(format!("target={pid}"));
    Profile { targets, others: Others::default(), filter, ..without_targets(profile) }
}

fn without_targets(profile: &Profile) -> Profile {
    let Profile {
        interval_bytes,
        started_unix_ns,
        ended_unix_ns,
        started_monotonic_ns,
        window,
        older_than_ns,
        filter,
        unreachable,
        strict,
        targets: _,
        others,
        frames,
        modules,
        health,
        sources,
    } = profile;
    Profile {
        interval_bytes: *interval_bytes,
        started_unix_ns: *started_unix_ns,
        ended_unix_ns: *ended_unix_ns,
        started_monotonic_ns: *started_monotonic_ns,
        window: *window,
        older_than_ns: *older_than_ns,
        filter: filter.clone(),
        unreachable: *unreachable,
        strict: *strict,
        targets: Vec::new(),
        others: others.clone(),
        frames: frames.clone(),
        modules: modules.clone(),
        health: health.clone(),
        sources: sources.clone(),
    }
}

/// Reads a body to its end, so that the connection can be used again.
async fn discard(headers: &HeaderMap, mut body: Incoming) -> Result<(), Refusal> {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(Refusal::too_large());
    }
    let read = async {
        let mut left = BODY_BYTES_MAX;
        while !body.is_end_stream() {
            let frame = std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the body cannot be read"))?;
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            left = left.checked_sub(bytes).ok_or_else(Refusal::too_large)?;
        }
        Ok(())
    };
    let late = || Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
    timeout(BODY_TIME_MAX, read).await.map_err(|_| late())?
}

fn response(body: Body, content_type: &'static str) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn redirect(to: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::Whole(None));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(to));
    response
}

fn marked(mut response: Response<Body>, is_recording: bool) -> Response<Body> {
    response.headers_mut().insert(RECORDING, HeaderValue::from_static(if is_recording { "true" } else { "false" }));
    response
}

/// Response with a report, compressed if the client accepts that.
fn sent(rendered: Rendered, content_type: &'static str, headers: &HeaderMap) -> Response<Body> {
    let Rendered { bytes, plain_bytes } = rendered;
    let Some(plain_bytes) = plain_bytes else { return response(Body::from(bytes), content_type) };
    let mut response = if accepts_gzip(headers) {
        let mut response = response(Body::from(bytes), content_type);
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        response(Body::unpacked(bytes, plain_bytes), content_type)
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    response
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let is_refused = |weight: &str| weight.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0_f32));
        is_gzip && !parts.any(is_refused)
    })
}

fn content_type(format: Format) -> &'static str {
    match format {
        Format::Flamegraph => "image/svg+xml",
        Format::Html => "text/html; charset=utf-8",
        Format::Csv | Format::CsvFunctions => "text/csv; charset=utf-8",
        Format::Otlp => "application/x-protobuf",
        format if format.spec().extension.ends_with("json") => "application/json",
        format if format.spec().is_text => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Sets headers for a report. Text is shown by browsers, other formats are saved. A flame graph runs its script without access to
/// this server.
fn disposition(headers: &mut HeaderMap, format: Format, name: &str) {
    const SANDBOX: &str = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; \
        style-src 'unsafe-inline'; frame-ancestors 'none'";
    match format {
        Format::Flamegraph => {
            headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
        }
        Format::Json | Format::Folded => {}
        _ => return attach(headers, name),
    }
    insert(headers, &format!("inline; filename=\"{name}\""));
}

fn attach(headers: &mut HeaderMap, name: &str) {
    insert(headers, &format!("attachment; filename=\"{name}\""));
}

fn insert(headers: &mut HeaderMap, disposition: &str) {
    // Names consist of numbers and extensions.
    if let Ok(value) = HeaderValue::from_str(disposition) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
}

fn secure(headers: &mut HeaderMap) {
    const ALWAYS: [(HeaderName, &str); 6] = [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let policy = headers.entry(CONTENT_SECURITY_POLICY);
    policy.or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
}

fn page(headers: &HeaderMap) -> Answer {
    /// The page, plain and compressed.
    static PAGE: LazyLock<io::Result<[Bytes; 2]>> = LazyLock::new(|| {
        let mut plain = Vec::new();
        html::write_live(&mut plain)?;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        io::Write::write_all(&mut packer, &plain)?;
        Ok([plain.into(), packer.finish()?.into()])
    });
    let [plain, packed] = PAGE
        .as_ref()
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("internal error: {error}")))?;
    let is_packed = accepts_gzip(headers);
    let bytes = if is_packed { packed } else { plain };
    let mut response = response(Body::from(bytes.clone()), "text/html; charset=utf-8");
    let headers = response.headers_mut();
    if is_packed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    // The page itself has the rest of the policy.
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("frame-ancestors 'none'"));
    Ok(response)
}

const INDEX: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<title>heapbpf: pprof</title>
<h1>Profiles</h1>
<ul>
<li><a href=\"heap\">heap</a>: blocks that are live now
<li><a href=\"allocs\">allocs</a>: all allocations since the recording started
</ul>
<p>Both have the same samples, and differ in what <code>go tool pprof</code> shows first. <code>?seconds=N</code>: the change
within N seconds from now; <code>?debug=1</code>: as text.
<p><a href=\"/\">The live page</a>, <a href=\"/metrics\">metrics</a>, <a href=\"/api/report.json\">JSON</a>,
<a href=\"/api/report.svg\">flame graph</a>
</html>
";
