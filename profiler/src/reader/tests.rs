//! Within this process: see [`Reader`].

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

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
