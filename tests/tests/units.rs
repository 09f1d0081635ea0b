//! heapbpf under what systemd confines the shipped units to: the filters of `tests/systemd/confined.py`, for the lists of
//! system calls of several versions, and the unit's capabilities.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel::wait_until;
use serde_json::Value;
use tempfile::TempDir;

use super::agent::{Named, get};

/// Debian 11, 12 and 13, and the newest.
const VERSIONS: [&str; 4] = ["247", "252", "257", "262"];

fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("packaging").join(name)
}

/// With these capabilities (`cap_bpf`), and no way to get others.
fn limited<'a>(capabilities: impl Iterator<Item = &'a str>) -> Command {
    let set: String = capabilities.map(|name| format!(",+{}", name.strip_prefix("cap_").unwrap_or(name))).collect();
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set=-all{set}")).arg("--no-new-privs");
    command
}

/// heapbpf with these arguments, as a version of systemd would start it for this unit.
fn confined(unit: &Path, version: &str, arguments: &[&str]) -> Heapbpf {
    let text = fs::read_to_string(unit).expect("there is such a unit");
    let set = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect(&text).to_lowercase();
    let mut command = limited(set.split(' '));
    command
        .arg("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/confined.py"))
        .arg(unit)
        .arg(version);
    command.arg(binary()).args(arguments);
    Heapbpf::with_command(command)
}

/// `health.symbolization` and the verdict's statement of a report; whether it has the target's functions.
fn report(heapbpf: &Heapbpf) -> (Value, String, bool) {
    let text = fs::read_to_string(heapbpf.file("out.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let statement = report["health"]["verdict"]["statement"].as_str().expect("a text").to_owned();
    (report["health"]["symbolization"].clone(), statement, text.contains("\"churns\""))
}

const OPTIONS: &str = "--interval 1 --no-inventory -o out.json";

/// Records what the target does with heapbpf, whose process this prepares for the target's. Returns its messages.
fn recorded(target: &mut Named, prepare: impl Fn(&[&str]) -> Heapbpf, engine: &str) -> (Heapbpf, String) {
    let pid = target.pid().to_string();
    let options = OPTIONS.split(' ');
    let mut heapbpf = prepare(&["--pid", &pid, "--engine", engine].into_iter().chain(options).collect::<Vec<_>>());
    let session = heapbpf.start();
    let _ = target.target.work("churn 100 10");
    let outcome = session.interrupt().expect_code(0);
    (heapbpf, outcome.stderr)
}

fn record(unit: &Path, version: &str, engine: &str, target: &mut Named) -> (Heapbpf, String) {
    recorded(target, |arguments| confined(unit, version, arguments), engine)
}

#[test]
fn recordings_have_names_with_the_capabilities_of_the_chart() {
    let values = fs::read_to_string(unit("helm/heapbpf/values.yaml")).expect("there is a chart");
    let listed = values.split_once("\ncapabilities:\n").expect(&values).1.to_lowercase();
    let listed: Vec<&str> = listed.lines().map_while(|line| line.trim().strip_prefix("- ")).collect();
    assert!(listed.contains(&"bpf") && listed.len() > 4, "{listed:?}");
    let mut target = Named::service("unit-contained");
    let prepare = |arguments: &[&str]| {
        let mut command = limited(listed.iter().copied());
        command.arg(binary()).args(arguments);
        Heapbpf::with_command(command)
    };
    let (heapbpf, _) = recorded(&mut target, prepare, "inline");
    let (symbolization, statement, has_names) = report(&heapbpf);
    assert_eq!((&symbolization["crashes"], has_names), (&serde_json::json!(0), true), "{symbolization}");
    assert_eq!(symbolization["isolation_missing"], serde_json::json!([]), "{symbolization}");
    assert!(!statement.contains("names"), "{statement}");
}

#[test]
fn recordings_have_names_under_the_filters_of_the_units() {
    let mut target = Named::service("unit-recorded");
    let units = ["heapbpf@.service", "heapbpf-agent.service"];
    for (name, (version, engine)) in
        units.iter().cycle().zip(VERSIONS.into_iter().zip(["inline", "trap", "trap", "inline"]))
    {
        let (heapbpf, _) = record(&unit(name), version, engine, &mut target);
        let (symbolization, statement, has_names) = report(&heapbpf);
        assert_eq!(symbolization["crashes"], 0, "{name}, systemd {version}: {symbolization}");
        assert_eq!(symbolization["isolation_missing"], serde_json::json!([]), "{name}, systemd {version}");
        assert!(has_names && !statement.contains("names"), "{name}, systemd {version}: {statement}");
    }
    let filters = units.map(|name| {
        let text = fs::read_to_string(unit(name)).expect("there is such a unit");
        text.lines().rfind(|line| line.starts_with("Restrict") || line.starts_with("SystemCall")).map(str::to_owned)
    });
    assert_eq!(filters[0], filters[1], "one version with each unit is enough");
}

/// A unit whose filter has no `seccomp`, which the lists of systemd 252 lack.
fn without_seccomp(folder: &TempDir, name: &str) -> PathBuf {
    let text = fs::read_to_string(unit(name)).expect("there is such a unit");
    assert!(text.contains(" bpf seccomp\n"), "{text}");
    let path = folder.path().join(name);
    fs::write(&path, text.replace(" bpf seccomp\n", " bpf\n")).expect("it is ours");
    path
}

#[test]
fn a_symbolizer_that_is_killed_is_in_the_log_and_in_the_verdict() {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    let mut target = Named::service("unit-unnamed");
    let (heapbpf, stderr) = record(&without_seccomp(&folder, "heapbpf@.service"), "252", "trap", &mut target);
    let (symbolization, statement, has_names) = report(&heapbpf);
    assert!(symbolization["crashes"].as_u64().expect("a number") > 0 && !has_names, "{symbolization}");
    assert!(statement.contains("names of functions (the symbolizer crashed "), "{statement}");
    let warning = "heapbpf: warning: names are missing: the symbolizer crashed: SIGSYS (a forbidden system call)";
    assert_eq!(stderr.matches(warning).count(), 1, "{stderr}");
}

/// The agent's metrics after a profile with names was requested, and its log.
fn served(unit: &Path, version: &str, target: &mut Named) -> (String, String) {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    let address: SocketAddr = free.expect("there is a free port");
    let config = folder.path().join("agent.toml");
    let text = format!(
        "stop-file = \"/nowhere/stop\"\n[select]\ncommands = [\"{}\"]\nmin-age = \"1s\"\nscan-every = \"1s\"\n[budget]\nmax-cpu = \"100%\"\n\
         max-overhead = \"100%\"\n[duty]\nrecord = \"1h\"\nevery = \"1h\"\n[record]\ninterval = \"1\"\n[serve]\naddress = [\"{address}\"]\n",
        target.name
    );
    fs::write(&config, text).expect("it is ours");
    let session = confined(unit, version, &["agent", "--config", &config.display().to_string()]).spawn();
    wait_until("a profile is served", || {
        let _ = target.target.work("churn 100 10");
        get(address, "/api/report.folded?view=alloc-bytes").is_some_and(|text| text.lines().next().is_some())
    });
    let metrics = get(address, "/metrics").expect("they are served");
    (metrics, session.terminate().expect_code(0).stderr)
}

#[test]
fn the_agent_runs_under_its_units_filters_and_counts_crashes() {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    let mut target = Named::service("unit-served");
    for version in ["247", "262"] {
        let (metrics, log) = served(&unit("heapbpf-agent.service"), version, &mut target);
        assert!(metrics.contains("\nheapbpf_symbolizer_crashes_total 0\n"), "{metrics}");
        assert!(!log.contains("SIGSYS"), "{log}");
    }
    let (metrics, log) = served(&without_seccomp(&folder, "heapbpf-agent.service"), "252", &mut target);
    let counted = metrics.lines().find_map(|line| line.strip_prefix("heapbpf_symbolizer_crashes_total "));
    assert!(counted.is_some_and(|count| count != "0"), "{metrics}");
    assert!(log.contains("names are missing: the symbolizer crashed: SIGSYS"), "{log}");
}
