//! Access of a process to files: with which rights, and below which root directory. Both can change while it runs, so the least
//! that was seen counts.

use std::fs::File;
use std::path::Path;

use heapbpf_base::ids::Identity;
use rustix::fs::Statx;

use super::known;
use super::proc::process::{self, entry_path};
use super::proc::stat::Stat;
use super::rights::Rights;

/// The least access to files that a process was seen to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileView {
    process: Identity,
    rights: Rights,
    /// Root directory at which the process's paths begin; `None` if that is unknown.
    root: Option<RootId>,
}

/// Identity of a root directory. The mount belongs to one mount namespace alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootId {
    mount: u64,
    device: (u32, u32),
    inode: u64,
}

impl From<Statx> for RootId {
    fn from(found: Statx) -> Self {
        let device = (found.stx_dev_major, found.stx_dev_minor);
        Self { mount: found.stx_mnt_id, device, inode: found.stx_ino }
    }
}

impl FileView {
    /// The present view of a process; that of a process that has ended is what everybody can read.
    pub fn of(process: Identity) -> Self {
        let mut view = Self { process, rights: Rights::of_nobody(), root: None };
        if let Some((rights, root, _)) = look(process) {
            (view.rights, view.root) = (rights, root);
        }
        view
    }

    /// Reads the rights of the process again. Files that it could read before, and cannot any more, are given up for good. The
    /// view of a process that has ended stays as it was.
    pub fn narrow(&mut self) {
        let Some((rights, root, has_ended)) = look(self.process) else { return };
        self.rights = self.rights.narrowed(&rights);
        // A zombie has no root directory.
        if !has_ended && root != self.root {
            self.root = if self.has_own_root() { root.filter(|root| Some(*root) != ours()) } else { root };
        }
    }

    pub fn narrowed(&self) -> Self {
        let mut view = self.clone();
        view.narrow();
        view
    }

    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Rights for files of this machine that the process names. For a process with another root directory, as in a container,
    /// these are nobody's, because its paths are not those of this machine, and its root user is not this machine's.
    pub fn rights_here(&self) -> Rights {
        if self.has_own_root() { Rights::of_nobody() } else { self.rights.clone() }
    }

    /// Whether the process's paths do not begin at heapbpf's root directory.
    pub fn has_own_root(&self) -> bool {
        self.root.is_none() || self.root != ours()
    }

    pub fn root_id(&self) -> Option<RootId> {
        self.root
    }

    /// Opens the process's root directory; `None` if the process has ended, or has another root directory by now.
    pub fn open_root(&self) -> Option<File> {
        let root = process::root(self.process.pid).ok()?;
        if self.root.is_none() || known::of(&root).ok().map(RootId::from) != self.root {
            return None;
        }
        // The PID was not reused before this, so that the directory is the process's.
        Stat::read(self.process.pid).is_ok_and(|stat| stat.is_of(self.process)).then_some(root)
    }
}

/// Rights and root directory of a process, and whether it has ended; `None` if it is reaped.
fn look(process: Identity) -> Option<(Rights, Option<RootId>, bool)> {
    let rights = Rights::of_first_thread(process.pid);
    let root = known::at(Path::new(&format!("/proc/{}/root", process.pid))).ok().map(RootId::from);
    // All of this is about the process if its PID is its own after that.
    let stat = Stat::read(process.pid).ok().filter(|stat| stat.is_of(process))?;
    match rights {
        Some(rights) if !stat.has_ended() => Some((rights, root, false)),
        _ => look_at_threads(process),
    }
}

/// Rights and root directory of a process whose first thread has exited, by another thread, and whether all have exited.
fn look_at_threads(process: Identity) -> Option<(Rights, Option<RootId>, bool)> {
    let rights = Rights::of(process.pid)?;
    let root = known::at(&entry_path(process.pid, "root")).ok().map(RootId::from);
    let stat = Stat::of_process(process.pid).ok().filter(|stat| stat.is_of(process))?;
    Some((rights, root, stat.has_ended()))
}

fn ours() -> Option<RootId> {
    known::at(Path::new("/proc/self/root")).ok().map(RootId::from)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::fs::MetadataExt as _;
    use std::process::{Child, Command, Stdio};

    use heapbpf_base::ids::{Pid, StartTime};

    use super::*;

    /// A process that has printed a line, and waits for its input.
    fn start(program: &str, arguments: &[&str]) -> (Child, Identity) {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it can be started");
        await_line(&mut child);
        let pid = Pid(child.id());
        let start_ticks = Stat::read(pid).expect("it waits").start_ticks;
        (child, Identity { pid, start_ticks })
    }

    fn await_line(child: &mut Child) {
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("a pipe");
        // Each program prints one line at a time, and waits then.
        BufReader::with_capacity(1, output).read_line(&mut line).expect("it prints");
        assert!(!line.is_empty());
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }

    const WAITING: &str = "echo ready; read x";

    #[test]
    fn a_process_that_drops_its_rights_has_no_more_than_the_later_ones() {
        let dropping = format!("{WAITING}; exec setpriv --reuid=4242 --regid=4242 --clear-groups sh -c '{WAITING}'");
        let (mut child, process) = start("sh", &["-c", &dropping]);
        let mut view = FileView::of(process);
        assert_eq!(view.rights_here(), Rights::of(process.pid).expect("it waits"));
        assert_eq!(view.rights_here().uid(), 0, "tests run as root");
        std::io::Write::write_all(child.stdin.as_mut().expect("a pipe"), b"\n").expect("it reads");
        await_line(&mut child);
        assert_eq!(view.narrowed().rights_here().uid(), 4242);
        view.narrow();
        end(child);
        view.narrow();
        assert_eq!(view.rights_here().uid(), 4242, "it stays so when the process has ended");
        assert_eq!(FileView::of(process).rights_here(), Rights::of_nobody(), "it was never seen");
    }

    #[test]
    fn a_process_of_another_mount_namespace_has_nobodys_rights_here() {
        let (child, process) = start("unshare", &["-m", "sh", "-c", WAITING]);
        let view = FileView::of(process);
        assert!(view.has_own_root() && view.rights().uid() == 0);
        assert_eq!(view.rights_here(), Rights::of_nobody());
        let root = view.open_root().expect("it waits").metadata().expect("open");
        assert_eq!(root.ino(), std::fs::metadata("/").expect("there").ino());
        end(child);
        assert!(view.open_root().is_none() && view.narrowed().has_own_root());
    }

    #[test]
    fn a_process_of_this_machine_has_our_root_and_a_reused_pid_has_nothing() {
        let own = Pid(std::process::id());
        let process = Identity { pid: own, start_ticks: Stat::read(own).expect("it runs").start_ticks };
        assert!(!FileView::of(process).has_own_root());
        let other = Identity { start_ticks: StartTime(process.start_ticks.0 - 1), ..process };
        let view = FileView::of(other);
        assert!(view.has_own_root() && view.open_root().is_none());
        assert_eq!(view.rights_here(), Rights::of_nobody());
    }
}
