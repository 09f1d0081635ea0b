//! Which addresses of a stack in a heap profile are those of calls.
//!
//! The runtime records an address for each inlined call, too, which is that of an instruction that only marks it (`tracebackPCs` in
//! `runtime/traceback.go`, since Go 1.21). The return address of the frame has all of them in debug information, so these would be named
//! twice.

/// What is known of a program's code. Addresses are those in its file.
pub(super) trait Functions {
    /// First address of the function that has this one, and its name.
    fn function(&self, address: u64) -> Option<(u64, &str)>;
    /// Whether the instruction before this address is a call.
    fn follows_call(&self, address: u64) -> bool;
}

/// Return addresses without those of inlined calls, and without the functions of the runtime at the beginning, as `runtime/pprof` shows
/// them: these allocate for their caller. A stack of the runtime alone stays whole.
pub(super) fn physical(stack: &[u64], code: &impl Functions) -> Vec<u64> {
    let mut kept: Vec<u64> = Vec::with_capacity(stack.len());
    let mut last = None;
    for &address in stack {
        // A return address may be behind the end of its function.
        let function = address.checked_sub(1).and_then(|call| code.function(call)).map(|(start, _)| start);
        if code.follows_call(address) || function.is_none() || function != last {
            kept.push(address);
        }
        last = function;
    }
    let is_of_runtime = |address: &&u64| {
        let name = address.checked_sub(1).and_then(|call| code.function(call)).map(|(_, name)| name);
        name.is_some_and(|name| name.starts_with("runtime."))
    };
    let inner = kept.iter().take_while(is_of_runtime).count();
    if inner < kept.len() { kept.split_off(inner) } else { kept }
}

/// Whether x86-64 code ends with a call.
pub(super) fn ends_with_call_x86_64(code: &[u8]) -> bool {
    let from_end = |bytes: usize| code.len().checked_sub(bytes).map(|at| &code[at..]);
    let is_near = from_end(5).is_some_and(|code| code[0] == 0xe8);
    // `call` of a register or of memory, by the number of bytes behind the opcode: the operand, with a displacement.
    let is_indirect = (1..=6).any(|operand| {
        from_end(operand + 1).is_some_and(|code| {
            let (opcode, modrm) = (code[0], code[1]);
            let (mode, scaled) = (modrm >> 6, usize::from(modrm & 7 == 4 && modrm >> 6 != 3));
            let displacement = match (mode, modrm & 7) {
                (0, 5) | (2, _) => 4,
                (1, _) => 1,
                _ => 0,
            };
            opcode == 0xff && modrm >> 3 & 7 == 2 && operand == 1 + scaled + displacement
        })
    });
    is_near || is_indirect
}

/// Whether aarch64 code ends with a call: `bl` or `blr`.
pub(super) fn ends_with_call_aarch64(code: &[u8]) -> bool {
    let last = code.last_chunk().map(|word| u32::from_le_bytes(*word));
    last.is_some_and(|word| word >> 26 == 0b10_0101 || word & 0xffff_fc1f == 0xd63f_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of 256 bytes, by their numbers; calls return to multiples of 16.
    struct Made(Vec<&'static str>);

    impl Functions for Made {
        fn function(&self, address: u64) -> Option<(u64, &str)> {
            let number = usize::try_from(address / 256).expect("small");
            self.0.get(number).map(|name| (address / 256 * 256, *name))
        }

        fn follows_call(&self, address: u64) -> bool {
            address.is_multiple_of(16)
        }
    }

    #[test]
    fn inlined_calls_have_no_frame_of_their_own() {
        let code = Made(vec!["runtime.mallocgc", "runtime.newobject", "main.outer", "main.main"]);
        let check = |stack: &[u64], expected: &[u64]| assert_eq!(physical(stack, &code), expected, "{stack:x?}");
        check(&[0x10, 0x110, 0x210, 0x215, 0x217, 0x310], &[0x210, 0x310]);
        // A function that calls itself has a frame for each call; the return address of its last call is behind its end.
        check(&[0x210, 0x220, 0x300, 0x305, 0x310], &[0x210, 0x220, 0x300, 0x305, 0x310]);
        // The innermost call was left out because it is of the runtime and inlined.
        check(&[0x217, 0x219, 0x310], &[0x217, 0x310]);
        check(&[0x10, 0x110], &[0x10, 0x110]);
        check(&[0x1015, 0x1017], &[0x1015, 0x1017]);
        check(&[], &[]);
    }

    #[test]
    fn calls_are_told_from_other_instructions() {
        for call in [
            &[0xe8, 1, 2, 3, 4][..],
            &[0xff, 0xd2],
            &[0x41, 0xff, 0xd0],
            &[0xff, 0x12],
            &[0xff, 0x52, 8],
            &[0xff, 0x14, 0x24],
            &[0xff, 0x54, 0x24, 8],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x94, 0x24, 1, 2, 3, 4],
        ] {
            assert!(ends_with_call_x86_64(&[&[0x90; 7], call].concat()), "{call:x?}");
            assert!(ends_with_call_x86_64(call), "{call:x?}");
        }
        for other in [&[0x90; 7][..], &[0xff, 0xe2], &[0xff, 0xc2, 8], &[0xff], &[]] {
            assert!(!ends_with_call_x86_64(other), "{other:x?}");
        }
        assert!(ends_with_call_aarch64(&0x9400_0001_u32.to_le_bytes()));
        assert!(ends_with_call_aarch64(&0xd63f_0040_u32.to_le_bytes()));
        assert!(!ends_with_call_aarch64(&0xd61f_0040_u32.to_le_bytes()));
        assert!(!ends_with_call_aarch64(&[]));
    }
}
