//! Checks whether the kernel has the page of a probe in memory. If not, placing the probe reads the file, with locks that forks
//! of all processes wait for (`register_for_each_vma` in kernel/events/uprobes.c): a file system that does not answer would stop
//! the machine.

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;
use heapbpf_linux::proc::mounts;
use heapbpf_linux::process_memory::has_file_page;

use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// The process has not mapped the file.
    Unmapped,
    Refused(&'static str),
}

const FOREIGN: &str =
    "another user serves the file system of its file, and could stop forks of all processes by not answering";
const UNREAD: &str = "its page is not in memory, and its file system does not answer";

/// Makes sure that the page of a probe is in memory, where that matters: in files of file systems that may not answer.
pub(crate) fn ensure(
    space: &AddressSpace,
    modules: &ModuleStore,
    module: ModuleId,
    offset: FileOffset,
) -> Result<(), Absence> {
    let Some(image) = modules.get(module).image().ok().filter(|image| image.is_distant()) else { return Ok(()) };
    let mut mapped = space.mappings().iter().filter(|mapped| mapped.module == Some(module));
    let found = mapped.find_map(|mapped| {
        let address = mapped.mapping.start.0.checked_add(offset.0.checked_sub(mapped.mapping.offset.0)?)?;
        (address < mapped.mapping.end.0).then_some((address, mapped.mapping.device))
    });
    let (address, device) = found.ok_or(Absence::Unmapped)?;
    let pid = space.pid();
    if !mounts::is_trusted(pid, device) {
        return Err(Absence::Refused(FOREIGN));
    }
    let has_page = || has_file_page(pid, address).unwrap_or(false);
    let is_present = has_page() || (image.touch(pid, address).is_ok() && has_page());
    if is_present { Ok(()) } else { Err(Absence::Refused(UNREAD)) }
}
