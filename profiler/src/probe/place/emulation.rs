//! Which instructions the kernel emulates at a probe instead of executing them out of line. Looks at encodings, as the
//! kernel does.

/// What this kernel emulates beyond what all kernels do that have attach cookies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    /// `nop` with operands (`0f 1f /0`, also with `66` before). Kernels differ, so this is for who has seen it happen.
    pub long_nops: bool,
}

impl Emulation {
    /// Whether a probe on this instruction, given by its bytes, needs no single step.
    ///
    /// That is `branch_setup_xol_ops` and `push_setup_xol_ops` of
    /// <https://github.com/torvalds/linux/blob/v6.12/arch/x86/kernel/uprobes.c>. The kernel accepts some prefixes as
    /// well; compilers do not write them there, so none is accepted here.
    pub fn covers(self, instruction: &[u8]) -> bool {
        match instruction {
            // nop
            [0x90]
            // push, of the first eight and the last eight registers
            | [0x50..=0x57]
            | [0x41, 0x50..=0x57]
            // jmp and conditional jumps of 8 bits
            | [0xeb | 0x70..=0x7f, _]
            // jmp and call of 32 bits
            | [0xe9 | 0xe8, _, _, _, _]
            // conditional jumps of 32 bits
            | [0x0f, 0x80..=0x8f, _, _, _, _] => true,
            [0x0f, 0x1f, modrm, ..] | [0x66, 0x0f, 0x1f, modrm, ..] => self.long_nops && modrm & 0x38 == 0,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: bool) {
        assert_eq!(Emulation::default().covers(bytes), expected, "{bytes:02x?}");
    }

    #[test]
    fn what_the_kernel_emulates() {
        check(&[0x90], true);
        check(&[0x55], true);
        check(&[0x41, 0x54], true);
        check(&[0x74, 0x10], true);
        check(&[0xeb, 0xfe], true);
        check(&[0xe9, 0, 0, 0, 0], true);
        check(&[0xe8, 0, 0, 0, 0], true);
        check(&[0x0f, 0x84, 0, 0, 0, 0], true);
    }

    #[test]
    fn what_it_single_steps() {
        // endbr64; test %rdi,%rdi; mov %rdi,%rax; ret; sub $8,%rsp; push $1; push (%rax)
        check(&[0xf3, 0x0f, 0x1e, 0xfa], false);
        check(&[0x48, 0x85, 0xff], false);
        check(&[0x48, 0x89, 0xf8], false);
        check(&[0xc3], false);
        check(&[0x48, 0x83, 0xec, 0x08], false);
        check(&[0x6a, 0x01], false);
        check(&[0xff, 0x30], false);
        // loop, jrcxz, indirect jmp and call, setcc
        check(&[0xe2, 0x00], false);
        check(&[0xe3, 0x00], false);
        check(&[0xff, 0xe0], false);
        check(&[0xff, 0xd0], false);
        check(&[0x0f, 0x94, 0xc0], false);
    }

    #[test]
    fn prefixes_and_their_like_are_not_accepted() {
        // bnd jmp; data16 jmp; notrack; rex.w push; rex.wb push; pause; xchg %r8,%rax; xchg %ax,%ax
        check(&[0xf2, 0xe9, 0, 0, 0, 0], false);
        check(&[0x66, 0xe9, 0, 0], false);
        check(&[0x3e, 0xff, 0xe0], false);
        check(&[0x48, 0x55], false);
        check(&[0x49, 0x55], false);
        check(&[0xf3, 0x90], false);
        check(&[0x49, 0x90], false);
        check(&[0x66, 0x90], false);
    }

    #[test]
    fn long_nops_are_taken_where_it_is_known() {
        let seen = Emulation { long_nops: true };
        let nop5: &[u8] = &[0x0f, 0x1f, 0x44, 0, 0];
        assert!(!Emulation::default().covers(nop5));
        assert!(seen.covers(nop5));
        assert!(seen.covers(&[0x66, 0x0f, 0x1f, 0x44, 0, 0]));
        // A segment prefix makes the kernel refuse the probe altogether.
        assert!(!seen.covers(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]));
    }
}
