//! Redis' protocol (RESP2), as much of it as a load needs.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};

/// Longest value that a server may answer with.
const MAX_BYTES: usize = 1 << 24;

/// A connection to the server. Requests leave with the next read.
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: BufWriter<UnixStream>,
    /// The value that was read last: a fresh one each time would have to be zeroed.
    value: Vec<u8>,
}

impl Client {
    pub fn connect(path: &str) -> Result<Self> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("no redis-server answers on {path}"))?;
        Ok(Self {
            reader: BufReader::with_capacity(256 << 10, stream.try_clone()?),
            writer: BufWriter::with_capacity(256 << 10, stream),
            value: Vec::new(),
        })
    }

    pub fn send(&mut self, args: &[&[u8]]) -> Result<()> {
        write!(self.writer, "*{}\r\n", args.len())?;
        for word in args {
            write!(self.writer, "${}\r\n", word.len())?;
            self.writer.write_all(word)?;
            self.writer.write_all(b"\r\n")?;
        }
        Ok(())
    }

    pub fn expect_ok(&mut self) -> Result<()> {
        match self.simple()?.as_str() {
            "OK" => Ok(()),
            other => bail!("redis-server answered {other:?} instead of OK"),
        }
    }

    /// A line of text, such as the answer of `DEBUG OBJECT`.
    pub fn simple(&mut self) -> Result<String> {
        let line = self.line()?;
        match line.strip_prefix('+') {
            Some(text) => Ok(text.to_owned()),
            None => bail!("redis-server answered {line:?}"),
        }
    }

    pub fn integer(&mut self) -> Result<u64> {
        let line = self.line()?;
        let number = line.strip_prefix(':').and_then(|text| text.parse().ok());
        number.with_context(|| format!("redis-server answered {line:?} instead of a number"))
    }

    /// A value; a key that is not there has none, which is an error here.
    pub fn bulk(&mut self) -> Result<&[u8]> {
        self.bulk_if_there()?.context("redis-server lost a key")
    }

    /// A value, if the key is there.
    pub fn bulk_if_there(&mut self) -> Result<Option<&[u8]>> {
        let line = self.line()?;
        if line == "$-1" {
            return Ok(None);
        }
        let length = line.strip_prefix('$').and_then(|n| n.parse::<usize>().ok());
        let Some(length) = length.filter(|length| *length <= MAX_BYTES) else {
            bail!("redis-server answered {line:?} instead of a value");
        };
        self.value.resize(length + 2, 0);
        self.reader.read_exact(&mut self.value)?;
        Ok(Some(&self.value[..length]))
    }

    fn line(&mut self) -> Result<String> {
        self.writer.flush()?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(text) => Ok(text.to_owned()),
            None => bail!("redis-server closed the connection"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_each_kind_are_read_in_turn() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs
            .write_all(b"+OK\r\n$4\r\na\r\nb\r\n:7\r\n+Value at:0x10\r\n-ERR no\r\n$-1\r\n$-1\r\n")
            .unwrap();
        let mut client = Client {
            reader: BufReader::new(ours.try_clone().unwrap()),
            writer: BufWriter::new(ours),
            value: Vec::new(),
        };
        client.send(&[b"GET", b"key"]).unwrap();
        client.expect_ok().unwrap();
        let mut sent = [0; 22];
        theirs.read_exact(&mut sent).unwrap();
        assert_eq!(&sent, b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
        assert_eq!(client.bulk().unwrap(), b"a\r\nb");
        assert_eq!(client.integer().unwrap(), 7);
        assert_eq!(client.simple().unwrap(), "Value at:0x10");
        assert!(client.expect_ok().is_err());
        assert_eq!(client.bulk_if_there().unwrap(), None);
        assert!(client.bulk().is_err());
        drop(theirs);
        assert!(client.simple().is_err());
    }
}
