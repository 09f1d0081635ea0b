//! Mutations of JSON that keep it valid: most byte mutations fail in the JSON parser, before any value is checked.

use serde_json::{Value, json};

/// Replaces, removes or repeats values of a JSON text. Returns `None` if the text is not JSON.
#[must_use]
pub fn mutate_json(text: &[u8], seed: u32) -> Option<Vec<u8>> {
    let mut root: Value = serde_json::from_slice(text).ok()?;
    let mut random = Random(u64::from(seed) << 1 | 1);
    for _ in 0..=random.below(3) {
        let count = count(&root);
        let mut index = random.below(count);
        change(&mut root, &mut index, &mut random);
    }
    serde_json::to_vec(&root).ok()
}

/// Returns the number of values in a value, including itself.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// Changes the value at this index, in the order of [`count`].
fn change(value: &mut Value, index: &mut usize, random: &mut Random) -> bool {
    if *index == 0 {
        replace(value, random);
        return true;
    }
    *index -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, index, random)),
        Value::Object(fields) => fields.values_mut().any(|field| change(field, index, random)),
        _ => false,
    }
}

fn replace(value: &mut Value, random: &mut Random) {
    const NUMBERS: [u64; 8] = [0, 1, 255, 1 << 20, u32::MAX as u64, (1 << 53) + 1, i64::MAX as u64, u64::MAX];
    match value {
        Value::Array(items) if !items.is_empty() => {
            let at = random.below(items.len());
            match random.below(3) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                _ => items.truncate(at),
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let name = fields.keys().nth(random.below(fields.len())).cloned();
            name.map(|name| fields.remove(&name));
        }
        Value::Number(_) => {
            *value = match random.below(6) {
                0 => json!(random.next() as i64 as f64 / 1e3),
                1 => json!(1e308),
                2 => json!(-1),
                3 => json!(random.next() >> random.below(64)),
                _ => json!(NUMBERS[random.below(NUMBERS.len())]),
            };
        }
        Value::String(text) => match random.below(4) {
            0 => text.clear(),
            1 => *text = "\u{1b}[31m<é\"&'\u{202e}\0;".repeat(1 + random.below(8)),
            2 => *text = format!("0x{:x}", random.next() >> random.below(64)),
            _ => *text = text.repeat(2),
        },
        Value::Bool(flag) => *flag = !*flag,
        _ => *value = json!(random.next() >> random.below(64)),
    }
}

/// Marsaglia's xorshift generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from((self.next() >> 32) % bound.max(1) as u64).unwrap_or(0)
    }
}
