//! Tests that requests survive a restart, in order and within the limit, and that damage is counted.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::push::payload::Payload;
use crate::push::queue::Queue;
use crate::push::status::DropReason;

const KIB: u64 = 1 << 10;

fn open(folder: &Path, bytes_max: u64) -> Queue {
    Queue::open(&folder.join("push"), "otlp", bytes_max).expect("the folder is ours")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

/// Adds a request of 1 KiB that begins with this byte.
fn add(queue: &mut Queue, first: u8) {
    let mut body = vec![0; 1 << 10];
    body[0] = first;
    queue.push(Payload { profiles: 2, body });
}

/// Takes all requests out; returns the first byte of each.
fn drain(queue: &mut Queue) -> Vec<u8> {
    let mut found = Vec::new();
    while let Some(pending) = queue.front() {
        found.push(pending.body[0]);
        assert!(queue.remove(pending.number));
    }
    found
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("push/otlp")).expect("it exists");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("ours").path()).collect();
    files.sort();
    files
}

#[test]
fn requests_stay_in_memory_until_one_fails() {
    let folder = folder();
    let mut queue = open(folder.path(), 100 * KIB);
    add(&mut queue, 1);
    assert_eq!(files(folder.path()).len(), 0);
    queue.spill();
    add(&mut queue, 2);
    assert_eq!((files(folder.path()).len(), queue.profiles()), (2, 4));
    assert_eq!(queue.bytes(), 2 * (KIB + 24));
    assert_eq!(drain(&mut queue), [1, 2]);
    assert_eq!((files(folder.path()).len(), queue.bytes()), (0, 0));
    add(&mut queue, 3);
    assert_eq!(files(folder.path()).len(), 0, "the server accepts requests again");
}

#[test]
fn requests_survive_a_restart_in_order() {
    let folder = folder();
    let mut queue = open(folder.path(), 100 * KIB);
    (1..=3).for_each(|first| add(&mut queue, first));
    queue.close();
    drop(queue);
    let mut queue = open(folder.path(), 100 * KIB);
    assert_eq!(queue.profiles(), 6);
    add(&mut queue, 4);
    assert_eq!(files(folder.path()).len(), 4, "it does not overtake the others in memory");
    assert_eq!(drain(&mut queue), [1, 2, 3, 4]);
    assert_eq!(queue.drops().total(), 0);
}

#[test]
fn the_oldest_are_dropped_beyond_the_limit() {
    let folder = folder();
    let mut queue = open(folder.path(), 3 * KIB + 72);
    queue.spill();
    (1..=5).for_each(|first| add(&mut queue, first));
    assert_eq!(queue.drops().of(DropReason::QueueFull), 4);
    assert!(queue.bytes() <= 3 * KIB + 72);
    let sent = queue.front().expect("not empty");
    add(&mut queue, 6);
    assert!(!queue.remove(sent.number), "it was dropped while it was being sent");
    assert_eq!(queue.drops().of(DropReason::QueueFull), 6);
    queue.retract_drop(&sent);
    assert_eq!(queue.drops().of(DropReason::QueueFull), 4, "and has arrived");
    queue.retract_drop(&sent);
    assert_eq!(drain(&mut queue), [4, 5, 6]);
    queue.push(Payload { profiles: 1, body: vec![0; 5 << 10] });
    assert_eq!((queue.profiles(), queue.drops().total()), (0, 5), "larger than the limit");
    drop(queue);
    // The next run has a smaller limit.
    let mut queue = open(folder.path(), 100 * KIB);
    (1..=5).for_each(|first| add(&mut queue, first));
    queue.close();
    drop(queue);
    let mut queue = open(folder.path(), 2 * KIB + 48);
    assert_eq!((queue.drops().of(DropReason::QueueFull), drain(&mut queue)), (6, vec![4, 5]));
}

#[test]
fn damaged_files_are_skipped_and_counted() {
    let folder = folder();
    let mut queue = open(folder.path(), 100 * KIB);
    (1..=6).for_each(|first| add(&mut queue, first));
    queue.close();
    drop(queue);
    let paths = files(folder.path());
    let change = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).expect("it is there");
        bytes[at] ^= 1;
        fs::write(path, bytes).expect("ours");
    };
    // Damages a magic number, a length and a body, and cuts a file short.
    change(&paths[0], 0);
    change(&paths[1], 17);
    change(&paths[2], 500);
    fs::write(&paths[3], b"").expect("ours");
    fs::remove_file(&paths[4]).expect("ours");
    symlink("/etc/passwd", &paths[4]).expect("ours");
    fs::write(folder.path().join("push/otlp/notes.txt"), "not ours").expect("ours");
    fs::write(folder.path().join("push/otlp/.heapbpf-1-0"), "incomplete").expect("ours");
    let mut queue = open(folder.path(), 100 * KIB);
    assert_eq!(queue.drops().of(DropReason::Corrupt), 4);
    assert_eq!(drain(&mut queue), [6]);
    // The body of the third request is read only when it is due.
    assert_eq!(queue.drops().of(DropReason::Corrupt), 6);
    assert!(queue.take_error().is_some());
    let left: Vec<_> =
        files(folder.path()).iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned)).collect();
    assert_eq!(left, ["notes.txt"]);
}

#[test]
fn a_folder_is_private_and_used_once() {
    let folder = folder();
    let queue = open(folder.path(), KIB);
    for path in ["push", "push/otlp"] {
        let mode = folder.path().join(path).metadata().expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{path}");
    }
    let error = Queue::open(&folder.path().join("push"), "otlp", KIB).expect_err("locked").to_string();
    assert_eq!(error, "another heapbpf uses it for the same URL");
    Queue::open(&folder.path().join("push"), "parca", KIB).expect("another URL");
    drop(queue);
    fs::set_permissions(folder.path().join("push"), fs::Permissions::from_mode(0o750)).expect("ours");
    let error = Queue::open(&folder.path().join("push"), "otlp", KIB).expect_err("readable").to_string();
    assert_eq!(error, "other users have access to it; run `chmod 700` on it");
    symlink(folder.path().join("push"), folder.path().join("link")).expect("ours");
    Queue::open(&folder.path().join("link"), "otlp", KIB).expect_err("a symbolic link");
    fs::write(folder.path().join("file"), "").expect("ours");
    Queue::open(&folder.path().join("file"), "otlp", KIB).expect_err("a file");
}

#[test]
fn requests_that_cannot_be_written_stay_in_memory_within_a_limit() {
    let folder = folder();
    let mut queue = open(folder.path(), 1 << 30);
    // Not even root can create files in a folder that was removed.
    fs::remove_dir(folder.path().join("push/otlp")).expect("empty");
    queue.spill();
    for first in 0..9 {
        queue.push(Payload { profiles: 1, body: vec![first; 1 << 20] });
    }
    assert_eq!((queue.profiles(), queue.drops().of(DropReason::DiskError)), (8, 1));
    assert!(queue.take_error().is_some());
    assert_eq!(queue.front().expect("not empty").body[0], 1);
    queue.close();
    assert_eq!((queue.profiles(), queue.drops().of(DropReason::DiskError)), (0, 9), "the end loses them");
}
