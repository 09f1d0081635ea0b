//! Within this process: see [`Reader`].

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use rustix::fs::{OFlags, SealFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::*;

/// A user that owns nothing of these tests.
const OTHER: u32 = 65534;

struct Ground {
    folder: tempfile::TempDir,
    root: File,
}

impl Ground {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        let root = File::open(folder.path()).expect("ours");
        Self { folder, root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, mode: u32) {
        fs::write(self.path(name), name).expect("ours");
        fs::set_permissions(self.path(name), PermissionsExt::from_mode(mode)).expect("ours");
    }

    fn open(&self, rights: &Rights, name: &str) -> Result<String, ReadError> {
        let wanted = Wanted { path: Path::new(name), follows: true, owners: None, bytes_max: 100 };
        self.open_as(rights, wanted)
    }

    fn open_as(&self, rights: &Rights, wanted: Wanted<'_>) -> Result<String, ReadError> {
        let mut text = String::new();
        open(rights, &self.root, wanted)?.file.read_to_string(&mut text)?;
        Ok(text)
    }
}

#[track_caller]
fn assert_denied(result: Result<String, ReadError>) {
    assert!(
        matches!(&result, Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied),
        "{result:?}"
    );
}

#[test]
fn files_are_opened_with_the_rights_of_the_user() {
    let ground = Ground::new();
    ground.file("open", 0o644);
    ground.file("secret", 0o600);
    symlink(ground.path("secret"), ground.path("link")).expect("ours");
    fs::create_dir(ground.path("closed")).expect("ours");
    fs::set_permissions(ground.path("closed"), PermissionsExt::from_mode(0o700)).expect("ours");
    ground.file("closed/open", 0o644);
    let (root, nobody) = (Rights::of_invoker(), Rights::of_nobody());
    assert_eq!(ground.open(&nobody, "open").expect("for all"), "open");
    for name in ["secret", "closed/open"] {
        assert_eq!(ground.open(&root, name).expect("ours"), name);
        assert_denied(ground.open(&nobody, name));
    }
    // Links are those of the root directory: this one leads nowhere in it.
    assert!(ground.open(&root, "link").is_err());
    symlink("/../closed/../secret", ground.path("inside")).expect("ours");
    assert_eq!(ground.open(&root, "inside").expect("ours"), "secret");
    chown(ground.path("secret"), Some(OTHER), None).expect("tests run as root");
    assert_eq!(ground.open(&nobody, "secret").expect("its owner"), "secret");
    // Root reads all, as outside.
    assert_eq!(ground.open(&root, "secret").expect("root"), "secret");
}

#[test]
fn what_is_no_regular_file_of_the_wanted_kind_is_refused() {
    let ground = Ground::new();
    ground.file("file", 0o644);
    symlink("file", ground.path("link")).expect("ours");
    fs::create_dir(ground.path("folder")).expect("ours");
    rustix::fs::mknodat(&ground.root, "pipe", rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("ours");
    let rights = Rights::of_invoker();
    assert_eq!(ground.open(&rights, "link").expect("it leads to the file"), "file");
    for name in ["folder", "pipe", ""] {
        assert!(ground.open(&rights, name).is_err(), "{name}");
    }
    let wanted = Wanted { path: Path::new("link"), follows: false, owners: None, bytes_max: 100 };
    assert!(matches!(ground.open_as(&rights, wanted), Err(ReadError::NotRegular)));
    let file = Wanted { path: Path::new("file"), ..wanted };
    assert!(matches!(ground.open_as(&rights, Wanted { bytes_max: 3, ..file }), Err(ReadError::TooLarge)));
    assert!(matches!(ground.open_as(&rights, Wanted { owners: Some([1, 2]), ..file }), Err(ReadError::Foreign)));
    assert_eq!(ground.open_as(&rights, Wanted { owners: Some([0, 2]), ..file }).expect("root's"), "file");
}

#[test]
fn links_of_other_users_are_not_followed() {
    let ground = Ground::new();
    ground.file("file", 0o644);
    fs::create_dir(ground.path("folder")).expect("ours");
    symlink("../file", ground.path("folder/link")).expect("ours");
    symlink("folder", ground.path("way")).expect("ours");
    symlink("ring", ground.path("ring")).expect("ours");
    let rights = Rights::of_invoker();
    assert_eq!(ground.open(&rights, "way/link").expect("ours"), "file");
    assert!(ground.open(&rights, "ring").is_err());
    for link in ["folder/link", "way"] {
        std::os::unix::fs::lchown(ground.path(link), Some(OTHER), None).expect("tests run as root");
        assert!(matches!(ground.open(&rights, "way/link"), Err(ReadError::Foreign)), "{link}");
        assert_eq!(ground.open(&Rights::of_nobody(), "way/link").expect("its own"), "file");
        std::os::unix::fs::lchown(ground.path(link), Some(0), None).expect("tests run as root");
    }
}

#[test]
fn each_error_leaves_the_reader_usable() {
    let ground = Ground::new();
    ground.file("file", 0o644);
    let rights = Rights::of_invoker();
    for _ in 0..3 {
        assert!(ground.open(&rights, "missing").is_err());
        assert_eq!(ground.open(&rights, "file").expect("ours"), "file");
    }
}

/// A regular file with contents, on a file system that is not in the list of those that answer.
const DISTANT: [&str; 2] = ["/sys/kernel", "notes"];

fn distant() -> (File, Vec<u8>) {
    let bytes = fs::read(DISTANT.join("/")).expect("the kernel has a build id");
    (File::open(DISTANT[0]).expect("sysfs is mounted"), bytes)
}

#[test]
fn other_file_systems_give_a_copy_that_nobody_can_change() {
    let (root, bytes) = distant();
    let wanted = Wanted { path: Path::new(DISTANT[1]), follows: true, owners: None, bytes_max: 1 << 20 };
    let Opened { mut file, original } = open(&Rights::of_nobody(), &root, wanted).expect("all may read it");
    let original = original.expect("a copy");
    let metadata = fs::metadata(DISTANT.join("/")).expect("it is there");
    assert_eq!((original.size_bytes, original.inode), (metadata.len(), metadata.ino()));
    let mut copied = Vec::new();
    file.read_to_end(&mut copied).expect("memory");
    assert_eq!(copied, bytes);
    let seals = rustix::fs::fcntl_get_seals(&file).expect("a memfd");
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL), "{seals:?}");
    assert!((&file).write_all(b"x").is_err());
    // A file of a local file system is no copy.
    let ground = Ground::new();
    ground.file("file", 0o644);
    let local = open(&Rights::of_nobody(), &ground.root, Wanted { path: Path::new("file"), ..wanted });
    assert_eq!(local.expect("for all").original, None);
}

#[test]
fn large_files_are_read_in_parts() {
    let (root, bytes) = distant();
    let at = Mapped::At(&root, Path::new(DISTANT[1]));
    let Module::Distant { copy: None, original, file } = open_mapped(None, at, bytes.len() as u64 - 1).expect("ours")
    else {
        panic!("it is not local, and too large")
    };
    // It is not opened, so that closing it asks no file system.
    assert!(rustix::fs::fcntl_getfl(&file).expect("open").contains(OFlags::PATH));
    let part = |offset, length| read(None, &file, &original, offset, length).expect("it is there");
    assert_eq!(part(4, 8), bytes[4..12]);
    assert_eq!(part(bytes.len() as u64 - 4, 100), bytes[bytes.len() - 4..]);
    let other = Original { size_bytes: 1, ..original };
    assert!(matches!(read(None, &file, &other, 0, 8), Err(ReadError::Changed)));
    let again = open_mapped(None, Mapped::File(&file), bytes.len() as u64).expect("ours");
    assert!(matches!(again, Module::Distant { copy: Some(_), .. }), "{again:?}");
    assert_eq!(identify(&Rights::of_nobody(), &root, Path::new(DISTANT[1]), None).expect("for all"), original);
}

/// A file system whose program never answers. What waits for it gets an error when this is dropped.
struct Silent {
    folder: tempfile::TempDir,
    _program: File,
}

impl Silent {
    fn mount() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let program = File::options().read(true).write(true).open("/dev/fuse").expect("the kernel has FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", program.as_raw_fd());
        let options = std::ffi::CString::new(options).expect("no zeros");
        rustix::mount::mount("silent", folder.path(), "fuse", MountFlags::empty(), &*options)
            .expect("tests run as root");
        Self { folder, _program: program }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.folder.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_file_system_that_does_not_answer_costs_one_reader() {
    let (silent, ground) = (Silent::mount(), Ground::new());
    ground.file("file", 0o644);
    // As the root directory of a process, which is not opened itself.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(silent.folder.path(), flags, rustix::fs::Mode::empty()).expect("it is in memory");
    let root = File::from(root);
    let rights = Rights::of_invoker();
    let try_one = |path: &str| {
        let wanted = Wanted { path: Path::new(path), follows: true, owners: None, bytes_max: 100 };
        assert!(matches!(open(&rights, &root, wanted), Err(ReadError::Silent)), "{path}");
    };
    for path in ["a/file", "a/other", "b/file", "c/file"] {
        try_one(path);
        assert_eq!(ground.open(&rights, "file").expect("another reader"), "file");
    }
    // A fourth folder is not tried, because three of this root directory have not answered.
    let silent_folders = || readers().silent.len();
    assert_eq!(silent_folders(), 3);
    try_one("d/file");
    assert_eq!(silent_folders(), 3);
}

#[test]
fn a_file_system_that_answers_late_is_left_alone() {
    let place = Place::Device(Device { major: 1, minor: 2 });
    let mut readers = Readers::default();
    readers.note_delay(&place, DELAY_MAX);
    assert!(!readers.is_silent(&place));
    readers.note_delay(&place, Duration::from_millis(1));
    assert!(readers.is_silent(&place));
    let pause = |readers: &Readers| readers.silent[&place].pause;
    assert_eq!(pause(&readers), TRIES_AGAIN_AFTER);
    readers.note_silence(&place);
    assert_eq!(pause(&readers), TRIES_AGAIN_AFTER * 2);
    for _ in 0..10 {
        readers.note_silence(&place);
    }
    assert_eq!(pause(&readers), TRIES_AGAIN_AFTER_MAX);
}
