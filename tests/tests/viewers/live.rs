//! The live page in Chromium, with documents of a small server: what the reader has chosen stays from one document to the
//! next. Then with heapbpf as its server.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::redis::Redis;
use heapbpf_tests::viewers;
use serde_json::json;

use super::fixture::Fixture;
use super::html::{amount, run_scene, texts};

#[test]
#[ignore = "part of `cargo xtask nightly --suite page`"]
fn what_is_chosen_stays_while_documents_follow_each_other() {
    let seen = run_scene("live.py", "states", Fixture::exact());
    assert_eq!(seen["after"], seen["before"], "another document changed what was chosen");
    let chosen = &seen["before"];
    for (what, expected) in [("view", "view-alloc-bytes"), ("search", "a"), ("focus", "."), ("sorted", "Live▴")] {
        assert_eq!(chosen[what], expected, "{what} was not chosen: {chosen:.500}");
    }
    assert_eq!((&chosen["to"], &chosen["editor"]), (&json!(true), &json!(true)), "it follows, and the menu is open");
    assert!(chosen["zoomed"].is_string(), "no frame is zoomed");
    assert!(chosen["target"].as_str().is_some_and(|name| name.starts_with("orchard")), "{}", chosen["target"]);
    assert_eq!(texts(&seen, "/before/open").len(), 1);
    assert!(amount(&seen, "/before/scroll") < 0.0, "the reader has scrolled");
    assert_eq!(seen["grew"], true, "the amounts are those of the last document");
    assert!(texts(&seen, "/targets")[1].starts_with("newcomer"), "another process is the first");
    let shifts = seen["shifts"].as_array().expect("they were observed");
    // Less than a line of text by its height: numbers in a line become longer.
    let moved: f64 = shifts.iter().filter_map(|shift| shift[0].as_f64()).sum();
    assert!(moved < 0.001, "the page moved: {shifts:?}");

    assert_eq!(seen["while_paused"], 0);
    assert_eq!(seen["end"], json!(["Ended", 0]));
    let (updates, documents) = (amount(&seen, "/updates"), amount(&seen, "/documents"));
    assert!(updates >= 6.0, "{updates} updates were shown");
    assert!(documents - updates <= 2.0, "{documents} documents were fetched for {updates} updates");
    assert_eq!(seen["before"]["from"][0], 1);
}

/// The page of `--serve`: documents arrive while redis is under load, and the reader's selection stays.
#[test]
fn a_running_recording_is_followed() {
    const UPDATES: u32 = 10;
    let redis = Redis::start();
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("there is a free port").port();
    let mut heapbpf = Heapbpf::of(redis.pid(), &format!("--serve 127.0.0.1:{port} --duration 10m -o heap.json"));
    let session = heapbpf.start();
    let is_over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                redis.set_keys(1000);
            }
        });
        let address = format!("http://127.0.0.1:{port}/");
        let seen = viewers::python("live.py", &["follow", &address, &UPDATES.to_string()]);
        is_over.store(true, Ordering::Relaxed);
        seen
    });
    session.interrupt().expect_code(0);
    assert!(amount(&seen, "/updates") >= f64::from(UPDATES), "{}", seen["updates"]);
    assert_eq!((&seen["complaints"], &seen["state"]), (&json!([]), &json!("Live")));
    assert_eq!(seen["requests"], json!(["", "api/document", "api/events"]));
    assert_eq!(seen["zoomed"][0], seen["zoomed"][1], "the zoom stays");
}
