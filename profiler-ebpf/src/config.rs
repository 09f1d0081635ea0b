//! Globals that the agent sets before it loads the programs. They are read-only from then on, so the verifier sees constants.

use core::ptr;

macro_rules! globals {
    ($($(#[$doc:meta])* $global:ident: $type:ty, $name:ident -> $result:ty = $convert:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            static $global: $type = 0;

            #[inline(always)]
            pub(crate) fn $name() -> $result {
                // The compiler cannot know that the loader overwrites the global.
                // SAFETY: a shared reference is valid for reads.
                let value = unsafe { ptr::read_volatile(&raw const $global) };
                let convert: fn($type) -> $result = $convert;
                convert(value)
            }
        )*
    };
}

globals! {
    /// Random per session, so that a target cannot provoke collisions of stack ids.
    STACK_SEED: u64, stack_seed -> u64 = |value| value;
    /// Unread bytes in the ring buffer at which the agent is woken; below, it reads on a timer.
    WAKEUP_BYTES: u64, wakeup_bytes -> u64 = |value| value;
    /// Binary logarithm of the size of the ring buffer in bytes.
    RING_SHIFT: u32, ring_shift -> u32 = |value| value;
    /// Binary logarithm of the largest interval in bytes that a filling ring buffer may raise others to; 0 if it raises none.
    BACK_PRESSURE_MAX: u32, back_pressure_max -> u32 = |value| value;
    /// Possible CPUs of the machine; each has one scratch area.
    CPUS: u32, cpus -> u32 = |value| value;
    /// Binary logarithm of the size of a page, which on some processors the kernel's configuration determines.
    PAGE_SHIFT: u32, page_shift -> u64 = |value| value as u64;
    /// 1 to unwind by tables, 0 by frame pointers.
    UNWIND_BY_TABLES: u32, unwind_by_tables -> bool = |value| value != 0;
    /// 1 to send a copy of each sampled call's stack, for checking the unwinder. If 0, the verifier removes that code.
    RAW_STACKS: u32, raw_stacks -> bool = |value| value != 0;
    /// Byte offset of `tgid` in `struct task_struct`. This and the next are meaningless unless processes are monitored.
    TASK_TGID_OFFSET: u32, task_tgid_offset -> u64 = |value| value as u64;
    /// Byte offset of `mm` in `struct task_struct`.
    TASK_MM_OFFSET: u32, task_mm_offset -> u64 = |value| value as u64;
    /// Byte offset of `signal` in `struct task_struct`; 0 if unknown.
    TASK_SIGNAL_OFFSET: u32, task_signal_offset -> u64 = |value| value as u64;
    /// Byte offset of `live`, the number of threads that have not exited, in `struct signal_struct`.
    SIGNAL_LIVE_OFFSET: u32, signal_live_offset -> u64 = |value| value as u64;
    /// Byte offset of the thread pointer in `struct task_struct`; 0 if unknown: then frames of interpreters are not unwound.
    TASK_THREAD_POINTER_OFFSET: u32, task_thread_pointer_offset -> u64 = |value| value as u64;
    /// 1 to report the execs of all processes, 0 of targets only.
    ALL_EXECS: u32, all_execs -> bool = |value| value != 0;
    /// Requested bytes from which on a function that may throw is assumed to throw.
    THROW_SAFE_BYTES: u64, throw_safe_bytes -> u64 = |value| value;
    /// Number of mappings that a process may have (`vm.max_map_count`).
    MAP_COUNT_MAX: u32, map_count_max -> u64 = |value| value as u64;
    /// Byte offset of `map_count` in `struct mm_struct`; 0 if unknown: then a function that may throw is assumed to throw. The next
    /// four are offsets there, too.
    MM_MAP_COUNT_OFFSET: u32, mm_map_count_offset -> u64 = |value| value as u64;
    MM_TOTAL_VM_OFFSET: u32, mm_total_vm_offset -> u64 = |value| value as u64;
    MM_DATA_VM_OFFSET: u32, mm_data_vm_offset -> u64 = |value| value as u64;
    MM_DEF_FLAGS_OFFSET: u32, mm_def_flags_offset -> u64 = |value| value as u64;
    MM_TASK_SIZE_OFFSET: u32, mm_task_size_offset -> u64 = |value| value as u64;
    /// Byte offset of `rlim` in `struct signal_struct`.
    SIGNAL_LIMITS_OFFSET: u32, signal_limits_offset -> u64 = |value| value as u64;
    /// Byte offsets of what leads from a task to the file that it maps: in `struct vm_unmapped_area_info`, `struct task_struct`,
    /// `struct files_struct`, `struct fdtable`, `struct file`, `struct inode` and `struct super_block`. Meaningless unless mappings are
    /// watched.
    AREA_LENGTH_OFFSET: u32, area_length_offset -> u64 = |value| value as u64;
    TASK_FILES_OFFSET: u32, task_files_offset -> u64 = |value| value as u64;
    FILES_TABLE_OFFSET: u32, files_table_offset -> u64 = |value| value as u64;
    TABLE_DESCRIPTORS_OFFSET: u32, table_descriptors_offset -> u64 = |value| value as u64;
    FILE_INODE_OFFSET: u32, file_inode_offset -> u64 = |value| value as u64;
    INODE_NUMBER_OFFSET: u32, inode_number_offset -> u64 = |value| value as u64;
    INODE_SUPER_OFFSET: u32, inode_super_offset -> u64 = |value| value as u64;
    SUPER_DEVICE_OFFSET: u32, super_device_offset -> u64 = |value| value as u64;
    /// 1 to record resident pages. If 0, the verifier removes that code.
    FAULTS: u32, faults -> bool = |value| value != 0;
    /// Byte offset of `pagefault_disabled` in `struct task_struct`; 0 if unknown: then faults in the kernel are not recorded.
    TASK_FAULTS_DISABLED_OFFSET: u32, task_faults_disabled_offset -> u64 = |value| value as u64;
    /// Byte offset of `utask` in `struct task_struct`; 0 if this or one of the next ones is unknown: then stacks in calls that are followed to
    /// their return end there.
    TASK_RETURNS_OFFSET: u32, task_returns_offset -> u64 = |value| value as u64;
    /// Byte offset of `return_instances` in `struct uprobe_task`, and of three members of `struct return_instance`.
    RETURNS_LIST_OFFSET: u32, returns_list_offset -> u64 = |value| value as u64;
    RETURN_STACK_OFFSET: u32, return_stack_offset -> u64 = |value| value as u64;
    RETURN_ADDRESS_OFFSET: u32, return_address_offset -> u64 = |value| value as u64;
    RETURN_NEXT_OFFSET: u32, return_next_offset -> u64 = |value| value as u64;
    /// 1 if a page that is absent has been given back for certain.
    REPLACES_PAGES: u32, replaces_pages -> bool = |value| value != 0;
    /// 1 if the kernel may make a whole range of memory resident at its first touch.
    HUGE_PAGES: u32, huge_pages -> bool = |value| value != 0;
    /// 1 if links carry cookies (Linux 5.15).
    COOKIES: u32, cookies -> bool = |value| value != 0;
    /// 1 if atomic instructions may return the previous value (Linux 5.12). If 0, the agent has replaced those instructions.
    ATOMICS: u32, atomics -> bool = |value| value != 0;
    /// 1 if targets may have stubs of the inline engine.
    STUBS: u32, stubs -> bool = |value| value != 0;
    /// Always 0. The compiler does not know this and keeps the guarded code; the verifier does, and removes it.
    TAIL_CALL: u32, tail_call -> bool = |value| value != 0;
}
