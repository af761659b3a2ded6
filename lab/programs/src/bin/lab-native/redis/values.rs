//! The contents that the keys' values must have.

/// Versions of all values; their content follows from them.
pub struct Values {
    versions: Vec<u32>,
    bytes: usize,
}

/// Bytes of a value's header: its key's number and its version.
pub const HEADER_BYTES: usize = 16;

/// Number of words of which [`Values::spot_check`] checks one.
const SPOT_CHECK_STRIDE: usize = 64;

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

    /// Gives the key another value from now on.
    pub fn renew(&mut self, key: usize) {
        self.versions[key] += 1;
    }

    /// The key's present value.
    pub fn content(&self, key: usize) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.bytes);
        for word in self.words(key, self.versions[key]) {
            content.extend_from_slice(&word.to_le_bytes());
        }
        content
    }

    /// Whether a value resembles this version of this key's: a few words of each page, since a load that
    /// checks all of them is slower than the server.
    pub fn spot_check(&self, key: usize, version: u32, value: &[u8]) -> bool {
        let (found, rest) = value.as_chunks::<8>();
        let is = |(at, word): (usize, u64)| found.get(at) == Some(&word.to_le_bytes());
        rest.is_empty()
            && value.len() == self.bytes
            && self.words(key, version).take(2).enumerate().all(is)
            && (2..found.len())
                .step_by(SPOT_CHECK_STRIDE)
                .all(|at| is((at, body(key, version, at as u64))))
    }

    fn words(&self, key: usize, version: u32) -> impl Iterator<Item = u64> {
        let header = [key as u64, u64::from(version)];
        let rest = (2..self.bytes as u64 / 8).map(move |at| body(key, version, at));
        header.into_iter().chain(rest)
    }

    /// Whether a value is this version of this key's, to the byte.
    pub fn is(&self, key: usize, version: u32, value: &[u8]) -> bool {
        let (found, rest) = value.as_chunks::<8>();
        rest.is_empty()
            && value.len() == self.bytes
            && found
                .iter()
                .zip(self.words(key, version))
                .all(|(found, word)| *found == word.to_le_bytes())
    }
}

/// The key's own name.
pub fn name(key: usize) -> Vec<u8> {
    format!("key:{key:08}").into_bytes()
}

/// The word at this place of a value, behind the header.
fn body(key: usize, version: u32, at: u64) -> u64 {
    let seed = (key as u64) << 32 | u64::from(version);
    (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1).wrapping_mul(2 * at + 1)
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
        assert!(values.spot_check(3, 1, &new) && !values.spot_check(3, 0, &new));
        new[16] ^= 1;
        assert!(!values.spot_check(3, 1, &new) && !values.spot_check(3, 1, &new[..88]));
        assert!(!values.is(3, 1, &old[..88]));
    }
}
