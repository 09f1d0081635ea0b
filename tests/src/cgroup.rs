//! Control groups created and removed by the tests. Touches no other group.

use std::fs;
use std::io::Error;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Mount point of control groups.
const MOUNT: &str = "/sys/fs/cgroup";

/// Timeout for the exit of all processes in it.
const EMPTY_WITHIN: Duration = Duration::from_secs(20);

/// A control group. Removed on drop, after all of its processes have exited.
#[derive(Debug)]
pub struct Group {
    directory: PathBuf,
}

impl Group {
    /// Creates a group with this name in the version 2 hierarchy.
    #[track_caller]
    pub fn unified(name: &str) -> Self {
        let mounts = [MOUNT.to_owned(), format!("{MOUNT}/unified")];
        let mount = mounts.into_iter().find(|mount| Path::new(mount).join("cgroup.controllers").exists());
        Self::make(&mount.unwrap_or_else(|| panic!("no control groups of version 2 are mounted below `{MOUNT}`")), name)
    }

    /// Creates a group with this name in a version 1 hierarchy; `None` on a machine with version 2 only.
    #[track_caller]
    pub fn of_hierarchy(hierarchy: &str, name: &str) -> Option<Self> {
        let mount = format!("{MOUNT}/{hierarchy}");
        Path::new(&mount).join("cgroup.procs").exists().then(|| Self::make(&mount, name))
    }

    /// Creates a group whose processes run for 4 ms of each 200 ms.
    #[track_caller]
    pub fn slow(name: &str) -> Self {
        let write = |group: &Self, file: &str, value: &str| {
            let path = group.directory.join(file);
            fs::write(&path, value).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
        };
        match Self::of_hierarchy("cpu", name) {
            Some(group) => {
                write(&group, "cpu.cfs_period_us", "200000");
                write(&group, "cpu.cfs_quota_us", "4000");
                group
            }
            None => {
                let group = Self::unified(name);
                write(&group, "cpu.max", "4000 200000");
                group
            }
        }
    }

    #[track_caller]
    fn make(mount: &str, name: &str) -> Self {
        let directory = Path::new(mount).join(name);
        let made = fs::create_dir(&directory);
        made.unwrap_or_else(|error| panic!("`{}`: {error}: this test makes control groups", directory.display()));
        Self { directory }
    }

    /// Path of the group.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// File to which PIDs are written.
    pub fn processes(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Moves a process into the group.
    #[track_caller]
    pub fn add(&self, pid: u32) {
        fs::write(self.processes(), pid.to_string()).unwrap_or_else(|error| panic!("process {pid}: {error}"));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + EMPTY_WITHIN;
        let busy = |error: &Error| error.raw_os_error() == Some(16);
        while fs::remove_dir(&self.directory).is_err_and(|error| busy(&error)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }
}
