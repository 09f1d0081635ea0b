//! Control groups that the tests make, and take away again. Refuses to touch any other.

use std::fs;
use std::io::Error;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// Until all that was in it has ended.
const EMPTY_WITHIN: Duration = Duration::from_secs(20);

/// A control group. Removed when dropped, which takes the end of all that is in it.
#[derive(Debug)]
pub struct Group {
    directory: PathBuf,
}

impl Group {
    /// Makes a group of this name in the hierarchy of version 2, wherever that is mounted.
    ///
    /// # Panics
    ///
    /// When the machine has none that can be written to.
    #[track_caller]
    pub fn unified(name: &str) -> Self {
        let mounts = [MOUNT.to_owned(), format!("{MOUNT}/unified")];
        let mount = mounts.into_iter().find(|mount| Path::new(mount).join("cgroup.controllers").exists());
        Self::make(&mount.unwrap_or_else(|| panic!("no control groups of version 2 are mounted below `{MOUNT}`")), name)
    }

    /// Makes a group of this name in a hierarchy of version 1; `None` where the machine has version 2 alone.
    ///
    /// # Panics
    ///
    /// When it cannot be written to.
    #[track_caller]
    pub fn of_hierarchy(hierarchy: &str, name: &str) -> Option<Self> {
        let mount = format!("{MOUNT}/{hierarchy}");
        Path::new(&mount).join("cgroup.procs").exists().then(|| Self::make(&mount, name))
    }

    #[track_caller]
    fn make(mount: &str, name: &str) -> Self {
        let directory = Path::new(mount).join(name);
        let made = fs::create_dir(&directory);
        made.unwrap_or_else(|error| panic!("`{}`: {error}: this test makes control groups", directory.display()));
        Self { directory }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file that takes processes in.
    pub fn processes(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Takes a process in.
    ///
    /// # Panics
    ///
    /// When it has ended.
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
