//! Mistakes are reported before anything is attached.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::target::Target;

#[test]
fn mistakes_are_reported_before_anything_is_attached() {
    let target = Target::start("slots.c");
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let file = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        path.display().to_string()
    };
    let token = file("token", "0123456789abcdef", 0o600);
    let open = file("open", "0123456789abcdef", 0o644);
    let short = file("short", "0123456789", 0o600);
    let text = file("text.pem", "no certificate", 0o600);
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let taken = taken.local_addr().expect("bound");
    for (options, code, expected) in [
        ("--serve 0.0.0.0:0".to_owned(), 2, "add `--token-file FILE`"),
        ("--serve [::]:0".to_owned(), 2, "can be reached from other machines"),
        ("--serve 8080".to_owned(), 2, "write it like 127.0.0.1:8080"),
        ("--serve unix:".to_owned(), 2, "no path"),
        (format!("--token-file {token}"), 2, "--serve"),
        (format!("--serve 127.0.0.1:0 --tls-cert {text}"), 2, "--tls-key"),
        (format!("--serve 127.0.0.1:0 --token-file {open}"), 1, "chmod 600"),
        (format!("--serve 127.0.0.1:0 --token-file {short}"), 1, "fewer than 16 characters"),
        ("--serve 127.0.0.1:0 --token-file /nonexistent".to_owned(), 1, "`/nonexistent`"),
        (format!("--serve {taken}"), 1, "cannot listen on"),
        (format!("--serve unix:{token}"), 1, "no socket has this name"),
        (format!("--serve 127.0.0.1:0 --tls-cert {text} --tls-key {text}"), 1, "has no certificate"),
    ] {
        let error = Heapbpf::of(target.pid(), &options).run().expect_error(code);
        assert!(error.contains(expected), "{options}: {error}");
    }
    assert_eq!(fs::read_to_string(&token).expect("kept"), "0123456789abcdef");
}
