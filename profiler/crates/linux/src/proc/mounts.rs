//! Which file systems answer by themselves, by the mount tables of processes. Reading these asks no file system.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FsWord, MemfdFlags, memfd_create};

use super::maps::Device;
use super::process::{entry_path, read_file};
use crate::invoker::invoker;
use crate::known;

/// Maximum size of a mount table. A container's table has dozens of lines; those of hosts have thousands.
const TABLE_BYTES_MAX: u64 = 16 << 20;

/// File systems that answer by themselves, whose files can be read at any time: names in mount tables, and numbers of `f_type` in
/// statfs(2).
const LOCAL: [(&str, FsWord); 18] = [
    ("ext2", 0xef53),
    ("ext3", 0xef53),
    ("ext4", 0xef53),
    ("xfs", 0x5846_5342),
    ("btrfs", 0x9123_683e),
    ("zfs", 0x2fc1_2fc1),
    ("bcachefs", 0xca45_1a4e),
    ("f2fs", 0xf2f5_2010),
    ("ubifs", 0x2405_1905),
    ("squashfs", 0x7371_7368),
    ("erofs", 0xe0f5_e1e2),
    ("iso9660", 0x9660),
    ("tmpfs", 0x0102_1994),
    ("devtmpfs", 0x0102_1994),
    ("ramfs", 0x8584_58f6),
    ("rootfs", 0x8584_58f6),
    ("hugetlbfs", 0x9584_58f6),
    (OVERLAY, 0x794c_7630),
];
/// Name of the overlay, which shows the files of other file systems. In a user namespace, any user can mount it over those that
/// do not answer.
const OVERLAY: &str = "overlay";
/// Name of the file system of `/proc`.
const PROCESSES: &str = "proc";
/// Maximum number of links that are followed on one way: as many as the kernel follows (`MAXSYMLINKS` in include/linux/namei.h).
const LINKS_MAX: u32 = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    kind: String,
    point: PathBuf,
    /// User whose program serves a FUSE.
    user: Option<u32>,
}

impl Mount {
    fn is_local(&self, device: Device) -> bool {
        LOCAL.iter().any(|(kind, _)| *kind == self.kind) || (device.major != 0 && !self.is_fuse())
    }

    /// Whether the mount is a FUSE, also of a block device (`fuseblk`).
    fn is_fuse(&self) -> bool {
        self.kind.starts_with("fuse")
    }

    /// Whether the file system is not a FUSE, or is served by root or by the user who invoked heapbpf.
    fn is_trusted(&self) -> bool {
        let is_of = |user: u32| user == 0 || invoker().is_some_and(|(invoker, _)| invoker == user);
        !self.is_fuse() || self.user.is_some_and(is_of)
    }
}

/// A file system that another machine or a program serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distant {
    pub device: Device,
    /// Path at which the file system is mounted.
    pub point: PathBuf,
}

/// The file systems of a mount namespace, each at its last mount point.
#[derive(Debug, Default)]
struct Table {
    mounts: HashMap<Device, Mount>,
    /// Device of the file system that was mounted last at each point.
    points: HashMap<PathBuf, Device>,
    /// Device of the root directory.
    root: Option<Device>,
}

impl Table {
    /// Parses a mount table. Skips malformed lines.
    fn parse(text: &[u8]) -> Self {
        let mut table = Self::default();
        for (device, mount) in text.split(|&byte| byte == b'\n').filter_map(parse_line) {
            if mount.point == Path::new("/") {
                table.root = Some(device);
            }
            table.points.insert(mount.point.clone(), device);
            table.mounts.insert(device, mount);
        }
        table
    }

    /// Whether a file system answers by itself. The one of the root directory counts as local: if it does not answer, nothing on
    /// the machine works.
    fn is_local(&self, device: Device) -> Option<bool> {
        Some(self.root == Some(device) || self.mounts.get(&device)?.is_local(device))
    }

    /// The first file system on a path that does not answer by itself. Looks up names only in file systems that do. `path` must
    /// be absolute.
    fn first_distant(&self, path: &Path) -> Option<Distant> {
        let names = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<_>>();
        let mut at = PathBuf::from("/");
        let mut left = names(path);
        let mut links_left = LINKS_MAX;
        while let Some(name) = left.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            // A name that is a root directory replaces the path.
            at.push(name);
            if let Some(&device) = self.points.get(&at) {
                if !self.is_local(device)? && self.mounts.get(&device)?.kind != PROCESSES {
                    return Some(Distant { device, point: at });
                }
            } else if let Ok(target) = fs::read_link(&at) {
                at.pop();
                // Links in `/proc` lead elsewhere than their text states.
                if self.kind_at(&at) == Some(PROCESSES) {
                    return None;
                }
                links_left = links_left.checked_sub(1)?;
                left.extend(names(&target));
            }
        }
        None
    }

    fn kind_at(&self, folder: &Path) -> Option<&str> {
        let device = folder.ancestors().find_map(|point| self.points.get(point))?;
        self.mounts.get(device).map(|mount| mount.kind.as_str())
    }
}

/// Parses a line of `/proc/PID/mountinfo`: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`.
fn parse_line(line: &[u8]) -> Option<(Device, Mount)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let number = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = number.split_once(':')?;
    let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let point = unescape(fields.nth(1)?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = shown::text(fields.next()?).into_owned();
    let options = fields.nth(1).and_then(|options| std::str::from_utf8(options).ok());
    let user = options.and_then(|options| options.split(',').find_map(|option| option.strip_prefix("user_id=")));
    Some((device, Mount { kind, point, user: user.and_then(|user| user.parse().ok()) }))
}

/// Replaces escapes: space, tab, line feed and backslash are three octal digits behind a backslash (`mangle` in
/// fs/proc_namespace.c).
fn unescape(mut field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    while let Some((&first, tail)) = field.split_first() {
        let digits = tail.first_chunk::<3>().filter(|_| first == b'\\').and_then(|it| std::str::from_utf8(it).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(escaped.unwrap_or(first));
        field = if escaped.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// The mount table of heapbpf itself.
struct Own {
    file: File,
    table: Table,
}

static OWN: LazyLock<Mutex<Option<Own>>> = LazyLock::new(|| Mutex::new(Own::read().ok()));

/// Device of memory without a mount: memfd, `/dev/zero` and System V segments (`shm_mnt` in mm/shmem.c).
static MEMORY: LazyLock<Option<Device>> = LazyLock::new(|| {
    let memory = memfd_create("heapbpf-device", MemfdFlags::CLOEXEC).ok()?;
    let found = known::of(&memory).ok()?;
    Some(Device::of(&found))
});

impl Own {
    fn read() -> io::Result<Self> {
        let mut own = Self { file: File::open("/proc/self/mountinfo")?, table: Table::default() };
        own.refresh()?;
        Ok(own)
    }

    fn refresh(&mut self) -> io::Result<()> {
        let mut text = Vec::new();
        self.file.rewind()?;
        (&self.file).take(TABLE_BYTES_MAX).read_to_end(&mut text)?;
        self.table = Table::parse(&text);
        Ok(())
    }

    /// The present table. The kernel reports changes of the table since the last call (`mounts_poll` in fs/proc_namespace.c).
    fn refreshed(&mut self) -> &Table {
        let mut polled = [PollFd::new(&self.file, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0) {
            let _ = self.refresh();
        }
        &self.table
    }
}

fn own<T>(find: impl FnOnce(&Table) -> Option<T>) -> Option<T> {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    find(own.as_mut()?.refreshed())
}

/// Whether a file system that is mounted where heapbpf runs answers by itself; `None` for file systems that are not mounted
/// there.
pub fn is_local_here(device: Device) -> Option<bool> {
    own(|table| table.is_local(device))
}

/// The first file system on the way to a file of this machine that does not answer by itself. Makes no request to it.
pub fn first_distant(path: &Path) -> Option<Distant> {
    let path = std::path::absolute(path).ok()?;
    own(|table| table.first_distant(&path))
}

/// Whether an open file's file system answers by itself, by its `f_type`. An overlay does only if it is mounted where heapbpf runs.
pub fn is_local_type(number: FsWord, device: Device) -> bool {
    let mut kinds = LOCAL.iter().filter(|(_, of)| *of == number).map(|(kind, _)| *kind);
    kinds.next().is_some_and(|kind| kind != OVERLAY || is_local_here(device) == Some(true))
}

/// Whether the file system of a process's file answers by itself: neither another machine nor a program serves it. `device` is that of
/// a mapping: the memory manager's, not that of `stat`.
pub fn is_local(pid: Pid, device: Device) -> bool {
    if *MEMORY == Some(device) {
        return true;
    }
    if let Some(is_local) = is_local_here(device) {
        return is_local;
    }
    // In these namespaces, only root mounts and unmounts.
    if is_of_our_users(pid) {
        return of_container(pid, |table| table.mounts.get(&device).map(|mount| mount.is_local(device)))
            .unwrap_or(device.major != 0);
    }
    match of(pid).mounts.get(&device) {
        Some(mount) => mount.is_local(device) && mount.kind != OVERLAY,
        // The file system was unmounted, or is below an overlay. Only root mounts block devices.
        None => device.major != 0,
    }
}

/// The mount tables of containers that were read last, by their mount namespaces: programs of one container have dozens of files.
static CONTAINERS: Mutex<VecDeque<(u64, Instant, Table)>> = Mutex::new(VecDeque::new());
const CONTAINERS_MAX: usize = 16;
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

fn of_container<T>(pid: Pid, find: impl FnOnce(&Table) -> Option<T>) -> Option<T> {
    let namespace = known::at(&entry_path(pid, "ns/mnt")).ok()?.stx_ino;
    let mut tables = CONTAINERS.lock().unwrap_or_else(PoisonError::into_inner);
    tables.retain(|(_, read, _)| read.elapsed() < READ_AGAIN_AFTER);
    if let Some((_, _, table)) = tables.iter().find(|(of, ..)| *of == namespace) {
        return find(table);
    }
    let table = of(pid);
    let found = find(&table);
    tables.push_front((namespace, Instant::now(), table));
    tables.truncate(CONTAINERS_MAX);
    found
}

/// Whether the kernel may wait for the file system of a process's file while it has locks that others need: another user could keep it
/// waiting.
pub fn is_trusted(pid: Pid, device: Device) -> bool {
    let here = own(|table| table.mounts.get(&device).map(Mount::is_trusted));
    here.unwrap_or_else(|| is_of_our_users(pid) && of(pid).mounts.get(&device).is_some_and(Mount::is_trusted))
}

/// Path at which heapbpf or a process has mounted a file system. A process's own paths begin at its root directory.
pub fn point_of(pid: Pid, device: Device) -> Option<PathBuf> {
    let here = own(|table| table.mounts.get(&device).map(|mount| mount.point.clone()));
    here.or_else(|| {
        let point = of(pid).mounts.remove(&device)?.point;
        Some(if point == Path::new("/") { entry_path(pid, "root") } else { point })
    })
}

fn of(pid: Pid) -> Table {
    read_file(entry_path(pid, "mountinfo"), TABLE_BYTES_MAX)
        .map_or_else(|_| Table::default(), |text| Table::parse(&text))
}

/// Whether a process is in the user namespace of heapbpf.
pub(crate) fn is_of_our_users(pid: Pid) -> bool {
    let namespace = |process: &str| fs::metadata(format!("/proc/{process}/ns/user")).ok().map(|it| it.ino());
    let own = namespace("self");
    own.is_some() && namespace(&pid.to_string()) == own
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use rustix::fs::fstatfs;

    use super::*;

    fn device(major: u32, minor: u32) -> Device {
        Device { major, minor }
    }

    #[test]
    fn file_systems_are_found_by_their_devices() {
        let table = Table::parse(
            b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            \n\
            malformed\n\
            30 27 0:40 / /mnt/a\\040b rw,relatime shared:3 master:1 - fuse.sshfs h:/x rw,user_id=1000\n\
            31 27 8:1 / /media rw - fuseblk /dev/sda1 rw\n\
            32 27 0:41 / /nfs rw - nfs4 h:/x rw\n\
            33 27 0:42 / /btrfs rw - btrfs /dev/sdb rw\n",
        );
        let found = |device: Device| table.mounts.get(&device).map(|mount| mount.is_local(device));
        assert_eq!(table.root, Some(device(254, 0)));
        for (number, is_local) in [
            ((254, 0), Some(true)),
            ((0, 40), Some(false)),
            ((8, 1), Some(false)),
            ((0, 41), Some(false)),
            ((0, 42), Some(true)),
            ((0, 43), None),
        ] {
            assert_eq!(found(device(number.0, number.1)), is_local, "{number:?}");
        }
        assert_eq!(table.mounts[&device(0, 40)].point, Path::new("/mnt/a b"));
        assert!(!table.mounts[&device(0, 40)].is_trusted(), "another user serves it");
        assert!(table.mounts[&device(0, 41)].is_trusted(), "only root mounts it");
    }

    #[test]
    fn programs_memory_and_the_root_directory_answer() {
        let own = Pid(std::process::id());
        let root = known::at(Path::new("/")).expect("there is one");
        let memory = memfd_create("x", MemfdFlags::CLOEXEC).expect("there is memory");
        for found in [root, known::of(&memory).expect("it is open")] {
            assert!(is_local(own, Device::of(&found)));
        }
        assert!(!is_local(own, device(0, 0xf_ffff)), "unknown");
        assert!(is_of_our_users(own));
    }

    #[test]
    fn names_and_numbers_of_file_systems_agree() {
        let by_name = |kind: &str| {
            let mount = Mount { kind: kind.to_owned(), point: PathBuf::from("/x"), user: None };
            mount.is_local(device(0, 99))
        };
        for (kind, number) in LOCAL {
            assert!(by_name(kind) && is_local_type(number, device(0, 99)) == (kind != OVERLAY), "{kind}");
        }
        // FUSE, NFS, 9p, CIFS, SMB2, Ceph, autofs and procfs.
        for (kind, number) in [
            ("fuse", 0x6573_5546),
            ("nfs4", 0x6969),
            ("9p", 0x0102_1997),
            ("cifs", 0xff53_4d42),
            ("smb3", 0xfe53_4d42),
            ("ceph", 0x00c3_6400),
            ("autofs", 0x0187),
            ("proc", 0x9fa0),
        ] {
            assert!(!by_name(kind) && !is_local_type(number, device(0, 99)), "{kind}");
        }
        let memory = memfd_create("x", MemfdFlags::CLOEXEC).expect("there is memory");
        assert!(is_local_type(fstatfs(&memory).expect("it is open").f_type, device(0, 99)));
    }

    #[test]
    fn the_way_to_a_file_is_followed_up_to_what_may_not_answer() {
        let ground = tempfile::tempdir().expect("temporary folder");
        let ground = ground.path().canonicalize().expect("it exists");
        for name in ["served", "own"] {
            fs::create_dir(ground.join(name)).expect("ours");
        }
        for (name, target) in [("link", "own/../served/x"), ("absolute", "/proc/self/root"), ("loop", "loop")] {
            symlink(target, ground.join(name)).expect("ours");
        }
        let text = format!(
            "1 1 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:5 / /proc rw - proc proc rw\n3 1 0:40 / {}/served rw - fuse x rw\n",
            ground.display()
        );
        let table = Table::parse(text.as_bytes());
        let served = Distant { device: device(0, 40), point: ground.join("served") };
        for (path, expected) in [
            ("served", true),
            ("served/a/b", true),
            ("own/../served", true),
            ("link/y", true),
            ("", false),
            ("own/a/b", false),
            ("own/../link/../../own", true),
            ("missing/served", false),
            ("absolute", false),
            ("loop/served", false),
        ] {
            let found = table.first_distant(&ground.join(path));
            assert_eq!(found, expected.then(|| served.clone()), "{path}");
        }
        assert_eq!(table.first_distant(Path::new("/proc/self/cwd/served")), None);
    }

    proptest! {
        #[test]
        fn any_line_is_parsed_without_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Table::parse(&line);
        }
    }
}
