//! Builds a shared object around an `.eh_frame` section.

/// Offsets in the file, equal to link addresses.
pub const CODE: u64 = 0x200;
pub const CODE_BYTES: u64 = 0x1000;
pub const EH_FRAME: u64 = CODE + CODE_BYTES;

const NAMES: &[u8] = b"\0.eh_frame\0.text\0.shstrtab\0";

/// Returns an x86-64 shared object with this section, [`CODE_BYTES`] of code, and section headers.
#[must_use]
pub fn with_eh_frame(section: &[u8]) -> Vec<u8> {
    let length = section.len() as u64;
    let names_at = EH_FRAME + length;
    let headers_at = (names_at + NAMES.len() as u64).next_multiple_of(8);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    file.extend([CODE, 64, headers_at].map(u64::to_le_bytes).concat());
    file.extend([0; 4]);
    file.extend([64, 56, 2, 64, 4, 3].map(u16::to_le_bytes).concat());
    file.extend(program_header(5, CODE, CODE_BYTES));
    file.extend(program_header(4, EH_FRAME, length));
    file.resize(CODE as usize, 0);
    // Repeated `push %rbp; mov %rsp,%rbp`: gaps can be unwound by frame pointers.
    file.extend([0x55, 0x48, 0x89, 0xe5].repeat(CODE_BYTES as usize / 4));
    file.extend(section);
    file.extend(NAMES);
    file.resize(headers_at as usize, 0);
    file.extend([0; 64]);
    for (name, kind, at, bytes) in
        [(1, 1, EH_FRAME, length), (11, 1, CODE, CODE_BYTES), (17, 3, names_at, NAMES.len() as u64)]
    {
        file.extend([name, kind].map(u32::to_le_bytes).concat());
        file.extend([2, at, at, bytes, 0, 8, 0].map(u64::to_le_bytes).concat());
    }
    file
}

fn program_header(flags: u32, at: u64, bytes: u64) -> Vec<u8> {
    let mut header = [1, flags].map(u32::to_le_bytes).concat();
    header.extend([at, at, at, bytes, bytes, 0x1000].map(u64::to_le_bytes).concat());
    header
}
