//! Reports as bytes: rendered on threads of their own, shared by all clients that request the same report, and limited in number
//! and memory.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use heapbpf_ledger::model::Profile;
use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::refusal::Refusal;
use super::route::ReportQuery;

/// Maximum number of reports that are being rendered or wait for it.
const JOBS_MAX: usize = 8;

/// Maximum size of all reports that are kept or being sent, compressed.
const BYTES_MAX: usize = 64 << 20;
const UNIT_BYTES: usize = 16 << 10;

/// Maximum number of reports of the current profile that are kept.
const KEPT_MAX: usize = 32;

/// Time for which reports are kept without requests.
const KEPT_FOR: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Document,
    Report(ReportQuery),
}

/// A rendered document or report.
#[derive(Clone, Debug)]
pub(super) struct Rendered {
    pub(super) bytes: Bytes,
    /// Size before compression; `None` where the format is compressed already.
    pub(super) plain_bytes: Option<u64>,
}

type Outcome = Result<Rendered, Refusal>;

pub(super) struct Renders {
    kept: Mutex<Kept>,
    jobs: Arc<Semaphore>,
    memory: Arc<Semaphore>,
}

#[derive(Default)]
struct Kept {
    /// The profile of all kept reports.
    profile: Option<Arc<Profile>>,
    reports: Vec<(Key, watch::Receiver<Option<Outcome>>)>,
    used: Option<Instant>,
}

impl Renders {
    pub(super) fn new() -> Self {
        Self {
            kept: Mutex::default(),
            jobs: Arc::new(Semaphore::new(JOBS_MAX)),
            memory: Arc::new(Semaphore::new(BYTES_MAX / UNIT_BYTES)),
        }
    }

    /// Returns the report of this profile, rendered by `write` unless it is known. A client that leaves does not stop the work,
    /// for which others may wait.
    pub(super) async fn shared(
        &self,
        profile: &Arc<Profile>,
        key: Key,
        is_compressed: bool,
        write: impl FnOnce(&Profile, &mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> Outcome {
        let known = self.known(profile, key);
        let report = match known {
            Some(report) => report,
            None => {
                let report = self.start(Arc::clone(profile), is_compressed, write)?;
                self.keep(profile, key, report.clone());
                report
            }
        };
        outcome(report).await
    }

    /// Returns a report that is not kept, because it is for one client.
    pub(super) async fn single(
        &self,
        profile: Arc<Profile>,
        write: impl FnOnce(&Profile, &mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> Outcome {
        outcome(self.start(profile, true, write)?).await
    }

    /// Drops all reports when none was requested lately.
    pub(super) fn expire(&self) {
        let mut kept = self.lock();
        if kept.used.is_some_and(|used| used.elapsed() > KEPT_FOR) {
            *kept = Kept::default();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, profile: &Arc<Profile>, key: Key) -> Option<watch::Receiver<Option<Outcome>>> {
        let mut kept = self.lock();
        if !kept.profile.as_ref().is_some_and(|known| Arc::ptr_eq(known, profile)) {
            return None;
        }
        kept.used = Some(Instant::now());
        let failed = |report: &watch::Receiver<Option<Outcome>>| matches!(*report.borrow(), Some(Err(_)));
        kept.reports.retain(|(_, report)| !failed(report));
        kept.reports.iter().find(|(known, _)| *known == key).map(|(_, report)| report.clone())
    }

    fn keep(&self, profile: &Arc<Profile>, key: Key, report: watch::Receiver<Option<Outcome>>) {
        let mut kept = self.lock();
        match &kept.profile {
            Some(known) if Arc::ptr_eq(known, profile) => {}
            // The profile of a request that was slow is older.
            Some(known) if known.ended_unix_ns > profile.ended_unix_ns => return,
            _ => *kept = Kept { profile: Some(Arc::clone(profile)), ..Kept::default() },
        }
        if kept.reports.len() == KEPT_MAX {
            kept.reports.remove(0);
        }
        kept.reports.push((key, report));
        kept.used = Some(Instant::now());
    }

    fn start(
        &self,
        profile: Arc<Profile>,
        is_compressed: bool,
        write: impl FnOnce(&Profile, &mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> Result<watch::Receiver<Option<Outcome>>, Refusal> {
        let jobs = Arc::clone(&self.jobs).try_acquire_owned();
        let job = jobs.map_err(|_| Refusal::unavailable("too many reports are being made; try again"))?;
        let memory = Reserved::new(Arc::clone(&self.memory))?;
        let (done, report) = watch::channel(None);
        tokio::task::spawn_blocking(move || {
            let outcome = render(memory, &profile, is_compressed, write);
            drop(job);
            done.send_replace(Some(outcome));
        });
        Ok(report)
    }
}

async fn outcome(mut report: watch::Receiver<Option<Outcome>>) -> Outcome {
    let failed = || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error: writing the report panicked");
    let outcome = report.wait_for(Option::is_some).await.map_err(|_| failed())?;
    outcome.clone().unwrap_or_else(|| Err(failed()))
}

fn render(
    memory: Reserved,
    profile: &Profile,
    is_compressed: bool,
    write: impl FnOnce(&Profile, &mut dyn Write) -> io::Result<()>,
) -> Outcome {
    let written = if is_compressed {
        let mut out = io::BufWriter::with_capacity(UNIT_BYTES, memory);
        write(profile, &mut out).and_then(|()| Ok((out.into_inner()?, None)))
    } else {
        let packer = GzBuilder::new().write(memory, Compression::fast());
        let mut out = io::BufWriter::with_capacity(UNIT_BYTES, Counted { packer, plain_bytes: 0 });
        write(profile, &mut out).and_then(|()| {
            let Counted { packer, plain_bytes } = out.into_inner()?;
            Ok((packer.finish()?, Some(plain_bytes)))
        })
    };
    match written {
        Ok((mut memory, plain_bytes)) => {
            memory.bytes.shrink_to_fit();
            Ok(Rendered { bytes: Bytes::from_owner(memory), plain_bytes })
        }
        Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
            Err(Refusal::unavailable("the reports being sent take too much memory; try again, or use `-o FILE`"))
        }
        Err(error) => Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the report: {error}"))),
    }
}

struct Counted {
    packer: GzEncoder<Reserved>,
    plain_bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.packer.write(bytes)?;
        self.plain_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.packer.flush()
    }
}

/// Bytes within the limit of all reports. They are released to the limit once the last client has received them.
struct Reserved {
    bytes: Vec<u8>,
    units: OwnedSemaphorePermit,
    limit: Arc<Semaphore>,
}

impl Reserved {
    fn new(limit: Arc<Semaphore>) -> Result<Self, Refusal> {
        let units = Arc::clone(&limit).try_acquire_owned();
        let units =
            units.map_err(|_| Refusal::unavailable("the reports being sent take too much memory; try again"))?;
        Ok(Self { bytes: Vec::new(), units, limit })
    }
}

impl Write for Reserved {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let needed = (self.bytes.len() + bytes.len()).div_ceil(UNIT_BYTES);
        let more = u32::try_from(needed.saturating_sub(self.units.num_permits())).unwrap_or(u32::MAX);
        if more > 0 {
            let more = Arc::clone(&self.limit).try_acquire_many_owned(more);
            self.units.merge(more.map_err(|_| io::Error::from(io::ErrorKind::QuotaExceeded))?);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRef<[u8]> for Reserved {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flate2::read::GzDecoder;
    use heapbpf_report::{Format, View};

    use super::*;

    const KEY: Key = Key::Report(ReportQuery { format: Format::Json, target: None, view: Some(View::LiveBytes) });

    fn profile(ended_unix_ns: u64) -> Arc<Profile> {
        Arc::new(Profile { ended_unix_ns, ..heapbpf_report::testing::exact() })
    }

    #[tokio::test]
    async fn clients_at_the_same_time_share_a_report() {
        let (renders, calls, profile) = (Renders::new(), Arc::new(AtomicUsize::new(0)), profile(1));
        let write = || {
            let calls = Arc::clone(&calls);
            move |_: &Profile, out: &mut dyn Write| {
                calls.fetch_add(1, Ordering::Relaxed);
                out.write_all(&[b'x'; 100_000])
            }
        };
        let (first, second) =
            tokio::join!(renders.shared(&profile, KEY, false, write()), renders.shared(&profile, KEY, false, write()));
        let (first, second) = (first.expect("written"), second.expect("written"));
        assert_eq!((calls.load(Ordering::Relaxed), first.plain_bytes), (1, Some(100_000)));
        assert_eq!(first.bytes.as_ptr(), second.bytes.as_ptr());
        let mut plain = Vec::new();
        GzDecoder::new(&*first.bytes).read_to_end(&mut plain).expect("gzip");
        assert!(plain == [b'x'; 100_000]);
        renders.shared(&profile, Key::Document, true, write()).await.expect("written");
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn memory_is_limited_and_returned() {
        let (renders, profile) = (Renders::new(), profile(1));
        let write = |bytes: usize| move |_: &Profile, out: &mut dyn Write| out.write_all(&vec![1; bytes]);
        let held = renders.single(Arc::clone(&profile), write(BYTES_MAX / 2)).await.expect("there is room");
        let refused = renders.single(Arc::clone(&profile), write(BYTES_MAX / 2 + 1)).await.expect_err("too much");
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        drop(held);
        let all = u32::try_from(BYTES_MAX / UNIT_BYTES).expect("thousands");
        // The thread that made the report releases its reference, too.
        drop(renders.memory.acquire_many(all).await.expect("open"));
        renders.single(Arc::clone(&profile), write(BYTES_MAX)).await.expect("there is room again");
        drop(renders.memory.acquire_many(all).await.expect("open"));
    }

    #[tokio::test]
    async fn jobs_are_limited_and_failures_are_not_kept() {
        let (renders, profile) = (Renders::new(), profile(1));
        let fail = |_: &Profile, _: &mut dyn Write| Err(io::Error::other("no"));
        let refusal = renders.shared(&profile, KEY, false, fail).await.expect_err("it fails");
        assert_eq!(refusal.status, StatusCode::INTERNAL_SERVER_ERROR);
        let write = |_: &Profile, out: &mut dyn Write| out.write_all(b"x");
        renders.shared(&profile, KEY, false, write).await.expect("tried again");
        let all = Arc::clone(&renders.jobs).try_acquire_many_owned(8).expect("idle");
        let refusal = renders.single(Arc::clone(&profile), write).await.expect_err("busy");
        assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
        renders.shared(&profile, KEY, false, write).await.expect("known reports need no job");
        drop(all);
    }

    #[tokio::test]
    async fn only_the_latest_profile_is_kept() {
        let renders = Renders::new();
        let write = |profile: &Profile, out: &mut dyn Write| write!(out, "{}", profile.ended_unix_ns);
        for ended in [2, 1] {
            let report = renders.shared(&profile(ended), KEY, true, write).await.expect("written");
            assert_eq!(&*report.bytes, ended.to_string().as_bytes());
        }
        let kept = renders.lock().profile.as_ref().map(|profile| profile.ended_unix_ns);
        assert_eq!(kept, Some(2));
    }
}
