//! The generated code of a target: finds the files that name it while the process lives, and notes when its code was first seen.

use std::fs::File;
use std::sync::Arc;

use heapbpf_base::ids::Pid;
use heapbpf_ledger::ingest::event::Stack;
use heapbpf_linux::clock;
use heapbpf_linux::proc::process::{self, Owner};
use heapbpf_linux::rights::Rights;
use tracing::debug;

use crate::object::ObjectError;
use crate::object::generated::{Generated, is_dump, open_perf_map};
use crate::object::image::Image;
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;

#[derive(Default)]
pub(super) struct GeneratedCode {
    facts: Generated,
    /// Where the process's perf map is; `None` until the process generates code.
    place: Option<Place>,
    /// Version of the mappings that were searched for dumps.
    searched: u64,
    /// Whether something was found since the module was updated.
    has_news: bool,
    /// Whether the module is that of the process from which this one was forked.
    is_inherited: bool,
}

/// Location of a process's perf map, which stays valid when the process exits.
struct Place {
    root: File,
    own_pid: u32,
    rights: Rights,
}

impl GeneratedCode {
    /// Returns the generated code of a forked child: its parent's, until the child writes files of its own.
    pub(super) fn for_child(&self) -> Self {
        Self { facts: self.facts.clone(), is_inherited: true, ..Self::default() }
    }

    pub(super) fn observe(&mut self, stack: &Stack, space: &AddressSpace) {
        if space.generated().is_none() {
            return;
        }
        let mut generated = stack.frames.iter().filter_map(|frame| space.generated_at(frame.inside_call()));
        if let Some(first) = generated.next() {
            let now = clock::now().monotonic;
            std::iter::once(first).chain(generated).for_each(|address| self.facts.see(address.0, now));
            self.has_news = true;
        }
    }

    /// Finds new files that name generated code, and notes the sizes of known ones.
    pub(super) fn poll(&mut self, space: &mut Arc<AddressSpace>, modules: &mut ModuleStore) {
        let Some(module) = space.generated() else { return };
        let now = clock::now().monotonic;
        if self.place.is_none() {
            self.place = Place::of(space.pid());
        }
        let found = self.place.as_ref().map(|place| open_perf_map(&place.root, place.own_pid, &place.rights));
        let mut has_own = false;
        match found {
            Some(Ok(image)) => {
                self.facts.note_map(image, now);
                has_own = true;
            }
            None | Some(Err(ObjectError::Gone)) => {
                self.has_news |= self.facts.note_size(now);
            }
            Some(Err(error)) => debug!("perf map of process {}: {error}", space.pid()),
        }
        has_own |= self.search_dumps(space, modules);
        if !(self.has_news || has_own) {
            return;
        }
        let module = if self.is_inherited && has_own { modules.add_generated() } else { module };
        if !self.is_inherited || has_own {
            modules.set_generated(module, self.facts.clone());
            self.is_inherited = false;
        }
        if space.generated() != Some(module) {
            Arc::make_mut(space).set_generated(module);
        }
        self.has_news = false;
    }

    fn search_dumps(&mut self, space: &AddressSpace, modules: &ModuleStore) -> bool {
        if self.searched == space.version() {
            return false;
        }
        self.searched = space.version();
        let mapped = space.modules().into_iter().map(|id| modules.get(id)).filter(|module| is_dump(module.path()));
        let dumps: Vec<&Image> = mapped.filter_map(|module| module.image().ok()).collect();
        dumps.into_iter().filter(|dump| self.facts.add_dump(dump)).count() > 0
    }
}

impl Place {
    fn of(pid: Pid) -> Option<Self> {
        let own_pid = Owner::read(pid)?.own_pid;
        Some(Self { root: process::root(pid).ok()?, own_pid, rights: Rights::of(pid)? })
    }
}
