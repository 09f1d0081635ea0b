//! Tests against the rules of several kernels. The masks and values are from arch/arm64/include/asm/insn.h, the conditions from
//! arch/arm64/kernel/probes/decode-insn.c, with the names that these files use.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Rejected,
    Stepped,
    Simulated,
}

struct Kernel {
    version: &'static str,
    simulates_nop: bool,
    rejects_memory_operations: bool,
    conditional_branch_mask: u32,
}

/// Rules of the kernels in Debian's packages linux-source-5.10 (5.10.262), 6.1 (6.1.192), 6.12 (6.12.118) and 7.3 (7.3.4).
const KERNELS: [Kernel; 4] = [
    Kernel {
        version: "5.10",
        simulates_nop: false,
        rejects_memory_operations: false,
        conditional_branch_mask: 0xff00_0010,
    },
    Kernel {
        version: "6.1",
        simulates_nop: false,
        rejects_memory_operations: false,
        conditional_branch_mask: 0xff00_0010,
    },
    Kernel {
        version: "6.12",
        simulates_nop: false,
        rejects_memory_operations: true,
        conditional_branch_mask: 0xff00_0000,
    },
    Kernel {
        version: "7.3",
        simulates_nop: true,
        rejects_memory_operations: true,
        conditional_branch_mask: 0xff00_0000,
    },
];

const BRANCH_SYS: (u32, u32) = (0x1c00_0000, 0x1400_0000);
const ADR_ADRP: [(u32, u32); 2] = [(0x9f00_0000, 0x1000_0000), (0x9f00_0000, 0x9000_0000)];
/// Masks and values of ldr, ldrsw and prfm.
const LITERALS: [(u32, u32); 3] = [(0xbf00_0000, 0x1800_0000), (0xff00_0000, 0x9800_0000), (0xff00_0000, 0xd800_0000)];
const EXCLUSIVE: (u32, u32) = (0x3f80_0000, 0x0800_0000);
const MEMORY_OPERATIONS: (u32, u32) = (0x3b20_0c00, 0x1900_0400);
/// Masks and values of b, bl, cbz, cbnz, tbz, tbnz, ret, br and blr.
const SIMULATED_BRANCHES: [(u32, u32); 9] = [
    (0xfc00_0000, 0x1400_0000),
    (0xfc00_0000, 0x9400_0000),
    (0x7f00_0000, 0x3400_0000),
    (0x7f00_0000, 0x3500_0000),
    (0x7f00_0000, 0x3600_0000),
    (0x7f00_0000, 0x3700_0000),
    (0xffff_fc1f, 0xd65f_0000),
    (0xffff_fc1f, 0xd61f_0000),
    (0xffff_fc1f, 0xd63f_0000),
];
/// Masks and values of ret_auth, br_auth, blr_auth, msr_imm, msr_reg, exception, eret and eret_auth.
const REJECTED_SYSTEM: [(u32, u32); 8] = [
    (0xffff_fbff, 0xd65f_0bff),
    (0xfeff_f800, 0xd61f_0800),
    (0xfeff_f800, 0xd63f_0800),
    (0xfff8_f01f, 0xd500_401f),
    (0xfff0_0000, 0xd510_0000),
    (0xff00_0000, 0xd400_0000),
    (0xffff_ffff, 0xd69f_03e0),
    (0xffff_fbff, 0xd69f_0bff),
];
const MRS: (u32, u32) = (0xfff0_0000, 0xd530_0000);
const DAIF: u32 = 0xda11;
const HINT: (u32, u32) = (0xffff_f01f, 0xd503_201f);
const STEPPABLE_HINTS: [u32; 12] = [0xe0, 0x100, 0x140, 0x300, 0x320, 0x340, 0x360, 0x400, 0x440, 0x480, 0x4c0, 0x000];
const NOP: u32 = 0xd503_201f;

fn matches(word: u32, (mask, value): (u32, u32)) -> bool {
    word & mask == value
}

fn any(word: u32, rules: &[(u32, u32)]) -> bool {
    rules.iter().any(|rule| matches(word, *rule))
}

impl Kernel {
    fn simulates_branch(&self, word: u32) -> bool {
        any(word, &SIMULATED_BRANCHES) || matches(word, (self.conditional_branch_mask, 0x5400_0000))
    }

    fn is_steppable(&self, word: u32) -> bool {
        if matches(word, BRANCH_SYS) {
            return match () {
                () if self.simulates_branch(word) || any(word, &REJECTED_SYSTEM) => false,
                () if matches(word, MRS) => (word & 0x1f_ffe0) >> 5 != DAIF,
                () if matches(word, HINT) => STEPPABLE_HINTS.contains(&(word & 0xfe0)),
                () => true,
            };
        }
        let is_rejected = self.rejects_memory_operations && matches(word, MEMORY_OPERATIONS);
        !(is_rejected || any(word, &LITERALS) || any(word, &ADR_ADRP) || matches(word, EXCLUSIVE))
    }

    fn decide(&self, word: u32) -> Decision {
        match () {
            () if word == NOP && self.simulates_nop => Decision::Simulated,
            () if self.is_steppable(word) => Decision::Stepped,
            () if self.simulates_branch(word) || any(word, &ADR_ADRP) => Decision::Simulated,
            () => Decision::Rejected,
        }
    }

    fn ours(&self, word: Word) -> Decision {
        match class(word, Emulation { nops: self.simulates_nop }) {
            None => Decision::Rejected,
            Some(Class::Emulated) => Decision::Simulated,
            Some(Class::SingleStepped) => Decision::Stepped,
        }
    }
}

/// Instructions that kernels accept although they would be executed wrongly, or that cannot be at the beginning of a function.
fn is_refused_by_caution(word: Word) -> bool {
    let is_vector_literal = word.is_literal_load() && word.is(1 << 26, 1 << 26);
    let is_trap = word.control(0) == Control::Trap;
    // Without the branches, barriers and system registers of kernels.
    let is_new_branch =
        word.is(0xff00_0010, 0x5400_0010) || word.is(0x7e00_0000, 0x7400_0000) || word.is(0xff00_0000, 0x5500_0000);
    let is_system = word.is(0xff00_0000, 0xd500_0000) && !word.is(0xfff0_0000, 0xd530_0000);
    let is_unallocated =
        word.is_branch_or_system() && !word.is(0xfe00_0000, 0xd400_0000) && word.control(0) == Control::Next
            || word.is(0xfe00_0000, 0xd600_0000);
    is_vector_literal || is_trap || is_new_branch || is_system || is_unallocated || word.is_memory_operation()
}

/// Returns words with each combination of the upper 16 bits and some combinations of the lower ones.
fn words() -> impl Iterator<Item = Word> {
    let low = [
        0x0000, 0x001f, 0x0010, 0x03c0, 0x0bff, 0x0c41, 0x201f, 0x233f, 0x245f, 0x33bf, 0x4220, 0x7c41, 0xd042, 0xfc1f,
    ];
    let high = (0..=0xffff_u32).map(|high| high << 16);
    let words = high.flat_map(move |high| low.into_iter().map(move |low| Word(high | low)));
    let system = (0..0x1_0000)
        .flat_map(|low| [0xd503_0000, 0xd51b_0000, 0xd53b_0000, 0xd61f_0000, 0xd65f_0000].map(|high| Word(high | low)));
    words.chain(system).filter(|word| word.is_valid())
}

/// What a kernel does with a probe on this instruction if that is something else than here, not even by caution.
pub(in crate::probe) fn disagreement(word: u32) -> Option<String> {
    KERNELS.iter().find_map(|kernel| {
        let (kernels, ours) = (kernel.decide(word), kernel.ours(Word(word)));
        let is_agreed = kernels == ours || ours == Decision::Rejected && is_refused_by_caution(Word(word));
        (!is_agreed).then(|| format!("{}: {word:#010x}: {kernels:?}, and here {ours:?}", kernel.version))
    })
}

#[test]
fn decisions_are_those_of_the_kernels() {
    assert_eq!(words().find_map(|word| disagreement(word.0)), None);
}

#[test]
fn hints_are_told_apart() {
    let class = |word| class(Word(word), Emulation::default());
    for stepped in [0xd503_201f, 0xd503_20ff, 0xd503_233f, 0xd503_237f, 0xd503_241f, 0xd503_245f] {
        assert_eq!(class(stepped), Some(Class::SingleStepped), "nop, xpaclri, paciasp, pacibsp, bti, bti c");
    }
    for refused in [0xd503_23bf, 0xd503_23ff, 0xd503_203f, 0xd503_205f, 0xd503_251f] {
        assert_eq!(class(refused), None, "autiasp, autibsp, yield, wfe, chkfeat");
    }
}
