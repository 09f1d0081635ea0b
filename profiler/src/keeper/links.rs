//! Links of probes, which the keeper owns.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use heapbpf_base::ids::Pid;
use heapbpf_linux::bpf::{AttachType, MultiLink, link_multi};
use heapbpf_linux::bpf_feature::run_at;
use heapbpf_linux::uprobe::open_uprobe;

use super::protocol::{LinkId, Site};
use crate::bpf::load::LinkKind;

const CLOSER_STACK_BYTES: usize = 64 << 10;

/// All links, by the request that created them.
#[derive(Debug, Default)]
pub(super) struct Links {
    attached: BTreeMap<LinkId, Vec<OwnedFd>>,
    next: u64,
    closing: Vec<JoinHandle<()>>,
}

impl Links {
    /// Attaches probes to all sites or none. `descriptors` are those of the file and of the programs.
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
            // Frees first, so that the free of every recorded block is recorded.
            (LinkKind::Session, [session, free]) => {
                let (returning, freeing): (Vec<Site>, Vec<Site>) = sites.iter().partition(|site| site.returns);
                multi(free, AttachType::UprobeMulti, &path, &freeing, pid, false, &mut links)
                    .and_then(|()| multi(session, AttachType::UprobeSession, &path, &returning, pid, false, &mut links))
            }
            // Return probes first: the return of every recorded entry is then recorded as well.
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

    pub(super) fn detach(&mut self, id: LinkId) {
        let links = self.attached.remove(&id).unwrap_or_default();
        self.close(links);
    }

    pub(super) fn finish_closing(&mut self) {
        for closer in self.closing.drain(..) {
            // A thread that only closes descriptors does not panic.
            let _ = closer.join();
        }
    }

    pub(super) fn detach_all(&mut self) {
        let all = std::mem::take(&mut self.attached);
        self.close(all.into_values().flatten().collect());
        self.finish_closing();
    }

    /// Closes each link on its own thread: a close waits up to 100 ms until no CPU runs the probe handler, and the waits overlap.
    fn close(&mut self, links: Vec<OwnedFd>) {
        self.closing.retain(|closer| !closer.is_finished());
        for link in links {
            let closer = thread::Builder::new().stack_size(CLOSER_STACK_BYTES);
            // If no thread can be started, the link is closed here.
            self.closing.extend(closer.spawn(move || drop(link)));
        }
    }
}

/// Path to an open file. The file's own path may be in another mount namespace, or name another file by now.
fn path_of(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Attaches all sites with one link. Requires Linux 6.6, for sessions 6.13.
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
    let cookies: Vec<u64> = sites.iter().map(|site| site.cookie.unwrap_or(0)).collect();
    let link = MultiLink { path, offsets: &offsets, cookies: &cookies, pid, at_return };
    links.push(link_multi(program, attach_type, link)?);
    Ok(())
}

/// Attaches probes by perf events. Links with cookies require Linux 5.15 (`bpf_cookie` in `BPF_LINK_CREATE`); works without
/// tracefs. Return probes also fire in other processes that have a probe on the function (`uretprobe_perf_func` has no filter, up
/// to 7.2 at least), so the programs match by thread and ignore a return without a recorded entry. An event for all processes is
/// one of a single CPU, but its program runs on all (`__uprobe_perf_func` in kernel/trace/trace_uprobe.c, up to 7.3).
fn perf(
    entry: &OwnedFd,
    at_return: &OwnedFd,
    path: &Path,
    sites: &[Site],
    pid: Option<Pid>,
    links: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    for site in sites {
        // The return probe is attached first, so that the return of every recorded entry is recorded.
        let returning = site.returns.then_some((at_return, true));
        for (program, is_return) in returning.into_iter().chain([(entry, false)]) {
            let event = open_uprobe(path, site.offset, pid, is_return)?;
            links.push(run_at(event, program, site.cookie)?);
        }
    }
    Ok(())
}
