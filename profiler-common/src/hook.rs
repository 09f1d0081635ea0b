//! Hooks as data: the attach cookie describes each probe to the kernel side.
//!
//! What differs between hooked functions is packed into the 64-bit attach cookie (`bpf_get_attach_cookie`, Linux 5.15), so a
//! new allocator is a table entry of the agent.

/// What a function does with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CallShape {
    /// Returns a block.
    Alloc = 0,
    /// Stores a block through a pointer and returns an error number.
    AllocOut = 1,
    /// Takes a block and returns another.
    Realloc = 2,
    /// Takes a block.
    Free = 3,
    /// Resizes a block in place and returns its new size (`xallocx`).
    Resize = 4,
    /// Maps memory and returns its start, or −1 (`mmap`). The count register holds the flags.
    Map = 5,
    /// Unmaps a range (`munmap`): pointer and size.
    Unmap = 6,
    /// Moves or resizes a mapping and returns its start, or −1 (`mremap`): pointer, new size, and as count the old size.
    Remap = 7,
    /// Moves the program break by a signed size and returns the previous one, or −1 (`sbrk`).
    Break = 8,
    /// Is recorded at its entry, and its return is not probed. Takes the block as its pointer; without one, the call counts as an
    /// allocation that is never live.
    Entry = 9,
}

impl CallShape {
    /// Whether the call's return must be handled.
    pub const fn allocates(self) -> bool {
        !matches!(self, Self::Free | Self::Entry)
    }

    /// The shape with this number; invalid numbers give [`Break`](Self::Break).
    pub const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Alloc,
            1 => Self::AllocOut,
            2 => Self::Realloc,
            3 => Self::Free,
            4 => Self::Resize,
            5 => Self::Map,
            6 => Self::Unmap,
            7 => Self::Remap,
            9 => Self::Entry,
            _ => Self::Break,
        }
    }
}

/// A register at the probed instruction: its number in the processor's instructions (31 is aarch64's stack pointer). Names are in
/// [`arch`](crate::arch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Register(u8);

impl Register {
    /// The register with this number; only the low five bits are used.
    pub const fn from_number(number: u8) -> Self {
        Self(number & REGISTER_MASK)
    }

    pub const fn number(self) -> u8 {
        self.0
    }
}

const REGISTER_MASK: u8 = 31;

/// Which calls a probe records. A target may have both its own probe and the shared one at the same instruction while it is moved
/// from one to the other; [`SHARES_PROBES`](crate::target::SHARES_PROBES) selects one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ProbeScope {
    /// Those of any target: the probe has no counterpart of the other scope.
    Any = 0,
    /// Those of the one process that it is attached to, unless that shares probes.
    Process = 1,
    /// Those of all targets that share probes. It is attached to all processes that map the file.
    Shared = 2,
}

/// Where the probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Site {
    /// In the hooked function.
    Function = 0,
    /// In the inline engine's stub, before it calls the function. The stub has decided whether the call is sampled: see
    /// [`STUB_INTERVAL`](crate::arch::STUB_INTERVAL).
    StubEntry = 1,
    /// In the stub, after the function has returned.
    StubReturn = 2,
}

/// Locations of a hook's arguments, and its properties. Packs into an attach cookie.
///
/// ```text
/// bit  0..4   register of the size (1)        bit 16      has a count
///      4..8   register of the count (1)           17      has a pointer
///      8..12  register of a pointer (1)           18      the size is rounded up to pages
///     12..16  shape                               19      the function may call other hooked functions
///     24..32  heap                                20      it may throw a C++ exception instead of returning
///     32..48  hook                                21      it frees the old block when it fails
///                                             22..24      scope
///                                             51          the function calls other hooked functions if the block is null
///                                             52          nested calls of it are recognised by their return addresses
///                                             48..50      site
/// ```
///
/// (1) Its low four bits. The highest ones are bits 53, 54 and 55, which are 0 on x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookCookie {
    pub shape: CallShape,
    /// Requested size in bytes.
    pub size: Register,
    /// Second factor of the size (`calloc`, `reallocarray`).
    pub count: Option<Register>,
    /// The old block (`realloc`, `free`), or the address that the result is stored at (`posix_memalign`).
    pub pointer: Option<Register>,
    /// The allocator rounds the size up to whole pages (`pvalloc`).
    pub page_rounded: bool,
    /// The function may call other hooked functions, so nested calls must be recognised.
    pub delegates: bool,
    /// The function may throw a C++ exception instead of returning (`operator new`). The C++ unwinder fails at a return address
    /// that a probe has replaced, and terminates the program.
    pub may_throw: bool,
    /// As `delegates`, but only if the pointer is null (glibc's `realloc`).
    pub delegates_null: bool,
    /// Calls that return into other hooked functions are nested in these: see [`NestedCallers`].
    pub has_nested_callers: bool,
    /// A failed call has freed the old block (`reallocf`).
    pub frees_on_failure: bool,
    pub scope: ProbeScope,
    pub site: Site,
    /// Index of the heap in the session's list.
    pub heap: u8,
    /// Index of the hook in the session's list.
    pub hook: u16,
}

const HAS_COUNT: u64 = 1 << 16;
const HAS_POINTER: u64 = 1 << 17;
const PAGE_ROUNDED: u64 = 1 << 18;
const DELEGATES: u64 = 1 << 19;
const MAY_THROW: u64 = 1 << 20;
const FREES_ON_FAILURE: u64 = 1 << 21;
const SCOPE_SHIFT: u32 = 22;
const SITE_SHIFT: u32 = 48;
const DELEGATES_NULL: u64 = 1 << 51;
const NESTED_CALLERS: u64 = 1 << 52;
const SIZE_SHIFT: u32 = 0;
const COUNT_SHIFT: u32 = 4;
const POINTER_SHIFT: u32 = 8;
const SIZE_HIGH_SHIFT: u32 = 53;
const COUNT_HIGH_SHIFT: u32 = 54;
const POINTER_HIGH_SHIFT: u32 = 55;

const fn placed(register: Register, shift: u32, high_shift: u32) -> u64 {
    let number = register.number() as u64;
    (number & 15) << shift | number >> 4 << high_shift
}

impl HookCookie {
    pub const fn pack(self) -> u64 {
        let mut bits = (self.shape as u64) << 12 | (self.heap as u64) << 24 | (self.hook as u64) << 32;
        bits |= placed(self.size, SIZE_SHIFT, SIZE_HIGH_SHIFT);
        bits |= (self.scope as u64) << SCOPE_SHIFT | (self.site as u64) << SITE_SHIFT;
        if let Some(count) = self.count {
            bits |= HAS_COUNT | placed(count, COUNT_SHIFT, COUNT_HIGH_SHIFT);
        }
        if let Some(pointer) = self.pointer {
            bits |= HAS_POINTER | placed(pointer, POINTER_SHIFT, POINTER_HIGH_SHIFT);
        }
        if self.page_rounded {
            bits |= PAGE_ROUNDED;
        }
        if self.delegates {
            bits |= DELEGATES;
        }
        if self.may_throw {
            bits |= MAY_THROW;
        }
        if self.frees_on_failure {
            bits |= FREES_ON_FAILURE;
        }
        if self.delegates_null {
            bits |= DELEGATES_NULL;
        }
        if self.has_nested_callers {
            bits |= NESTED_CALLERS;
        }
        bits
    }

    /// The inverse of [`pack`](Self::pack).
    pub const fn unpack(bits: u64) -> Self {
        let raw = RawCookie(bits);
        Self {
            shape: CallShape::from_number(raw.shape()),
            size: Register::from_number(raw.size_register()),
            count: if raw.has_count() { Some(Register::from_number(raw.count_register())) } else { None },
            pointer: if raw.has_pointer() { Some(Register::from_number(raw.pointer_register())) } else { None },
            page_rounded: raw.page_rounded(),
            delegates: raw.delegates(),
            may_throw: raw.may_throw(),
            frees_on_failure: raw.frees_on_failure(),
            delegates_null: raw.delegates_null(),
            has_nested_callers: raw.has_nested_callers(),
            scope: match raw.scope() {
                0 => ProbeScope::Any,
                1 => ProbeScope::Process,
                _ => ProbeScope::Shared,
            },
            site: match raw.site() {
                0 => Site::Function,
                1 => Site::StubEntry,
                _ => Site::StubReturn,
            },
            heap: raw.heap(),
            hook: raw.hook(),
        }
    }
}

/// Return addresses of a hooked function's calls by other hooked functions whose unsampled calls are not followed to their return.
/// Such a call is nested, and its block is the other function's: it was sampled there, or decided not to be.
///
/// Each as the distance from the probed instruction, which does not depend on where the module is mapped. Unused ones are 0.
pub type NestedCallers = [i32; NESTED_CALLERS_MAX];

pub const NESTED_CALLERS_MAX: usize = 8;

/// A packed cookie, read field by field: the kernel side decodes only the fields that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCookie(pub u64);

#[expect(clippy::cast_possible_truncation, reason = "fields are cut out of the cookie by truncation")]
impl RawCookie {
    #[inline(always)]
    pub const fn size_register(self) -> u8 {
        self.register(SIZE_SHIFT, SIZE_HIGH_SHIFT)
    }

    #[inline(always)]
    pub const fn count_register(self) -> u8 {
        self.register(COUNT_SHIFT, COUNT_HIGH_SHIFT)
    }

    #[inline(always)]
    pub const fn pointer_register(self) -> u8 {
        self.register(POINTER_SHIFT, POINTER_HIGH_SHIFT)
    }

    #[inline(always)]
    const fn register(self, shift: u32, high_shift: u32) -> u8 {
        let low = (self.0 >> shift & 15) as u8;
        // x86-64 has sixteen registers.
        if crate::arch::REGISTERS > 16 { low | ((self.0 >> high_shift & 1) as u8 * 16) } else { low }
    }

    #[inline(always)]
    pub const fn shape(self) -> u8 {
        (self.0 >> 12 & 15) as u8
    }

    #[inline(always)]
    pub const fn has_count(self) -> bool {
        self.0 & HAS_COUNT != 0
    }

    #[inline(always)]
    pub const fn has_pointer(self) -> bool {
        self.0 & HAS_POINTER != 0
    }

    #[inline(always)]
    pub const fn page_rounded(self) -> bool {
        self.0 & PAGE_ROUNDED != 0
    }

    #[inline(always)]
    pub const fn delegates(self) -> bool {
        self.0 & DELEGATES != 0
    }

    #[inline(always)]
    pub const fn delegates_null(self) -> bool {
        self.0 & DELEGATES_NULL != 0
    }

    #[inline(always)]
    pub const fn has_nested_callers(self) -> bool {
        self.0 & NESTED_CALLERS != 0
    }

    #[inline(always)]
    pub const fn may_throw(self) -> bool {
        self.0 & MAY_THROW != 0
    }

    #[inline(always)]
    pub const fn frees_on_failure(self) -> bool {
        self.0 & FREES_ON_FAILURE != 0
    }

    /// A [`ProbeScope`].
    #[inline(always)]
    pub const fn scope(self) -> u8 {
        (self.0 >> SCOPE_SHIFT & 3) as u8
    }

    /// A [`Site`].
    #[inline(always)]
    pub const fn site(self) -> u8 {
        (self.0 >> SITE_SHIFT & 3) as u8
    }

    #[inline(always)]
    pub const fn heap(self) -> u8 {
        (self.0 >> 24) as u8
    }

    #[inline(always)]
    pub const fn hook(self) -> u16 {
        (self.0 >> 32) as u16
    }
}

/// `a · b`, or `None` if it overflows. Computed in halves, because BPF has no 128-bit product, which both `checked_mul` and
/// the usual test by division compile to.
#[inline(always)]
pub const fn checked_product(a: u64, b: u64) -> Option<u64> {
    const LOW: u64 = 0xffff_ffff;
    let (a_high, b_high) = (a >> 32, b >> 32);
    if a_high | b_high == 0 {
        return Some(a * b);
    }
    if a_high != 0 && b_high != 0 {
        return None;
    }
    // One of the high halves is 0, so one product of two halves remains.
    let middle = a_high * (b & LOW) + (a & LOW) * b_high;
    if middle >> 32 != 0 {
        return None;
    }
    let product = (middle << 32).wrapping_add((a & LOW) * (b & LOW));
    if product < middle << 32 { None } else { Some(product) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn register() -> impl Strategy<Value = Register> {
        (0u8..crate::arch::REGISTERS).prop_map(Register::from_number)
    }

    #[test]
    fn products_detect_overflow() {
        for (a, b) in [(0, u64::MAX), (1, u64::MAX), (2, u64::MAX), (1 << 32, 1 << 32), (1 << 32, (1 << 32) - 1)] {
            assert_eq!(checked_product(a, b), a.checked_mul(b), "{a} * {b}");
            assert_eq!(checked_product(b, a), b.checked_mul(a), "{b} * {a}");
        }
    }

    proptest! {
        #[test]
        fn products_match_checked_mul(a: u64, b: u64, shift_a in 0u32..64, shift_b in 0u32..64) {
            let (a, b) = (a >> shift_a, b >> shift_b);
            prop_assert_eq!(checked_product(a, b), a.checked_mul(b));
        }

        #[test]
        fn cookies_round_trip(
            shape in (0u8..10).prop_map(CallShape::from_number),
            size in register(),
            count in proptest::option::of(register()),
            pointer in proptest::option::of(register()),
            page_rounded: bool,
            delegates: bool,
            may_throw: bool,
            frees_on_failure: bool,
            delegates_null: bool,
            has_nested_callers: bool,
            scope in prop_oneof![Just(ProbeScope::Any), Just(ProbeScope::Process), Just(ProbeScope::Shared)],
            site in prop_oneof![Just(Site::Function), Just(Site::StubEntry), Just(Site::StubReturn)],
            heap: u8,
            hook: u16,
        ) {
            let cookie = HookCookie {
                shape,
                size,
                count,
                pointer,
                page_rounded,
                delegates,
                may_throw,
                frees_on_failure,
                delegates_null,
                has_nested_callers,
                scope,
                site,
                heap,
                hook,
            };
            prop_assert_eq!(HookCookie::unpack(cookie.pack()), cookie);
        }
    }
}
