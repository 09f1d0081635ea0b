//! Offsets of the members of kernel structures that the kernel side reads, from the kernel's BTF
//! (<https://github.com/torvalds/linux/blob/v6.13/Documentation/bpf/btf.rst>). Parses only what that needs: aya-obj 0.3 parses
//! all of BTF, but keeps members private.

use std::fs;

use aya_obj::generated::{
    BTF_KIND_ARRAY, BTF_KIND_DATASEC, BTF_KIND_DECL_TAG, BTF_KIND_ENUM, BTF_KIND_ENUM64, BTF_KIND_FUNC_PROTO,
    BTF_KIND_INT, BTF_KIND_STRUCT, BTF_KIND_UNION, BTF_KIND_VAR, NR_BTF_KINDS,
};
use heapbpf_linux::attempt::Attempt;
use heapbpf_linux::exec_stop::ExecStopLayout;
use heapbpf_linux::feature::KERNEL_BTF;
use profiler_common::arch::THREAD_POINTER;
use thiserror::Error;

use super::features::Optional;

/// Offsets in `struct task_struct` and `struct signal_struct`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskLayout {
    pub tgid: u32,
    pub mm: u32,
    pub signal: u32,
    /// Offset in `struct signal_struct` of the number of threads that have not exited.
    pub live: u32,
    /// Offset of the thread pointer; 0 if the kernel keeps it elsewhere.
    pub thread_pointer: u32,
    /// Offset of the number of reasons why page faults of the kernel fail at once; 0 if the kernel lacks it.
    pub faults_disabled: u32,
    /// Members for stopping a process at its exec; `None` if the kernel lacks one.
    pub exec_stop: Option<ExecStopLayout>,
    /// Members about the memory of a process; `None` if the kernel lacks one.
    pub memory: Option<MemoryLayout>,
    /// Members that lead to original return addresses; `None` if the kernel lacks one.
    pub returns: Option<ReturnLayout>,
    /// What the programs that watch mappings need; `None` if the kernel lacks some of it.
    pub mappings: Option<MappingLayout>,
}

/// Offsets of the members that lead from a task to the file that it maps, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MappingLayout {
    /// In `struct vm_unmapped_area_info`.
    pub length: u32,
    /// In `struct task_struct`.
    pub files: u32,
    /// In `struct files_struct`.
    pub table: u32,
    /// In `struct fdtable`.
    pub descriptors: u32,
    /// In `struct file`.
    pub inode: u32,
    /// In `struct inode`, as the next one.
    pub number: u32,
    pub file_system: u32,
    /// In `struct super_block`.
    pub device: u32,
}

/// Offsets of the members that lead from a task to the return addresses that probes have replaced, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReturnLayout {
    /// In `struct task_struct`.
    pub probes: u32,
    /// In `struct uprobe_task`.
    pub list: u32,
    /// In `struct return_instance`, as the next ones.
    pub stack: u32,
    pub address: u32,
    pub next: u32,
}

/// Offsets of the amounts that a process has mapped and may map, in bytes: in `struct mm_struct`, and of `rlim` in
/// `struct signal_struct`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryLayout {
    pub map_count: u32,
    pub total_vm: u32,
    pub data_vm: u32,
    pub def_flags: u32,
    pub task_size: u32,
    pub limits: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    #[error("the kernel's type information `{KERNEL_BTF}` cannot be read: {0} (needs CONFIG_DEBUG_INFO_BTF)")]
    Unreadable(String),
    #[error("the kernel is locked down for confidentiality, so BPF programs may not read its memory")]
    Locked,
    #[error("the kernel's type information `{KERNEL_BTF}` is cut short or of another format")]
    Malformed,
    /// The member is missing or a bit field.
    #[error("the kernel's type information has no `{member}` in `{structure}`")]
    NoMember { structure: &'static str, member: &'static str },
}

impl TaskLayout {
    pub(crate) fn of_kernel() -> Result<Self, LayoutError> {
        if Optional::Btf.is_suppressed() {
            return Err(LayoutError::Unreadable("its use is suppressed".to_owned()));
        }
        if Optional::Reads.is_suppressed() || Attempt::ReadKernelMemory.make().is_err() {
            return Err(LayoutError::Locked);
        }
        let bytes = fs::read(KERNEL_BTF).map_err(|error| LayoutError::Unreadable(error.to_string()))?;
        Self::find(&bytes)
    }

    fn find(bytes: &[u8]) -> Result<Self, LayoutError> {
        let types = Types::parse(bytes).ok_or(LayoutError::Malformed)?;
        let offset = |structure: &'static str, member: &'static str| {
            let found = types.structure(structure.as_bytes());
            found
                .and_then(|found| types.member_offset(found, member.as_bytes(), DEPTH_MAX))
                .ok_or(LayoutError::NoMember { structure, member })
        };
        Ok(Self {
            tgid: offset("task_struct", "tgid")?,
            mm: offset("task_struct", "mm")?,
            signal: offset("task_struct", "signal")?,
            live: offset("signal_struct", "live")?,
            thread_pointer: thread_pointer(&offset).unwrap_or(0),
            faults_disabled: offset("task_struct", "pagefault_disabled").unwrap_or(0),
            exec_stop: exec_stop(&offset).ok(),
            memory: memory(&offset).ok(),
            returns: returns(&offset).ok(),
            mappings: mappings(&offset).ok(),
        })
    }
}

fn exec_stop(
    offset: &impl Fn(&'static str, &'static str) -> Result<u32, LayoutError>,
) -> Result<ExecStopLayout, LayoutError> {
    let signals = offset("sigpending", "signal")?;
    Ok(ExecStopLayout {
        tgid: offset("task_struct", "tgid")?,
        signal: offset("task_struct", "signal")?,
        ptrace: offset("task_struct", "ptrace")?,
        real_parent: offset("task_struct", "real_parent")?,
        pdeath_signal: offset("task_struct", "pdeath_signal")?,
        pending: offset("task_struct", "pending")? + signals,
        shared_pending: offset("signal_struct", "shared_pending")? + signals,
    })
}

fn memory(
    offset: &impl Fn(&'static str, &'static str) -> Result<u32, LayoutError>,
) -> Result<MemoryLayout, LayoutError> {
    Ok(MemoryLayout {
        map_count: offset("mm_struct", "map_count")?,
        total_vm: offset("mm_struct", "total_vm")?,
        data_vm: offset("mm_struct", "data_vm")?,
        def_flags: offset("mm_struct", "def_flags")?,
        task_size: offset("mm_struct", "task_size")?,
        limits: offset("signal_struct", "rlim")?,
    })
}

fn returns(
    offset: &impl Fn(&'static str, &'static str) -> Result<u32, LayoutError>,
) -> Result<ReturnLayout, LayoutError> {
    Ok(ReturnLayout {
        probes: offset("task_struct", "utask")?,
        list: offset("uprobe_task", "return_instances")?,
        stack: offset("return_instance", "stack")?,
        address: offset("return_instance", "orig_ret_vaddr")?,
        next: offset("return_instance", "next")?,
    })
}

fn mappings(
    offset: &impl Fn(&'static str, &'static str) -> Result<u32, LayoutError>,
) -> Result<MappingLayout, LayoutError> {
    Ok(MappingLayout {
        length: offset("vm_unmapped_area_info", "length")?,
        files: offset("task_struct", "files")?,
        table: offset("files_struct", "fdt")?,
        descriptors: offset("fdtable", "fd")?,
        inode: offset("file", "f_inode")?,
        number: offset("inode", "i_ino")?,
        file_system: offset("inode", "i_sb")?,
        device: offset("super_block", "s_dev")?,
    })
}

/// Offset of the thread pointer in `struct task_struct`, whose member `thread` contains it.
fn thread_pointer(
    offset: &impl Fn(&'static str, &'static str) -> Result<u32, LayoutError>,
) -> Result<u32, LayoutError> {
    Ok(offset("task_struct", "thread")? + offset("thread_struct", THREAD_POINTER)?)
}

const MAGIC: u16 = 0xeb9f;
/// Maximum nesting of anonymous structures: malformed BTF may contain cycles.
const DEPTH_MAX: u32 = 8;

#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    kind: u32,
    /// For structures: whether offsets of members include the width of a bit field.
    has_widths: bool,
    rest: &'a [u8],
}

/// All types of the kernel. The first one has number 1.
struct Types<'a> {
    types: Vec<Type<'a>>,
    strings: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn slice(bytes: &[u8], start: u32, length: u32) -> Option<&[u8]> {
    bytes.get(usize::try_from(start).ok()?..)?.get(..usize::try_from(length).ok()?)
}

impl<'a> Types<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.first_chunk().copied().map(u16::from_ne_bytes)? != MAGIC {
            return None;
        }
        let body = bytes.get(usize::try_from(word(bytes, 4)?).ok()?..)?;
        let mut section = slice(body, word(bytes, 8)?, word(bytes, 12)?)?;
        let strings = slice(body, word(bytes, 16)?, word(bytes, 20)?)?;
        let mut types = Vec::new();
        while !section.is_empty() {
            let (parsed, after) = Type::parse(section)?;
            types.push(parsed);
            section = after;
        }
        Some(Self { types, strings })
    }

    fn is_named(&self, offset: u32, name: &[u8]) -> bool {
        let text = usize::try_from(offset).ok().and_then(|offset| self.strings.get(offset..));
        text.and_then(|text| text.strip_prefix(name)).is_some_and(|rest| rest.first() == Some(&0))
    }

    fn structure(&self, name: &[u8]) -> Option<Type<'a>> {
        self.types.iter().find(|it| it.kind == BTF_KIND_STRUCT && self.is_named(it.name, name)).copied()
    }

    /// Offset of a member in bytes. Includes members of anonymous structures: kernels that randomise structure layout wrap
    /// members in these.
    fn member_offset(&self, structure: Type<'a>, name: &[u8], depth: u32) -> Option<u32> {
        const MEMBER_BYTES: usize = 12;
        structure.rest.chunks_exact(MEMBER_BYTES).find_map(|member| {
            let (its_name, its_type, location) = (word(member, 0)?, word(member, 4)?, word(member, 8)?);
            let (bits, width) =
                if structure.has_widths { (location & 0xff_ffff, location >> 24) } else { (location, 0) };
            let whole = width == 0 && bits % 8 == 0;
            if self.is_named(its_name, name) {
                return whole.then_some(bits / 8);
            }
            let inner = usize::try_from(its_type).ok()?.checked_sub(1).and_then(|index| self.types.get(index))?;
            let nested = matches!(inner.kind, BTF_KIND_STRUCT | BTF_KIND_UNION) && its_name == 0 && whole && depth > 0;
            if nested { self.member_offset(*inner, name, depth - 1)?.checked_add(bits / 8) } else { None }
        })
    }
}

impl<'a> Type<'a> {
    fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        const FIXED_BYTES: usize = 12;
        let (name, info) = (word(bytes, 0)?, word(bytes, 4)?);
        let (kind, count) = (info >> 24 & 31, usize::try_from(info & 0xffff).ok()?);
        let length = match kind {
            0 | NR_BTF_KINDS.. => return None,
            BTF_KIND_INT | BTF_KIND_VAR | BTF_KIND_DECL_TAG => 4,
            BTF_KIND_ARRAY => 12,
            BTF_KIND_STRUCT | BTF_KIND_UNION | BTF_KIND_DATASEC | BTF_KIND_ENUM64 => count * 12,
            BTF_KIND_ENUM | BTF_KIND_FUNC_PROTO => count * 8,
            _ => 0,
        };
        let (rest, after) = bytes.get(FIXED_BYTES..)?.split_at_checked(length)?;
        Some((Self { name, kind, has_widths: info >> 31 == 1, rest }, after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STRINGS: &[u8] = b"\0task_struct\0pid\0tgid\0mm\0int\0signal\0signal_struct\0live\0";
    const TASK: u32 = 1;
    const PID: u32 = 13;
    const TGID: u32 = 17;
    const MM: u32 = 22;
    const INT: u32 = 25;
    const SIGNAL: u32 = 29;
    const SIGNAL_STRUCT: u32 = 36;
    const LIVE: u32 = 50;

    fn type_words(name: u32, kind: u32, flag: u32, rest: &[u32]) -> Vec<u32> {
        let count = if kind == BTF_KIND_INT { 0 } else { u32::try_from(rest.len() / 3).expect("few") };
        [&[name, flag << 31 | kind << 24 | count, 4], rest].concat()
    }

    fn information(types: &[Vec<u32>]) -> Vec<u8> {
        let types: Vec<u8> = types.concat().iter().flat_map(|word| word.to_ne_bytes()).collect();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_ne_bytes();
        let mut bytes = vec![];
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        bytes.extend(24u32.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(length(&types));
        bytes.extend(length(&types));
        bytes.extend(length(STRINGS));
        bytes.extend(types);
        bytes.extend(STRINGS);
        bytes
    }

    /// The integer is type 1, the task type 2, an anonymous structure type 3. The task has `signal` at offset 256, which has
    /// `live` at offset 4.
    fn check(flag: u32, task: &[u32], inner: &[u32], expected: Result<(u32, u32), &'static str>) {
        let bytes = information(&[
            type_words(INT, BTF_KIND_INT, 0, &[32]),
            type_words(TASK, BTF_KIND_STRUCT, flag, &[task, &[SIGNAL, 1, 2048]].concat()),
            type_words(0, BTF_KIND_STRUCT, 0, inner),
            type_words(SIGNAL_STRUCT, BTF_KIND_STRUCT, 0, &[INT, 1, 0, LIVE, 1, 32]),
        ]);
        let expected = expected
            .map(|(tgid, mm)| TaskLayout {
                tgid,
                mm,
                signal: 256,
                live: 4,
                thread_pointer: 0,
                faults_disabled: 0,
                exec_stop: None,
                memory: None,
                returns: None,
                mappings: None,
            })
            .map_err(|member| LayoutError::NoMember { structure: "task_struct", member });
        assert_eq!(TaskLayout::find(&bytes), expected);
    }

    #[test]
    fn members_are_found_by_name() {
        check(0, &[PID, 1, 32, TGID, 1, 64, MM, 1, 128], &[], Ok((8, 16)));
        check(1, &[PID, 1, 32 | 3 << 24, TGID, 1, 64, MM, 1, 128], &[], Ok((8, 16)));
    }

    #[test]
    fn members_are_found_in_anonymous_structures() {
        check(0, &[PID, 1, 0, 0, 3, 64, MM, 1, 512], &[INT, 1, 0, TGID, 1, 32], Ok((12, 64)));
    }

    #[test]
    fn missing_members_are_reported() {
        check(0, &[TGID, 1, 64], &[], Err("mm"));
        check(0, &[MM, 1, 64], &[], Err("tgid"));
        check(1, &[TGID, 1, 64 | 3 << 24, MM, 1, 128], &[], Err("tgid"));
        // A structure that contains itself.
        check(0, &[0, 2, 0], &[], Err("tgid"));
    }

    #[test]
    fn malformed_btf_is_rejected() {
        assert_eq!(TaskLayout::find(b""), Err(LayoutError::Malformed));
        assert_eq!(TaskLayout::find(&[0x7f; 100]), Err(LayoutError::Malformed));
        let whole = information(&[type_words(TASK, BTF_KIND_STRUCT, 0, &[TGID, 1, 64, MM, 1, 128])]);
        for length in 0..whole.len() {
            assert_eq!(TaskLayout::find(&whole[..length]), Err(LayoutError::Malformed), "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_types_do_not_panic(types in proptest::collection::vec(any::<u32>(), 0..60)) {
            let _ = TaskLayout::find(&information(&[types]));
        }
    }

    #[test]
    fn the_running_kernels_layout_is_consistent() {
        let bytes = fs::read(KERNEL_BTF).expect("tests run on a kernel with type information");
        let types = Types::parse(&bytes).expect("the kernel's own");
        let task = types.structure(b"task_struct").expect("kernels have tasks");
        let offset = |name: &[u8]| types.member_offset(task, name, DEPTH_MAX).expect("tasks have it");
        let layout = TaskLayout::of_kernel().expect("the same");
        assert_eq!((layout.tgid, layout.mm), (offset(b"tgid"), offset(b"mm")));
        assert_eq!(layout.tgid, offset(b"pid") + 4, "adjacent");
        assert_eq!(offset(b"active_mm"), layout.mm + 8, "adjacent");
        assert_eq!((layout.mm % 8, layout.signal % 8), (0, 0), "pointers");
        assert_eq!(offset(b"sighand"), layout.signal + 8, "adjacent");
        let signal = types.structure(b"signal_struct").expect("processes have one");
        let threads = types.member_offset(signal, b"nr_threads", DEPTH_MAX).expect("it counts them");
        assert_eq!(threads, layout.live + 4, "adjacent");
        let thread = types.structure(b"thread_struct").expect("tasks have one");
        let pointer = types.member_offset(thread, THREAD_POINTER.as_bytes(), DEPTH_MAX).expect("threads have one");
        assert_eq!(layout.thread_pointer, offset(b"thread") + pointer);
        let memory = layout.memory.expect("Linux has all of them");
        let mm = types.structure(b"mm_struct").expect("processes have memory");
        let hiwater = types.member_offset(mm, b"hiwater_vm", DEPTH_MAX).expect("it is measured");
        assert_eq!(memory.total_vm, hiwater + 8, "adjacent");
        assert!(memory.data_vm > memory.total_vm && memory.limits > layout.live, "{memory:?}");
        if cfg!(target_arch = "x86_64") {
            assert_eq!(types.member_offset(thread, b"gsbase", DEPTH_MAX), Some(pointer + 8), "adjacent");
        }
    }
}
