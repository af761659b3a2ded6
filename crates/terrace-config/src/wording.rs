//! Values of which a wrong one is answered in the words of an operator, not in those of the parser.

use std::fmt;

use serde::de::{Error, IntoDeserializer as _, Visitor};
use serde::{Deserialize, Deserializer};

/// A whole number up to a greatest one, which the text describes.
struct Whole {
    most: u64,
    text: &'static str,
}

impl Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        let number = u64::try_from(value).ok().filter(|n| *n <= self.most);
        number.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        match value <= self.most {
            true => Ok(value),
            false => Err(E::invalid_value(
                serde::de::Unexpected::Unsigned(value),
                &self,
            )),
        }
    }
}

/// A share in percent.
pub(crate) fn percent<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    let value = from.deserialize_any(Whole {
        most: 100,
        text: "a whole number of percent, such as 5",
    })?;
    u8::try_from(value).map_err(D::Error::custom)
}

/// A time in milliseconds.
pub(crate) fn ms<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Whole {
        most: u64::MAX,
        text: "a whole number of milliseconds without a unit, such as 5000",
    })
}

/// One of some words.
fn word<'de, D, T>(from: D, text: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Word(&'static str);
    impl Visitor<'_> for Word {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
            Ok(value.to_owned())
        }
    }
    let word = from.deserialize_any(Word(text))?;
    T::deserialize(word.into_deserializer())
}

/// The mode of balancing.
pub(crate) fn mode<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    word(from, "\"off\", \"observe\" or \"on\", in quotation marks")
}

/// The rule of balancing.
pub(crate) fn share<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    word(from, "\"dp\", \"fair\" or \"trade\", in quotation marks")
}

/// A switch.
pub(crate) fn switch<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    struct Switch;
    impl Visitor<'_> for Switch {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true or false, without quotation marks")
        }

        fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
            Ok(value)
        }
    }
    from.deserialize_any(Switch).map(Some)
}
