//! `--serve`: what the server answers, whom, and what its clients cannot do.

mod access;
mod clients;
mod endpoints;
mod errors;
pub(crate) mod http;
mod load;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::report::Report;
use heapbpf_tests::target::Target;
use http::Reply;
use tempfile::TempDir;

const TOKEN: &str = "00112233445566778899aabbccddeeff";

/// Timeout until something appears in what is served. Profiles are up to a second old.
const APPEARS_WITHIN: Duration = Duration::from_secs(60);

/// A recording that is served.
struct Served {
    heapbpf: Heapbpf,
    session: Session,
    address: SocketAddr,
    folder: TempDir,
}

impl Served {
    /// Records every allocation of the process, into `out.json`.
    #[track_caller]
    fn exactly(pid: u32, options: &str) -> Self {
        Self::start(pid, &format!("--interval 1 -o out.json {options}"))
    }

    /// In `options`, `{folder}` is a directory with a `token`.
    #[track_caller]
    fn start(pid: u32, options: &str) -> Self {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let token = folder.path().join("token");
        fs::write(&token, TOKEN).expect("ours");
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("ours");
        let options = options.replace("{folder}", &folder.path().display().to_string());
        let mut heapbpf = Heapbpf::of(pid, &format!("--serve 127.0.0.1:0 {options}"));
        let mut session = heapbpf.spawn();
        let address = session.wait_for_rest("heapbpf: serving http").trim_start_matches('s').to_owned();
        let address = address.trim_matches([':', '/']).parse().expect("an address");
        session.wait_for("heapbpf: recording");
        Self { heapbpf, session, address, folder }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[track_caller]
    fn get(&self, path: &str) -> Reply {
        http::get(self.address, path)
    }

    #[track_caller]
    fn report(&self) -> Report {
        serde_json::from_slice(&self.get("/api/report.json").expect(200).body).expect("a report")
    }

    /// Waits until the served report is as expected.
    #[track_caller]
    fn wait_until(&self, is_it: impl Fn(&Report) -> bool) -> Report {
        let deadline = Instant::now() + APPEARS_WITHIN;
        loop {
            let report = self.report();
            if is_it(&report) {
                return report;
            }
            assert!(Instant::now() < deadline, "it does not appear in {report:#?}");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Starts a target with 5,300 live bytes in two callsites, of 105,300 that it has allocated.
fn holding(options: &str) -> (Target, Served) {
    let mut target = Target::start("slots.c");
    let served = Served::exactly(target.pid(), options);
    target.work("+1:300 +11:5000 +12:100000 -12");
    let pid = target.pid();
    served.wait_until(|report| report.process(pid).totals.exact().alloc_bytes == 105_300);
    (target, served)
}
