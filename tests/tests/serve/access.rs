//! Who is answered.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::process::Command;

use super::http::{Reply, exchange, request};
use super::{Served, TOKEN, holding};
use heapbpf_tests::target::Target;

#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn only_the_token_opens_a_protected_server() {
    let (_target, mut served) = holding_with_token();
    let bearer = format!("Authorization: Bearer {TOKEN}");
    for (method, path, headers, status) in [
        ("GET", "/metrics", String::new(), 401),
        ("GET", "/", "Authorization: Bearer wrong-token-of-no-use".to_owned(), 401),
        ("GET", "/", format!("{bearer}x"), 401),
        ("GET", "/nothing", String::new(), 401),
        ("POST", "/api/dump", String::new(), 401),
        ("GET", "/healthz", String::new(), 200),
        ("GET", "/", bearer.clone(), 200),
        ("GET", "/nothing", bearer.clone(), 404),
        ("POST", "/api/dump", format!("{bearer}|Origin: http://evil.example"), 403),
        ("POST", "/api/dump", format!("{bearer}|Sec-Fetch-Site: cross-site"), 403),
        ("POST", "/api/dump", format!("{bearer}|Host: evil.example"), 421),
        ("GET", "/api/dump", bearer.clone(), 405),
        ("POST", "/api/mark", format!("{bearer}|Origin: http://{}", served.address), 202),
    ] {
        let reply = request(served.address, method, path, &headers).expect(status);
        assert_eq!(reply.header("www-authenticate").is_some(), status == 401, "{path}");
    }
    served.session.wait_for("mark set at");
    let password = format!(":{TOKEN}");
    output(Command::new("curl").args(["-sSf", "-u", &password, "-X", "POST", &served.url("/api/dump")]));
    served.session.wait_for("out.0001.json");
    assert!(output(Command::new("curl").args(["-sSf", "-u", &password, &served.url("/metrics")])).contains("heapbpf_"));
}

fn holding_with_token() -> (Target, Served) {
    let target = Target::start("slots.c");
    let served = Served::exactly(target.pid(), "--token-file {folder}/token");
    (target, served)
}

#[test]
fn pages_of_other_sites_and_other_names_are_refused() {
    let (_target, served) = holding("--serve-name profiler.example");
    for (headers, status) in [
        ("Host: evil.example", 421),
        ("Host: evil.example:80", 421),
        ("Host: localhost", 200),
        ("Host: [::1]:1", 200),
        ("Host: profiler.example", 200),
        ("Host: localhost|Host: localhost", 400),
        ("Sec-Fetch-Site: same-site", 403),
        ("Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate", 403),
        ("Sec-Fetch-Site: same-origin", 200),
        ("Origin: http://evil.example", 403),
        ("Origin: null", 403),
    ] {
        let reply = request(served.address, "GET", "/api/document", headers);
        assert_eq!(reply.expect(status).header("access-control-allow-origin"), None, "{headers}");
    }
    request(served.address, "GET", "/", "Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: navigate").expect(200);
    request(served.address, "GET", "http://evil.example/metrics", "").expect(421);
    // Without a token, nothing can be changed.
    request(served.address, "POST", "/api/dump", "").expect(403);
    Reply::parse(&exchange(served.address, b"GET /healthz HTTP/1.0\r\n\r\n")).expect(200);
    Reply::parse(&exchange(served.address, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")).expect(400);
}

#[test]
fn unix_sockets_are_private_and_need_no_token() {
    let target = Target::start("slots.c");
    let mut served = Served::exactly(target.pid(), "--serve unix:{folder}/socket --token-file {folder}/token");
    let socket = served.file("socket");
    let metadata = fs::symlink_metadata(&socket).expect("bound");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let socket_path = socket.display().to_string();
    let curl = |path: &str, more: &[&str]| {
        let url = format!("http://heapbpf{path}");
        output(Command::new("curl").args(["-sSf", "--unix-socket", &socket_path, &url]).args(more))
    };
    assert_eq!(curl("/healthz", &[]), "{\"recording\":true}\n");
    assert!(curl("/metrics", &[]).contains("heapbpf_live_bytes{"));
    curl("/api/dump", &["-X", "POST"]);
    served.session.wait_for("out.0001.json");
    // Even where its mode lets others connect, the kernel states who they are.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("ours");
    fs::set_permissions(served.folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let nobody =
        ["--reuid=65534", "--regid=65534", "--clear-groups", "curl", "-s", "-w", "%{http_code}", "-o", "/dev/null"];
    let status = output(Command::new("setpriv").args(nobody).args(["--unix-socket", &socket_path, "http://x/metrics"]));
    assert_eq!(status, "403");
    let _ = served.session.interrupt().expect_counted();
    assert!(!socket.exists(), "the socket remains");
}

#[test]
fn tls_is_served_with_a_certificate() {
    let files = tempfile::tempdir().expect("there is a directory for temporary files");
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| files.path().join(name).display().to_string());
    let subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
    let fixed = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"];
    output(Command::new("openssl").args(fixed).args(subject).args(["-keyout", &key, "-out", &certificate]));
    let target = Target::start("slots.c");
    let served = Served::exactly(target.pid(), &format!("--tls-cert {certificate} --tls-key {key}"));
    let url = format!("https://{}/healthz", served.address);
    let curl = |more: &[&str]| Command::new("curl").args(["-sS", &url]).args(more).output().expect("curl runs");
    let trusted = curl(&["--cacert", &certificate]);
    assert_eq!(String::from_utf8_lossy(&trusted.stdout), "{\"recording\":true}\n", "{trusted:?}");
    assert!(!curl(&[]).status.success(), "it trusts anybody");
    assert!(!curl(&["--cacert", &certificate, "--tls-max", "1.2"]).status.success(), "TLS 1.2 is accepted");
    // Plain text gets no answer, and harms nobody.
    let plain = exchange(served.address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!plain.starts_with(b"HTTP"), "{plain:?}");
    assert!(curl(&["--cacert", &certificate]).status.success());
}
