//! Text of instructions.

use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::InstDecoder;

use crate::arch::aarch64::{Control, Word};

/// Text of an instruction as the decoder has it, with the addresses that it leads to or reads, and names of hints that the
/// decoder does not know.
pub(super) fn of(word: Word, address: u64) -> String {
    if let Some(name) = word.is_hint().then(|| hint(word)).flatten() {
        return name.to_owned();
    }
    let Ok(decoded) = InstDecoder::default().decode(&mut U8Reader::new(&word.0.to_le_bytes())) else {
        return format!(".inst {:#010x}", word.0);
    };
    let text = decoded.to_string();
    let target = match word.control(address) {
        Control::Jump(target) | Control::Branch(target) | Control::Call(target) => Some(target),
        _ => word.address(address).or_else(|| word.literal(address)),
    };
    match (target, text.rsplit_once('$')) {
        (Some(target), Some((before, _))) => format!("{before}{target:#x}"),
        _ => text,
    }
}

fn hint(word: Word) -> Option<&'static str> {
    Some(match word.hint() {
        7 => "xpaclri",
        32 => "bti",
        34 => "bti c",
        36 => "bti j",
        38 => "bti jc",
        _ => return None,
    })
}
