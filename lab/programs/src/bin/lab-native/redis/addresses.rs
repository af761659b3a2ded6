//! Addresses of some keys' values in redis-server's memory.
//!
//! `DEBUG OBJECT` shows a key's object; the object holds a pointer to the value's bytes. Both are read from the
//! process's memory, and the bytes must be those of the key's present value: nothing rests on beliefs about redis'
//! structures.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use terrace_lab_programs::pages::{PAGE_SIZE, coalesce};

use super::client::Client;
use super::values::{self, HEADER_BYTES, Values};

/// Offset of the pointer to its value in an object (`robj`).
const POINTER_OFFSET: u64 = 8;

/// The server's process id and the virtual page numbers of the values.
pub fn of(client: &mut Client, values: &Values, keys: &[u32]) -> Result<Value> {
    let pid = server_pid(client)?;
    let path = format!("/proc/{pid}/mem");
    let memory = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    let mut pages = Vec::new();
    for batch in keys.chunks(64) {
        for key in batch {
            let name = values::name(usize::try_from(*key)?);
            client.send(&[b"DEBUG", b"OBJECT", &name])?;
        }
        for key in batch {
            let object = object_address(&client.simple()?)?;
            let start = value_address(&memory, object, usize::try_from(*key)?, values)?;
            let end = start + values.bytes() as u64;
            let page = PAGE_SIZE as u64;
            pages.extend(start / page..end.div_ceil(page));
        }
    }
    let ranges = coalesce(pages);
    let hot = terrace_lab_programs::pages::total(&ranges);
    Ok(json!({ "pid": pid, "hot": hot, "ranges": ranges }))
}

fn server_pid(client: &mut Client) -> Result<i32> {
    client.send(&[b"INFO", b"server"])?;
    let info = String::from_utf8_lossy(client.bulk()?);
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    Ok(pid.context("INFO names no process_id")?.trim().parse()?)
}

/// The object's address in `Value at:0x7f… refcount:1 …`.
fn object_address(answer: &str) -> Result<u64> {
    let hex = answer
        .strip_prefix("Value at:0x")
        .and_then(|rest| rest.split(' ').next())
        .and_then(|word| u64::from_str_radix(word, 16).ok());
    hex.with_context(|| format!("no address in what DEBUG OBJECT answered: {answer:?}"))
}

fn value_address(memory: &File, object: u64, key: usize, values: &Values) -> Result<u64> {
    let mut pointer = [0; 8];
    memory
        .read_exact_at(&mut pointer, object + POINTER_OFFSET)
        .context("reading an object of redis-server")?;
    let address = u64::from_le_bytes(pointer);
    let mut header = [0; HEADER_BYTES];
    memory
        .read_exact_at(&mut header, address)
        .context("reading a value of redis-server")?;
    ensure!(
        values.content(key)[..HEADER_BYTES] == header,
        "what DEBUG OBJECT leads to is not the value of key {key}"
    );
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_an_object_is_read_from_redis_words() {
        let answer = "Value at:0x7ffff6c0e5c0 refcount:1 encoding:raw serializedlength:9";
        assert_eq!(object_address(answer).unwrap(), 0x7fff_f6c0_e5c0);
        assert!(object_address("Value at:nowhere").is_err());
    }
}
