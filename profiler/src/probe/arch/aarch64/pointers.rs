//! Pointers to functions that code reads from memory.

use super::values::{Value, Values};
use crate::arch::aarch64::{Control, Word};
use crate::probe::arch::instruction_set::PointerPlace;

/// Implements [`InstructionSet::pointers_read`](crate::probe::arch::instruction_set::InstructionSet::pointers_read). Calls and
/// jumps are through registers, which were read before.
pub(super) fn read(code: &[u8], address: u64, instructions_max: usize) -> Vec<PointerPlace> {
    let mut values = Values::UNKNOWN;
    let mut read = Vec::new();
    for (at, word) in Word::all(code, address).take(instructions_max) {
        if let Some(load) = word.as_load()
            && let Some(value) = values.get(load.base)
        {
            read.extend(load.words().map(|(_, distance)| match value {
                Value::Address(address) => PointerPlace::At(address.wrapping_add_signed(distance)),
                Value::Loaded(slot) => PointerPlace::Behind { slot, bytes: distance.cast_unsigned() },
            }));
        }
        match word.control(at) {
            Control::Call(_) | Control::CallThrough(_) => values.call(),
            _ => values.step(word, at),
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_at_addresses_and_behind_them_are_found() {
        let code = [
            0xb000_0000_u32, // adrp x0, 0x2000
            0xf940_0801,     // ldr x1, [x0, #16]
            0xf940_0422,     // ldr x2, [x1, #8]
            0x9100_4003,     // add x3, x0, #16
            0xa940_9464,     // ldp x4, x5, [x3, #8]
            0xb940_0806,     // ldr w6, [x0, #8]
            0xf940_0507,     // ldr x7, [x8, #8]
            0xf900_0801,     // str x1, [x0, #16]
            0xd61f_0040,     // br x2
        ];
        let code: Vec<u8> = code.into_iter().flat_map(u32::to_le_bytes).collect();
        let expected = [
            PointerPlace::At(0x2010),
            PointerPlace::Behind { slot: 0x2010, bytes: 8 },
            PointerPlace::At(0x2018),
            PointerPlace::At(0x2020),
        ];
        assert_eq!(read(&code, 0x1000, 99), expected);
        assert_eq!(read(&code, 0x1000, 2), expected[..1]);
    }
}
