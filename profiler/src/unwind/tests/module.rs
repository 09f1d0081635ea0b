//! Builds small ELF images with specified unwind information.

/// Link addresses of code and unwind sections. File offsets are lower by [`BIAS`].
pub(super) const CODE: u64 = 0x21_1000;
pub(super) const EH_FRAME: u64 = 0x20_f000;
const BIAS: u64 = 0x20_0000;
const EH_FRAME_HDR: u64 = EH_FRAME - 0x1000;

/// Call frame instructions.
pub(super) mod cfa {
    pub(crate) const RA: u8 = 16;
    pub(crate) const RBP: u8 = 6;
    pub(crate) const X29: u8 = 29;
    pub(crate) const X30: u8 = 30;
    pub(crate) const SP: u8 = 31;
    /// `DW_CFA_AARCH64_negate_ra_state`
    pub(crate) const SIGN: [u8; 1] = [0x2d];
    pub(crate) const RSP: u8 = 7;

    pub(crate) fn advance(bytes: u8) -> Vec<u8> {
        vec![0x40 | bytes]
    }
    pub(crate) fn def(register: u8, offset: u8) -> Vec<u8> {
        vec![0x0c, register, offset]
    }
    pub(crate) fn offset(register: u8, words_below: u8) -> Vec<u8> {
        vec![0x80 | register, words_below]
    }
    pub(crate) fn undefined(register: u8) -> Vec<u8> {
        vec![0x07, register]
    }
    pub(crate) fn def_expression(expression: &[u8]) -> Vec<u8> {
        [&[0x0f, u8::try_from(expression.len()).expect("short")], expression].concat()
    }
    pub(crate) fn expression(register: u8, expression: &[u8]) -> Vec<u8> {
        [&[0x10, register, u8::try_from(expression.len()).expect("short")], expression].concat()
    }
    pub(crate) const REMEMBER: [u8; 1] = [0x0a];
    pub(crate) const RESTORE: [u8; 1] = [0x0b];
    /// `rsp + 8`, return address below it: the state at function entry.
    pub(crate) const INITIAL: [u8; 5] = [0x0c, RSP, 8, 0x90, 1];
}

/// An FDE.
pub(super) struct Fde {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) instructions: Vec<u8>,
    pub(super) is_signal: bool,
}

/// A function of this length at this offset into the code.
pub(super) fn function(at: u64, length: u64, instructions: &[&[u8]]) -> Fde {
    Fde { start: CODE + at, length, instructions: instructions.concat(), is_signal: false }
}

/// Contents of an image.
pub(super) struct Module {
    pub(super) code: Vec<u8>,
    pub(super) functions: Vec<Fde>,
    /// Section of `functions`.
    pub(super) section: &'static str,
    pub(super) section_headers: bool,
    pub(super) entry: u64,
    /// Bytes of `nop` instructions in the CIE.
    pub(super) cie_padding: usize,
    /// ELF's number of the processor, DWARF's column of its return address, and the state at function entry.
    pub(super) processor: (u8, u8, &'static [u8]),
}

impl Module {
    pub(super) fn new(functions: Vec<Fde>) -> Self {
        Self {
            code: vec![0x90; 0x4_0000],
            functions,
            section: ".eh_frame",
            section_headers: true,
            entry: 0,
            cie_padding: 0,
            processor: (62, cfa::RA, &cfa::INITIAL),
        }
    }

    /// The return address is in x30 at function entry.
    pub(super) fn for_aarch64(functions: Vec<Fde>) -> Self {
        Self { processor: (183, cfa::X30, &[0x0c, cfa::SP, 0]), ..Self::new(functions) }
    }

    /// The ELF file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let frames = if self.section == ".debug_frame" { self.debug_frame() } else { self.eh_frame() };
        let mut file = vec![0; usize_of(CODE - BIAS)];
        put(&mut file, EH_FRAME - BIAS, &frames);
        // Version 1; a 4-byte pc-relative pointer; no table.
        let to_frames = i32::try_from(EH_FRAME - EH_FRAME_HDR - 4).expect("near");
        put(&mut file, EH_FRAME_HDR - BIAS, &[&[1, 0x1b, 0xff, 0xff], &to_frames.to_le_bytes()[..]].concat());
        file.extend(&self.code);
        let names = format!("\0{}\0.text\0.shstrtab\0", self.section);
        let names_at = file.len() as u64;
        file.extend(names.as_bytes());
        file.resize(file.len().next_multiple_of(8), 0);
        let headers_at = file.len() as u64;
        if self.section_headers {
            let offset_of = |name: &str| names.find(name).expect("one of the names") as u64;
            let code_length = self.code.len() as u64;
            let frames_length = frames.len() as u64;
            file.extend([0; 64]);
            file.extend(section(offset_of(self.section), 1, EH_FRAME, EH_FRAME - BIAS, frames_length));
            file.extend(section(offset_of(".text"), 1, CODE, CODE - BIAS, code_length));
            file.extend(section(offset_of(".shstrtab"), 3, 0, names_at, names.len() as u64));
        }
        let section_count = if self.section_headers { 4 } else { 0 };
        put(&mut file, 0, &self.header(if self.section_headers { headers_at } else { 0 }, section_count));
        let segments = [
            segment(1, 4, 0, BIAS, CODE - BIAS),
            segment(1, 5, CODE - BIAS, CODE, self.code.len() as u64),
            segment(0x6474_e550, 4, EH_FRAME_HDR - BIAS, EH_FRAME_HDR, 12),
        ];
        put(&mut file, 64, &segments.concat());
        file
    }

    fn header(&self, headers_at: u64, section_count: u16) -> Vec<u8> {
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(16, 0);
        header.extend([3, 0, self.processor.0, 0, 1, 0, 0, 0]);
        header.extend([self.entry, 64, headers_at].map(u64::to_le_bytes).concat());
        header.extend([0; 4]);
        header.extend([64, 56, 3, 64, section_count, section_count.saturating_sub(1)].map(u16::to_le_bytes).concat());
        header
    }

    fn eh_frame(&self) -> Vec<u8> {
        let mut section = Vec::new();
        let plain = self.cie(&mut section, 0, b"zR\0", &[1, 0x1b], self.cie_padding);
        let signal = self.cie(&mut section, 0, b"zRS\0", &[1, 0x1b], 0);
        for function in &self.functions {
            let at = section.len() as u64 + 8;
            let cie = if function.is_signal { signal } else { plain };
            let relative = function.start.wrapping_sub(EH_FRAME + at);
            let mut body = Vec::new();
            body.extend(u32::try_from(at - 4 - cie).expect("small").to_le_bytes());
            body.extend(&relative.to_le_bytes()[..4]);
            body.extend(&function.length.to_le_bytes()[..4]);
            body.push(0);
            body.extend(&function.instructions);
            entry(&mut section, body);
        }
        section.extend([0; 4]);
        section
    }

    fn debug_frame(&self) -> Vec<u8> {
        let mut section = Vec::new();
        let cie = self.cie(&mut section, u32::MAX, b"\0", &[], 0);
        for function in &self.functions {
            let mut body = u32::try_from(cie).expect("small").to_le_bytes().to_vec();
            body.extend(function.start.to_le_bytes());
            body.extend(function.length.to_le_bytes());
            body.extend(&function.instructions);
            entry(&mut section, body);
        }
        section
    }

    fn cie(&self, section: &mut Vec<u8>, id: u32, augmentation: &[u8], data: &[u8], padding: usize) -> u64 {
        let (_, return_address, initial) = self.processor;
        let at = section.len() as u64;
        // Version 1, code in bytes, data in words of 8 downwards.
        let body = [&id.to_le_bytes()[..], &[1], augmentation, &[1, 0x78, return_address], data, initial].concat();
        entry(section, [body, vec![0; padding]].concat());
        at
    }
}

fn entry(section: &mut Vec<u8>, mut body: Vec<u8>) {
    body.resize((body.len() + 4).next_multiple_of(8) - 4, 0);
    section.extend(u32::try_from(body.len()).expect("small").to_le_bytes());
    section.extend(body);
}

fn section(name: u64, kind: u32, address: u64, offset: u64, length: u64) -> Vec<u8> {
    let mut header = u32::try_from(name).expect("small").to_le_bytes().to_vec();
    header.extend(kind.to_le_bytes());
    header.extend([2, address, offset, length, 0, 8, 0].map(u64::to_le_bytes).concat());
    header
}

fn segment(kind: u32, flags: u32, offset: u64, address: u64, length: u64) -> Vec<u8> {
    let mut header = [kind, flags].map(u32::to_le_bytes).concat();
    header.extend([offset, address, address, length, length, 0x1000].map(u64::to_le_bytes).concat());
    header
}

fn put(file: &mut [u8], offset: u64, bytes: &[u8]) {
    let offset = usize_of(offset);
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).expect("fits")
}
