//! Reloading: by content, all or nothing.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use heapbpf_tests::kernel::wait_until;
use rustix::process::Signal;

use super::{Agent, Named, get, http, receiver};

fn free_address() -> SocketAddr {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
    free.expect("there is a free port")
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o600))).expect("it is ours");
}

/// The status of a request with this token; `None` where nothing listens.
fn status(address: SocketAddr, token: &str) -> Option<u16> {
    std::net::TcpStream::connect(address).ok()?;
    Some(http::request(address, "GET", "/metrics", &format!("Authorization: Bearer {token}")).status)
}

#[test]
fn rotated_credentials_take_effect() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let mut target = Named::service("agent-rotated");
    let mut receiver = receiver::Receiver::start("pyroscope", 0);
    receiver.answer("status 401 expired");
    let (address, token, headers) = (free_address(), folder.path().join("token"), folder.path().join("headers"));
    write(&token, "old-token-of-the-server");
    write(&headers, "Authorization: Bearer old\n");
    let text = format!(
        "[duty]\nrecord = \"1h\"\nevery = \"1h\"\n[record]\ninterval = \"1\"\n[serve]\naddress = [\"{address}\"]\n\
         token-file = \"{}\"\n[push]\nurl = \"pyroscope+http://127.0.0.1:{}\"\nevery = \"1s\"\nqueue = \"{}\"\nheader-file = \"{}\"\n",
        token.display(),
        receiver.port,
        folder.path().join("queue").display(),
        headers.display(),
    );
    let mut agent = Agent::new(&target.name, &text);
    let mut session = agent.start();
    session.wait_for("recording without pauses");
    session.wait_for("heapbpf: info: recording ");
    target.target.work("churn 100 10");
    session.wait_for("HTTP status 401 Unauthorized: expired; profiles are queued");
    assert_eq!(status(address, "old-token-of-the-server"), Some(200));

    write(&token, "new-token-of-the-server");
    write(&headers, "Authorization: Bearer new\n");
    session.signal(Signal::HUP);
    session.wait_for("recording without pauses");
    receiver.take();
    receiver.answer("ok");
    assert_eq!(status(address, "new-token-of-the-server"), Some(200));
    assert_eq!(status(address, "old-token-of-the-server"), Some(401), "a token that was revoked");
    wait_until("what was queued is accepted", || {
        let requests = receiver.take();
        let accepted: Vec<_> = requests.iter().filter(|request| request.answer == "ok").collect();
        assert!(accepted.iter().all(|request| request.headers["authorization"] == "Bearer new"), "{accepted:?}");
        let profiles = accepted.iter().flat_map(|request| &request.series).flat_map(|series| &series.profiles);
        profiles.into_iter().any(|profile| profile.stacks.keys().any(|stack| stack.contains("churns")))
    });

    // A file that cannot be used leaves all of it as it was.
    write(&token, "short");
    session.signal(Signal::HUP);
    session.wait_for("the configuration is unchanged: cannot use the token");
    assert_eq!(status(address, "new-token-of-the-server"), Some(200));
    let outcome = session.terminate().expect_code(0);
    assert!(!outcome.stderr.contains("refused"), "{}", outcome.stderr);
}

#[test]
fn a_reload_that_fails_blocks_none_of_the_next() {
    let target = Named::service("agent-blocked");
    let (old, taken) = (free_address(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port"));
    let new = taken.local_addr().expect("it is bound");
    let text = |every: &str, address: SocketAddr| {
        format!("[duty]\nrecord = \"1s\"\nevery = \"{every}\"\n[serve]\naddress = [\"{address}\"]\n")
    };
    let mut agent = Agent::new(&target.name, &text("2s", old));
    let mut session = agent.start();
    session.wait_for("recording 1s of each 2s");
    agent.configure(&target.name, &text("3s", new));
    session.signal(Signal::HUP);
    session.wait_for("the configuration is unchanged: cannot listen on");
    wait_until("the old address is served again", || get(old, "/metrics").is_some());
    // As before: recordings follow each other in the old periods.
    session.wait_for("heapbpf: info: recorded ");
    drop(taken);
    session.signal(Signal::HUP);
    session.wait_for("recording 1s of each 3s");
    wait_until("the new address is served", || get(new, "/metrics").is_some());
    assert!(get(old, "/metrics").is_none(), "the old address is closed");
    let _ = session.terminate().expect_code(0);
}
