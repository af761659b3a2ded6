//! Lines of valgrind's lackey (`valgrind --tool=lackey --trace-mem=yes`): `I  ADDR,SIZE` for an
//! instruction, ` L ADDR,SIZE`, ` S ADDR,SIZE`, ` M ADDR,SIZE` for data; the address is hexadecimal.

use super::{Op, Record};

/// Most bytes of one access: no instruction touches more (the largest, `xsave`, some 11 KiB).
const MAX_BYTES: u32 = 64 << 10;

/// The form of a line.
pub(super) const EXPECTED: &str = "lackey's ` L ADDR,SIZE`, ` S ADDR,SIZE` or ` M ADDR,SIZE` \
     (address hexadecimal, size 1 to 65536)";

/// The access of a line; `None` if it has none (instructions, empty lines, valgrind's own words), an error if it is
/// not a line of lackey.
pub(super) fn parse(line: &[u8]) -> Result<Option<Record>, &'static str> {
    if is_chatter(line) {
        return Ok(None);
    }
    let (op, addr, bytes) = fields(line).ok_or(EXPECTED)?;
    if bytes == 0 || bytes > MAX_BYTES {
        return Err("a size of 1 to 65536 bytes");
    }
    if addr.checked_add(u64::from(bytes) - 1).is_none() {
        return Err("an access that ends within 64 bits of address");
    }
    Ok(op.map(|op| Record {
        addr,
        bytes,
        op,
        time_ns: None,
    }))
}

/// Whether only lackey writes such a line.
pub(super) fn is_typical(line: &[u8]) -> bool {
    fields(line).is_some()
}

/// Whether a line is empty or one of valgrind's own: `==PID== …`, `--PID-- …`, `**PID** …`.
pub(super) fn is_chatter(line: &[u8]) -> bool {
    match line {
        [b'=', b'=', digit, ..] | [b'-', b'-', digit, ..] | [b'*', b'*', digit, ..] => {
            digit.is_ascii_digit()
        }
        _ => line.iter().all(|b| *b == b' '),
    }
}

/// The operation (`None` for an instruction), the address and the size.
fn fields(line: &[u8]) -> Option<(Option<Op>, u64, u32)> {
    let mut rest = after_spaces(line);
    let (&letter, after) = rest.split_first()?;
    let op = match letter {
        b'L' => Some(Op::Load),
        b'S' => Some(Op::Store),
        b'M' => Some(Op::Modify),
        b'I' => None,
        _ => return None,
    };
    rest = after_spaces(after);
    if rest.len() == after.len() {
        return None;
    }
    let comma = rest.iter().position(|b| *b == b',')?;
    let addr = hexadecimal(&rest[..comma])?;
    let bytes = decimal(&rest[comma + 1..])?;
    Some((op, addr, bytes))
}

fn after_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|b| **b == b' ').count();
    &text[spaces..]
}

/// A number of at most 16 significant hexadecimal digits.
pub(super) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for digit in digits {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        if value >> 60 != 0 {
            return None;
        }
        value = value << 4 | u64::from(digit);
    }
    (!digits.is_empty()).then_some(value)
}

fn decimal(digits: &[u8]) -> Option<u32> {
    let mut value = 0_u32;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value
            .checked_mul(10)?
            .checked_add(u32::from(digit - b'0'))?;
    }
    (!digits.is_empty()).then_some(value)
}
