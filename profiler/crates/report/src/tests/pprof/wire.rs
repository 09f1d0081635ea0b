//! A decoder of the protocol buffers wire format, independent of any message definition.

/// A field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message in their order, with their numbers.
pub(super) fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Value::Number(varint(&mut bytes)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).expect("a length");
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(value)
            }
            other => panic!("wire type {other} is not used"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a number ends");
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return number;
        }
    }
    panic!("a number has at most ten bytes")
}

/// A message with its fields by number.
pub(super) struct Message<'a>(Vec<(u64, Value<'a>)>);

impl<'a> Message<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(fields(bytes))
    }

    /// A number; 0 if it is absent.
    pub(super) fn number(&self, field: u64) -> u64 {
        self.numbers(field).last().copied().unwrap_or(0)
    }

    /// A list of numbers, packed or not.
    pub(super) fn numbers(&self, field: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for (_, value) in self.0.iter().filter(|(number, _)| *number == field) {
            match *value {
                Value::Number(number) => numbers.push(number),
                Value::Bytes(mut packed) => {
                    while !packed.is_empty() {
                        numbers.push(varint(&mut packed));
                    }
                }
            }
        }
        numbers
    }

    /// Texts or messages.
    pub(super) fn bytes(&self, field: u64) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |(number, _)| *number == field).map(|(number, value)| match *value {
            Value::Bytes(bytes) => bytes,
            Value::Number(_) => panic!("field {number} has a number"),
        })
    }

    pub(super) fn messages(&self, field: u64) -> Vec<Message<'a>> {
        self.bytes(field).map(Message::new).collect()
    }
}
