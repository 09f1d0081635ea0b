//! The files that deploy the agent: systemd's units, checked by systemd, and Kubernetes' manifests, rendered by Helm and
//! checked against the published schemas.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, binary};
use heapbpf_tests::kernel;
use heapbpf_tests::target::{Target, copy_program};
use heapbpf_tests::viewers::{output, program, text};
use tempfile::TempDir;

/// systemd's measure, from 0 (isolated) to 10 (unsafe): a profiler has capabilities, and reads all processes. 0.3 of it is the right to
/// change its user, by which readers give up rights.
const EXPOSURE_MAX: f64 = 3.8;

/// The oldest and the newest version of Kubernetes that the manifests are checked against.
const VERSIONS: [&str; 2] = ["1.27", "1.37"];

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("packaging")
}

/// A copy of a unit which starts the binary under test.
fn unit(folder: &TempDir, name: &str) -> PathBuf {
    let text = fs::read_to_string(packaging().join(name)).expect("there is such a unit");
    assert!(text.contains("=/usr/bin/heapbpf "), "{text}");
    let path = folder.path().join(name);
    fs::write(&path, text.replace("=/usr/bin/heapbpf ", &format!("={} ", binary().display()))).expect("it is ours");
    path
}

/// `overall` of systemd-analyze's table, from 0 to 10.
fn exposure(unit: &Path) -> f64 {
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=true", "--no-pager"]).arg(unit).env("SYSTEMD_EMOJI", "0");
    let table = text(&mut analyze);
    let overall = table.lines().find(|line| line.contains("Overall exposure level")).expect(&table);
    let number = overall.rsplit_once(": ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no number in `{overall}`"))
}

#[test]
fn units_are_valid_and_isolated() {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    for name in ["heapbpf-agent.service", "heapbpf@.service"] {
        let unit = unit(&folder, name);
        let verified = output(Command::new("systemd-analyze").args(["verify", "--man=false"]).arg(&unit));
        let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
        // Units of this machine may have faults of their own.
        let own: Vec<&str> = complaints.lines().filter(|line| line.contains("heapbpf")).collect();
        assert!(own.is_empty(), "{complaints}");
        let exposure = exposure(&unit);
        assert!((0.1..=EXPOSURE_MAX).contains(&exposure), "{name}: {exposure}");
    }
}

const ALLOCATING: &str = "$| = 1; print \"ready\\n\"; while (1) { push @kept, 'x' x 3000; shift @kept if @kept > 100; \
                          select undef, undef, undef, 0.01 }";

/// Runs with these capabilities on a process of another user whose program was deleted.
fn recorded_with(capabilities: &[&str], target: &Target) -> (Heapbpf, Outcome) {
    let set = capabilities.iter().map(|name| format!(",+{name}")).collect::<String>();
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set=-all{set}")).arg("--no-new-privs").arg(binary());
    command.args(["--pid", &target.pid().to_string(), "--interval", "1", "--duration", "500ms", "-o", "out.json"]);
    let mut heapbpf = Heapbpf::with_command(command);
    let outcome = heapbpf.run();
    (heapbpf, outcome)
}

#[test]
fn units_have_no_capability_too_many() {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    let program = folder.path().join("perl");
    copy_program("/usr/bin/perl", &program);
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).args(["-e", ALLOCATING]);
    let target = Target::spawn(&mut nobody);
    fs::remove_file(&program).expect("it is ours");
    for name in ["heapbpf-agent.service", "heapbpf@.service"] {
        let unit = fs::read_to_string(packaging().join(name)).expect("there is such a unit");
        let set =
            unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect(&unit).to_lowercase();
        let all: Vec<&str> = set.split(' ').map(|name| name.strip_prefix("cap_").expect(name)).collect();
        let (heapbpf, outcome) = recorded_with(&all, &target);
        let outcome = outcome.expect_code(0);
        assert!(outcome.stdout.contains("allocated before the recording"), "{name}: {}", outcome.stdout);
        let listed = heapbpf.report("out.json").health.scope.expect("is known").foreign_probes;
        assert_eq!(listed.is_some(), kernel::version() >= (6, 8), "{name}: Linux 6.8 lists where links have probes");
        for without in &all {
            // It includes most of the others; before Linux 6.6 it is needed instead of two of them.
            let others: Vec<&str> =
                all.iter().copied().filter(|other| other != without && *other != "sys_admin").collect();
            let (heapbpf, outcome) = recorded_with(&others, &target);
            match *without {
                "bpf" | "perfmon" | "sys_ptrace" => {
                    let missing = format!("missing CAP_{}", without.to_uppercase());
                    assert!(outcome.expect_error(1).contains(&missing), "{name} without {without}");
                }
                "dac_override" => {
                    let outcome = outcome.expect_counted();
                    assert!(outcome.stdout.contains("with CAP_DAC_READ_SEARCH"), "{name}: {}", outcome.stdout);
                }
                "checkpoint_restore" => {
                    let outcome = outcome.expect_counted();
                    assert!(outcome.stdout.contains("no table"), "{name}: {}", outcome.stdout);
                }
                "sys_admin" => {
                    let _ = outcome.expect_code(0);
                    assert_eq!(heapbpf.report("out.json").health.scope.expect("is known").foreign_probes, None);
                }
                // See `boundary::root_without_the_right_to_change_its_user_reads_for_no_other`.
                "setuid" | "setgid" => drop(outcome.expect_code(0)),
                _ => panic!("{name}: nothing shows that {without} is needed"),
            }
        }
    }
}

#[test]
fn mistakes_in_units_are_found() {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    let path = unit(&folder, "heapbpf-agent.service");
    let text = fs::read_to_string(&path).expect("it is ours");
    fs::write(&path, text.replace("Restart=on-failure", "Restart=perhaps")).expect("it is ours");
    let verified = output(Command::new("systemd-analyze").args(["verify", "--man=false"]).arg(&path));
    let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(complaints.contains("heapbpf-agent.service") && complaints.contains("perhaps"), "{complaints}");
    fs::write(&path, text.lines().filter(|line| !line.contains("Capability")).collect::<Vec<_>>().join("\n"))
        .expect("it is ours");
    assert!(exposure(&path) > EXPOSURE_MAX);
}

fn kubernetes(arguments: &[&str]) -> Command {
    let mut command = program("python");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("viewers/kubernetes.py")).args(arguments);
    command
}

fn chart() -> String {
    packaging().join("helm/heapbpf").display().to_string()
}

fn write(folder: &TempDir, text: &str) -> String {
    let path = folder.path().join("manifests.yaml");
    fs::write(&path, text).expect("it is ours");
    path.display().to_string()
}

fn validate(folder: &TempDir, manifests: &str) -> Command {
    let path = write(folder, manifests);
    kubernetes(&["validate", &path, VERSIONS[0], VERSIONS[1]])
}

#[test]
fn the_chart_renders_to_valid_manifests() {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    text(&mut kubernetes(&["lint", &chart()]));
    for (values, kinds) in [
        ("", "ConfigMap DaemonSet ServiceAccount"),
        (
            "{stop: true, serve: {enabled: true, tokenSecret: t}, push: {url: 'otlp+http://collector:4318', headerSecret: h}, \
             podMonitor: {enabled: true}, priorityClassName: system-node-critical, podAnnotations: {a: b}, \
             podLabels: {c: d}, imagePullSecrets: [{name: e}], tolerations: [], affinity: {podAntiAffinity: {}}}",
            "ConfigMap DaemonSet PodMonitor ServiceAccount",
        ),
    ] {
        let rendered = text(&mut kubernetes(&["render", &chart(), values]));
        assert_eq!(text(&mut validate(&folder, &rendered)).trim(), kinds, "{rendered}");
        assert_eq!(rendered.contains("agent.stop: \"\""), values.contains("stop"), "{rendered}");
    }
    // A server that other hosts can reach needs a token.
    let refused = output(&mut kubernetes(&["render", &chart(), "serve: {enabled: true}"]));
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("serve.tokenSecret: name a secret"), "{error}");
    // TOML has each section once: the agent would refuse the file, and its pods would exit.
    for (values, expected) in [
        ("{config: \"[push]\\nurl = 'x'\\n\", push: {url: 'otlp+http://collector:4318'}}", "has a section [push]"),
        ("{config: \"\\n [serve]\\n\", serve: {enabled: true, tokenSecret: t}}", "has a section [serve]"),
    ] {
        let refused = output(&mut kubernetes(&["render", &chart(), values]));
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && error.contains(expected), "{error}");
    }
    // By itself, either is complete.
    text(&mut kubernetes(&["render", &chart(), "{config: \"[push]\\nurl = 'x'\\n\"}"]));
}

#[test]
fn the_manifest_without_helm_is_the_rendered_chart() {
    let path = packaging().join("kubernetes/daemonset.yaml");
    let rendered = text(&mut kubernetes(&["render", &chart()]));
    let expected = format!(
        "# The chart of packaging/helm/heapbpf with its default values, for `kubectl apply`: see docs/agent.md.\n{rendered}"
    );
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &expected).expect("it can be written");
    }
    let found = fs::read_to_string(&path).expect("there is a manifest");
    assert!(found == expected, "`{}` is not the rendered chart: set UPDATE_GOLDEN=1", path.display());
}

#[test]
fn mistakes_in_manifests_are_found() {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    let rendered = text(&mut kubernetes(&["render", &chart()]));
    for (right, wrong) in [
        ("hostPID: true", "hostPid: true"),
        ("hostPID: true", "hostPID: 3"),
        ("kind: DaemonSet\n", "kind: DaemonSett\n"),
        ("            path: /sys/fs/cgroup\n", ""),
    ] {
        assert!(rendered.contains(right), "`{right}` is not in {rendered}");
        let refused = output(&mut validate(&folder, &rendered.replacen(right, wrong, 1)));
        assert!(!refused.status.success(), "`{wrong}` was accepted");
    }
}

#[test]
fn the_configuration_of_the_chart_is_valid() {
    let folder = TempDir::new().expect("there is a directory for temporary files");
    let rendered = text(&mut kubernetes(&["render", &chart()]));
    let block = rendered.split_once("agent.toml: |\n").expect("a configuration").1;
    let lines = block.lines().take_while(|line| line.starts_with("    ") || line.is_empty());
    let config: Vec<&str> = lines.map(|line| line.strip_prefix("    ").unwrap_or_default()).collect();
    let path = folder.path().join("agent.toml");
    fs::write(&path, config.join("\n")).expect("it is ours");
    let checked = text(Command::new(binary()).args(["agent", "--check", "--config"]).arg(&path));
    assert!(checked.contains("every = \"10m\""), "{checked}");
}
