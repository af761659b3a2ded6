//! What each key's value must be.

/// Versions of all values; their content follows from them.
pub struct Values {
    versions: Vec<u32>,
    bytes: usize,
}

/// What a value begins with: its key's number and its version.
pub const HEADER_BYTES: usize = 16;

impl Values {
    pub fn new(keys: usize, bytes: usize) -> Self {
        Self {
            versions: vec![0; keys],
            bytes: bytes.max(HEADER_BYTES) / 8 * 8,
        }
    }

    pub fn keys(&self) -> usize {
        self.versions.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn version(&self, key: usize) -> u32 {
        self.versions[key]
    }

    /// From now on the key has another value.
    pub fn renew(&mut self, key: usize) {
        self.versions[key] += 1;
    }

    /// The present value.
    pub fn content(&self, key: usize) -> Vec<u8> {
        let words = words(key, self.versions[key], self.bytes);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// Whether a value is this version of this key's, to the byte.
    pub fn is(&self, key: usize, version: u32, value: &[u8]) -> bool {
        let (found, rest) = value.as_chunks::<8>();
        rest.is_empty()
            && value.len() == self.bytes
            && found
                .iter()
                .zip(words(key, version, self.bytes))
                .all(|(found, word)| *found == word.to_le_bytes())
    }
}

/// The key's own name.
pub fn name(key: usize) -> Vec<u8> {
    format!("key:{key:08}").into_bytes()
}

fn words(key: usize, version: u32, bytes: usize) -> impl Iterator<Item = u64> {
    let (key, version) = (key as u64, u64::from(version));
    let mixed = (key << 32 | version).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let body = (2..bytes as u64 / 8).map(move |word| mixed.wrapping_mul(2 * word + 1));
    [key, version].into_iter().chain(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_told_from_every_other() {
        let mut values = Values::new(10, 100);
        let old = values.content(3);
        assert_eq!((old.len(), values.bytes()), (96, 96));
        assert!(values.is(3, 0, &old) && !values.is(4, 0, &old));
        values.renew(3);
        let mut new = values.content(3);
        assert!(values.is(3, 1, &new) && !values.is(3, 1, &old));
        new[95] ^= 1;
        assert!(!values.is(3, 1, &new));
        assert!(!values.is(3, 1, &old[..88]));
    }
}
