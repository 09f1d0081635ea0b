//! Links in the keeper: creates them, and closes them side by side.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use super::protocol::{LinkId, Site};
use crate::bpf::load::LinkKind;
use crate::ids::Pid;
use crate::linux::bpf::{AttachType, MultiLink, link_multi, link_perf};
use crate::linux::perf_event::open_uprobe;

/// Bytes of the stack of a thread that closes a descriptor.
const CLOSER_STACK_BYTES: usize = 64 << 10;

/// All links, by the request that has created them.
#[derive(Debug, Default)]
pub(super) struct Links {
    attached: BTreeMap<LinkId, Vec<OwnedFd>>,
    next: u64,
    closing: Vec<JoinHandle<()>>,
}

impl Links {
    /// Attaches all or nothing. The descriptors are the file's and the programs'.
    pub(super) fn attach(
        &mut self,
        kind: LinkKind,
        sites: &[Site],
        pid: Option<Pid>,
        descriptors: &[OwnedFd],
    ) -> io::Result<LinkId> {
        let (file, programs) = descriptors.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let path = path_of(file);
        let mut links = Vec::new();
        let attached = match (kind, programs) {
            (LinkKind::Session, [program]) => {
                multi(program, AttachType::UprobeSession, &path, sites, pid, false, &mut links)
            }
            // Returns first: an entry that is seen then has its return seen as well.
            (LinkKind::Multi, [entry, at_return]) => {
                let returning: Vec<Site> = sites.iter().filter(|site| site.returns).copied().collect();
                multi(at_return, AttachType::UprobeMulti, &path, &returning, pid, true, &mut links)
                    .and_then(|()| multi(entry, AttachType::UprobeMulti, &path, sites, pid, false, &mut links))
            }
            (LinkKind::Perf, [entry, at_return]) => perf(entry, at_return, &path, sites, pid, &mut links),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        if let Err(error) = attached {
            self.close(links);
            return Err(error);
        }
        self.next += 1;
        let id = LinkId(self.next);
        self.attached.insert(id, links);
        Ok(id)
    }

    /// Detaches, soon.
    pub(super) fn detach(&mut self, id: LinkId) {
        let links = self.attached.remove(&id).unwrap_or_default();
        self.close(links);
    }

    /// Waits until all is detached that was to be.
    pub(super) fn settle(&mut self) {
        for closer in self.closing.drain(..) {
            // A thread that only closes descriptors does not panic.
            let _ = closer.join();
        }
    }

    /// Detaches everything, and waits until that is done.
    pub(super) fn detach_all(&mut self) {
        let all = std::mem::take(&mut self.attached);
        self.close(all.into_values().flatten().collect());
        self.settle();
    }

    /// Closes descriptors, each on a thread of its own: the kernel lets each wait until no program can be in its handler any more,
    /// up to 100 ms, and side by side they wait together.
    fn close(&mut self, links: Vec<OwnedFd>) {
        self.closing.retain(|closer| !closer.is_finished());
        for link in links {
            let closer = thread::Builder::new().stack_size(CLOSER_STACK_BYTES);
            // Where there can be no further thread, the link is closed here.
            self.closing.extend(closer.spawn(move || drop(link)));
        }
    }
}

/// A path that leads the kernel to an open file. Not the file's own path: that may lie in another mount namespace, or
/// name another file by now.
fn path_of(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// One link for all sites. Needs Linux 6.6, for sessions 6.13.
fn multi(
    program: &OwnedFd,
    attach_type: AttachType,
    path: &Path,
    sites: &[Site],
    pid: Option<Pid>,
    at_return: bool,
    links: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    if sites.is_empty() {
        return Ok(());
    }
    let offsets: Vec<u64> = sites.iter().map(|site| site.offset).collect();
    let cookies: Vec<u64> = sites.iter().map(|site| site.cookie).collect();
    let link = MultiLink { path, offsets: &offsets, cookies: &cookies, pid, at_return };
    links.push(link_multi(program, attach_type, link)?);
    Ok(())
}

/// A perf event for each entry and for each return. Needs Linux 5.15, which brought cookies (`BPF_LINK_CREATE` for perf events with
/// `bpf_cookie`); works without tracefs.
///
/// Return probes of this kind also fire in other processes that have a probe of their own on the same function
/// (`uretprobe_perf_func` has no filter, up to 7.2 at least), so the programs go by thread: a return whose entry was not
/// seen is ignored.
fn perf(
    entry: &OwnedFd,
    at_return: &OwnedFd,
    path: &Path,
    sites: &[Site],
    pid: Option<Pid>,
    links: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    // An event of all processes would be needed on each CPU.
    let pid = pid.ok_or(io::ErrorKind::Unsupported)?;
    for site in sites {
        // The return first, as above.
        let returning = site.returns.then_some((at_return, true));
        for (program, is_return) in returning.into_iter().chain([(entry, false)]) {
            let event = open_uprobe(path, site.offset, pid, is_return)?;
            links.push(link_perf(program, event, site.cookie)?);
        }
    }
    Ok(())
}
