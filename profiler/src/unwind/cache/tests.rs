//! The cache returns valid tables only.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use heapbpf_base::address::LinkAddr;
use profiler_common::unwind::{CallerBp, Cfa, PageRows, Rule, UnwindRow};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::unwind::BuildStats;
use crate::unwind::image::Samples;

fn table(offset: i32) -> Table {
    let rule = Rule::new(Cfa::Sp { offset }, CallerBp::AtCfa(-16)).expect("at least 8");
    let row = |pc_low, rule| UnwindRow { pc_low, rule };
    Table {
        base: LinkAddr(0x7_0000),
        rows: vec![row(0, 0), row(0x10, 5), row(0x40, 0), row(0, 5), row(9, 1)],
        pages: vec![PageRows { first: 0, end: 3 }, PageRows { first: 3, end: 3 }, PageRows { first: 3, end: 5 }],
        rules: [&Rule::RESERVED[..], &[rule]].concat(),
        stats: BuildStats { functions: 3, truncated: true, ..BuildStats::default() },
        samples: Samples { ranges: vec![(0x7_0040, 64), (0x7_2000, 4096)], digest: [7; 32] },
    }
}

fn key(number: u8) -> TableKey {
    TableKey([number; 32])
}

fn open(root: &TempDir) -> Cache {
    Cache::open(root.path(), CACHE_BYTES_MAX).expect("a fresh directory of our own")
}

fn directory(root: &TempDir) -> PathBuf {
    root.path().join("heapbpf/unwind")
}

fn file(root: &TempDir, number: u8) -> PathBuf {
    directory(root).join(key(number).file_name())
}

#[test]
fn a_stored_table_is_loaded_in_another_run() {
    let root = TempDir::new().expect("room for files");
    assert_eq!(open(&root).load(&key(1)), None);
    open(&root).store(&key(1), &table(24));
    open(&root).store(&key(2), &table(32));
    assert_eq!(open(&root).load(&key(1)), Some(table(24)));
    assert_eq!(open(&root).load(&key(2)), Some(table(32)));
    let mode = file(&root, 1).metadata().expect("was written").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_table_is_built_once() {
    let root = TempDir::new().expect("room for files");
    let get = |is_current: bool, offset| open(&root).get_or_build(&key(1), |_| is_current, || table(offset));
    assert_eq!(get(true, 24), table(24));
    assert_eq!(get(true, 40), table(24));
    // The file has different code in the table's gaps.
    assert_eq!(get(false, 40), table(40));
    assert_eq!(get(true, 24), table(40));
}

/// A file changed in this way is rejected and replaced by the rebuilt table.
fn check_rebuilt(change: impl Fn(&mut Vec<u8>)) {
    let root = TempDir::new().expect("room for files");
    let cache = open(&root);
    cache.store(&key(1), &table(24));
    let mut bytes = fs::read(file(&root, 1)).expect("was written");
    change(&mut bytes);
    fs::write(file(&root, 1), bytes).expect("ours");
    assert_eq!(cache.load(&key(1)), None);
    assert_eq!(cache.get_or_build(&key(1), |_| true, || table(48)), table(48));
    assert_eq!(cache.load(&key(1)), Some(table(48)));
}

#[test]
fn damaged_tables_are_rebuilt() {
    check_rebuilt(|bytes| bytes.truncate(bytes.len() - 1));
    check_rebuilt(|bytes| bytes.truncate(3));
    check_rebuilt(Vec::clear);
    check_rebuilt(|bytes| bytes.push(0));
    check_rebuilt(|bytes| bytes[0] ^= 1);
    check_rebuilt(|bytes| *bytes.last_mut().expect("not empty") ^= 1);
    // Another version.
    check_rebuilt(|bytes| bytes[8] += 1);
}

#[test]
fn a_table_of_another_module_is_rejected() {
    let root = TempDir::new().expect("room for files");
    let cache = open(&root);
    cache.store(&key(1), &table(24));
    fs::rename(file(&root, 1), file(&root, 2)).expect("ours");
    assert_eq!(cache.load(&key(2)), None);
}

#[test]
fn inconsistent_tables_with_valid_checksums_are_rejected() {
    let check = |change: fn(&mut Table)| {
        let mut crafted = table(24);
        change(&mut crafted);
        assert_eq!(Table::decode(b"m", &crafted.encode(b"m")), None);
    };
    assert_eq!(Table::decode(b"m", &table(24).encode(b"m")), Some(table(24)));
    check(|table| table.rows[1].rule = 6);
    check(|table| table.rows[2].pc_low = 5);
    check(|table| table.rows[0].pc_low = 1);
    check(|table| table.pages[2].end = 6);
    check(|table| table.pages[2].end = 4);
    check(|table| table.pages[1].first = u32::MAX);
    check(|table| table.rules.truncate(4));
    check(|table| table.rules.swap(0, 1));
    check(|table| table.base = LinkAddr(0x7_0001));
}

#[test]
fn links_and_special_files_are_not_read() {
    let root = TempDir::new().expect("room for files");
    let cache = open(&root);
    cache.store(&key(1), &table(24));
    symlink(file(&root, 1), file(&root, 2)).expect("ours");
    assert_eq!(cache.load(&key(2)), None);
    fs::create_dir(file(&root, 3)).expect("ours");
    assert_eq!(cache.load(&key(3)), None);
    fs::set_permissions(file(&root, 1), Permissions::from_mode(0o666)).expect("ours");
    assert_eq!(cache.load(&key(1)), None, "anybody may have written this");
    // A link with the table's name is replaced; its target stays.
    let elsewhere = root.path().join("elsewhere");
    fs::write(&elsewhere, "precious").expect("ours");
    symlink(&elsewhere, file(&root, 4)).expect("ours");
    cache.store(&key(4), &table(24));
    assert_eq!(fs::read(&elsewhere).expect("still there"), b"precious");
    assert_eq!(cache.load(&key(4)), Some(table(24)));
}

#[test]
fn directories_writable_by_others_are_rejected() {
    let root = TempDir::new().expect("room for files");
    drop(open(&root));
    fs::set_permissions(directory(&root), Permissions::from_mode(0o777)).expect("ours");
    let error = Cache::open(root.path(), CACHE_BYTES_MAX).expect_err("anybody may write there");
    assert!(matches!(&error, CacheError::NotOurs { path } if *path == directory(&root)), "{error}");
    assert!(error.to_string().contains("set XDG_CACHE_HOME"), "{error}");
    let linked = TempDir::new().expect("room for files");
    symlink(root.path().join("heapbpf"), linked.path().join("heapbpf")).expect("ours");
    let error = Cache::open(linked.path(), CACHE_BYTES_MAX).expect_err("a link");
    assert!(matches!(error, CacheError::Directory { .. }), "{error}");
    // The directory named by the environment may not be a link itself.
    let link = linked.path().join("link");
    symlink(root.path(), &link).expect("ours");
    assert!(Cache::open(&link, CACHE_BYTES_MAX).is_err());
}

#[test]
fn directories_of_other_users_are_rejected() {
    let root = TempDir::new().expect("room for files");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(root.path(), Some(12_345), None).expect("root may");
        let error = Cache::open(root.path(), CACHE_BYTES_MAX).expect_err("not ours");
        assert!(matches!(error, CacheError::NotOurs { .. }), "{error}");
        // Nothing of root's appears in them.
        Cache::open(&root.path().join(".cache"), CACHE_BYTES_MAX).expect_err("not ours");
        assert_eq!(fs::read_dir(root.path()).expect("root may").count(), 0);
    } else {
        // `/` belongs to root.
        assert!(Cache::open(Path::new("/"), CACHE_BYTES_MAX).is_err());
    }
}

#[test]
fn the_least_recently_used_tables_are_evicted() {
    let root = TempDir::new().expect("room for files");
    let bytes = table(24).encode(key(1).file_name().as_bytes()).len() as u64;
    let cache = Cache::open(root.path(), bytes * 3).expect("our own");
    let age = |number, seconds: u64| {
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(seconds);
        let file = File::options().write(true).open(file(&root, number)).expect("was written");
        file.set_modified(time).expect("ours");
    };
    for (number, seconds) in [(1, 300), (2, 200), (3, 100)] {
        cache.store(&key(number), &table(24));
        age(number, seconds);
    }
    // Used, so no longer the oldest.
    assert!(cache.load(&key(1)).is_some());
    cache.store(&key(4), &table(24));
    let kept: Vec<u8> = (1..=4).filter(|&number| file(&root, number).exists()).collect();
    assert_eq!(kept, [1, 3, 4]);
}

#[test]
fn unfinished_files_are_removed() {
    let root = TempDir::new().expect("room for files");
    let cache = open(&root);
    let (old, new) = (directory(&root).join(".heapbpf-1-0"), directory(&root).join(".heapbpf-1-1"));
    for path in [&old, &new] {
        fs::write(path, "part of a table").expect("ours");
    }
    let yesterday = std::time::SystemTime::now() - std::time::Duration::from_secs(86_400);
    File::options().write(true).open(&old).and_then(|file| file.set_modified(yesterday)).expect("ours");
    drop(cache);
    drop(open(&root));
    assert_eq!((old.exists(), new.exists()), (false, true));
}

#[test]
fn a_full_disk_is_a_warning() {
    let root = TempDir::new().expect("room for files");
    let cache = open(&root);
    // The directory was removed, so writing fails for every user.
    fs::remove_dir(directory(&root)).expect("ours");
    assert_eq!(cache.get_or_build(&key(1), |_| true, || table(24)), table(24));
}

#[test]
fn tables_of_earlier_versions_are_removed() {
    let root = TempDir::new().expect("room for files");
    drop(open(&root));
    let old = directory(&root).join("b-abababababababab-1");
    fs::write(&old, "a table by build id").expect("ours");
    drop(open(&root));
    assert!(!old.exists());
}

#[test]
fn the_directory_follows_the_environment() {
    let check = |variables: &[(&str, &str)], is_root, want: &[&str]| {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        let want: Vec<PathBuf> = want.iter().map(PathBuf::from).collect();
        assert_eq!(cache_roots(variable, is_root), want);
    };
    check(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")], false, &["/c"]);
    check(&[("HOME", "/h")], false, &["/h/.cache"]);
    check(&[("XDG_CACHE_HOME", "relative"), ("HOME", "/h")], false, &["/h/.cache"]);
    check(&[("HOME", "/h")], true, &["/h/.cache", "/var/cache"]);
    check(&[], false, &[]);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_table(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        // With a valid checksum, so that the rest is decoded.
        let head = table(24).encode(b"m");
        let length = bytes.len().min(12);
        bytes[..length].copy_from_slice(&head[..length]);
        if bytes.len() >= 16 {
            let checksum = crc32fast::hash(&bytes[16..]);
            bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        }
        if let Some(table) = Table::decode(b"m", &bytes) {
            prop_assert!(table.is_consistent());
        }
    }
}
