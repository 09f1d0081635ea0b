//! HotSpot's compressed numbers (`UNSIGNED5`) and tables of lines.

/// How a stream encodes numbers: bytes of 6 bits beyond the first, the lowest first; those below 192 end a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Encoding {
    /// Until JDK 18 (`compressedStream.hpp`).
    Plain,
    /// Since JDK 19 (`unsigned5.hpp`): no byte is zero, so each is one higher.
    WithoutZeros,
}

const LAST_BELOW: u8 = 192;
const NUMBER_BYTES_MAX: u32 = 5;

impl Encoding {
    pub(super) fn of_version(major: u32) -> Self {
        if major >= 19 { Self::WithoutZeros } else { Self::Plain }
    }

    /// Takes a number from the beginning of the bytes.
    pub(super) fn number(self, bytes: &mut &[u8]) -> Option<u32> {
        let mut number: u32 = 0;
        for index in 0..NUMBER_BYTES_MAX {
            let (&byte, rest) = bytes.split_first()?;
            *bytes = rest;
            let digit = match self {
                Self::Plain => byte,
                Self::WithoutZeros => byte.checked_sub(1)?,
            };
            number = number.wrapping_add(u32::from(digit) << (6 * index));
            if byte < LAST_BELOW {
                break;
            }
        }
        Some(number)
    }

    /// The lowest bit is the sign.
    fn signed(self, bytes: &mut &[u8]) -> Option<i32> {
        let number = self.number(bytes)?;
        Some((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
    }

    /// The lines of bytecode, from these indices on (`CompressedLineNumberReadStream`), and whether the bytes contain the end.
    pub(super) fn lines(self, mut bytes: &[u8]) -> (Vec<(u32, u32)>, bool) {
        const END: u8 = 0;
        const LONG: u8 = 0xff;
        let (mut index, mut line): (i32, i32) = (0, 0);
        let mut lines = Vec::new();
        while let Some((&first, rest)) = bytes.split_first() {
            bytes = rest;
            let (indices, ahead) = match first {
                END => return (lines, true),
                LONG => match (self.signed(&mut bytes), self.signed(&mut bytes)) {
                    (Some(indices), Some(ahead)) => (indices, ahead),
                    _ => break,
                },
                short => (i32::from(short >> 3), i32::from(short & 7)),
            };
            (index, line) = (index.wrapping_add(indices), line.wrapping_add(ahead));
            if let (Ok(index), Ok(line)) = (u32::try_from(index), u32::try_from(line)) {
                lines.push((index, line));
            }
        }
        (lines, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As `UNSIGNED5::write_uint` does.
    fn encode(encoding: Encoding, value: u32) -> Vec<u8> {
        let (excluded, mut bytes, mut rest) = (u32::from(encoding == Encoding::WithoutZeros), Vec::new(), value);
        let low = u32::from(LAST_BELOW) - excluded;
        for index in 0..NUMBER_BYTES_MAX {
            let byte = if rest < low || index == NUMBER_BYTES_MAX - 1 {
                let byte = rest + excluded;
                rest = 0;
                byte
            } else {
                rest -= low;
                let byte = u32::from(LAST_BELOW) + rest % 64;
                rest /= 64;
                bytes.push(u8::try_from(byte).expect("below 256"));
                continue;
            };
            bytes.push(u8::try_from(byte).expect("below 256"));
            break;
        }
        assert_eq!(rest, 0);
        bytes
    }

    #[test]
    fn numbers_of_one_and_two_bytes() {
        let read = |encoding: Encoding, bytes: &[u8]| encoding.number(&mut &*bytes);
        assert_eq!(read(Encoding::Plain, &[0]), Some(0));
        assert_eq!(read(Encoding::Plain, &[191]), Some(191));
        assert_eq!(read(Encoding::Plain, &[192, 0]), Some(192));
        assert_eq!(read(Encoding::WithoutZeros, &[1]), Some(0));
        assert_eq!(read(Encoding::WithoutZeros, &[191]), Some(190));
        assert_eq!(read(Encoding::WithoutZeros, &[192, 1]), Some(191));
        assert_eq!(read(Encoding::WithoutZeros, &[0]), None);
        assert_eq!(read(Encoding::Plain, &[192]), None, "cut");
    }

    #[test]
    fn lines_are_short_or_long_differences() {
        // +0 +5; +3 +1; then long: +100 -2.
        let mut table = vec![5, 3 << 3 | 1, 0xff];
        table.extend(encode(Encoding::Plain, 200));
        table.extend(encode(Encoding::Plain, 3));
        table.push(0);
        table.push(1);
        assert_eq!(Encoding::Plain.lines(&table), (vec![(0, 5), (3, 6), (103, 4)], true));
        assert_eq!(Encoding::Plain.lines(&[5, 0xff]), (vec![(0, 5)], false), "cut");
    }

    proptest! {
        #[test]
        fn numbers_survive(value in 0u32..1 << 30) {
            for encoding in [Encoding::Plain, Encoding::WithoutZeros] {
                let bytes = encode(encoding, value);
                let mut rest = &bytes[..];
                prop_assert_eq!(encoding.number(&mut rest), Some(value));
                prop_assert!(rest.is_empty());
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            for encoding in [Encoding::Plain, Encoding::WithoutZeros] {
                let _ = encoding.lines(&bytes);
                let mut rest = &bytes[..];
                while encoding.number(&mut rest).is_some() {}
            }
        }
    }
}
