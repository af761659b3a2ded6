//! Decompression of zstd files: all frames of a file, one after the other.
//!
//! Responsible for: frames and skippable frames in sequence, the bound on memory, checksums, and errors
//! that say that the data are cut off. The format itself is the `ruzstd` crate's (pure Rust, so that static
//! builds need no C compiler).

use std::io::{self, ErrorKind, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The first bytes of a frame.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Largest window that a frame may ask for: the limit of `zstd` itself without an option.
const MAX_WINDOW: u64 = 128 << 20;

/// The decompressed bytes of all frames of a file.
pub(super) struct Unzstd<R> {
    source: R,
    frame: Option<FrameDecoder>,
    /// Number of decompressed bytes so far, for errors.
    out: u64,
}

impl<R: Read> Unzstd<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            frame: None,
            out: 0,
        }
    }

    fn broken(&self, what: &str) -> io::Error {
        let message = format!(
            "the zstd data are cut off or damaged after {} decompressed bytes: {what}",
            self.out
        );
        io::Error::new(ErrorKind::InvalidData, message)
    }

    /// Opens the next frame; `None` at the end of the file.
    fn next_frame(&mut self) -> io::Result<Option<FrameDecoder>> {
        loop {
            let mut magic = Vec::with_capacity(4);
            self.source.by_ref().take(4).read_to_end(&mut magic)?;
            if magic.is_empty() {
                return Ok(None);
            }
            let Ok(magic) = <[u8; 4]>::try_from(magic.as_slice()) else {
                return Err(self.broken("a frame's first bytes are not all there"));
            };
            if u32::from_le_bytes(magic) & !0xf == 0x184d_2a50 {
                self.skip_frame()?;
                continue;
            }
            if magic != MAGIC {
                return Err(self.broken("what follows is no zstd frame"));
            }
            let header = self.header()?;
            let mut frame = FrameDecoder::new();
            frame
                .init(magic.chain(header.as_slice()))
                .map_err(|e| self.broken(&e.to_string()))?;
            return Ok(Some(frame));
        }
    }

    fn skip_frame(&mut self) -> io::Result<()> {
        let mut length = [0; 4];
        self.source.read_exact(&mut length)?;
        let length = u64::from(u32::from_le_bytes(length));
        let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
        if skipped < length {
            return Err(self.broken("a skippable frame is not all there"));
        }
        Ok(())
    }

    /// Reads the header after the first bytes (RFC 8878, 3.1.1.1), and checks its window.
    fn header(&mut self) -> io::Result<Vec<u8>> {
        let mut first = [0; 1];
        if self.source.read_exact(&mut first).is_err() {
            return Err(self.broken("a frame's header is not all there"));
        }
        let flags = first[0];
        let single_segment = flags & 0x20 != 0;
        let window = usize::from(!single_segment);
        let dictionary = [0, 1, 2, 4][usize::from(flags & 3)];
        let content = match flags >> 6 {
            0 => usize::from(single_segment),
            size => 1 << size,
        };
        let mut rest = vec![0; window + dictionary + content];
        if self.source.read_exact(&mut rest).is_err() {
            return Err(self.broken("a frame's header is not all there"));
        }
        let asked = if single_segment {
            let mut size = [0; 8];
            size[..content].copy_from_slice(&rest[dictionary..]);
            u64::from_le_bytes(size)
        } else {
            let base = 1_u64 << (10 + (rest[0] >> 3));
            base + base / 8 * u64::from(rest[0] & 7)
        };
        if asked > MAX_WINDOW {
            return Err(self.broken(&format!(
                "a frame asks for a window of {asked} bytes, at most {MAX_WINDOW} are given"
            )));
        }
        rest.insert(0, flags);
        Ok(rest)
    }
}

impl<R: Read> Read for Unzstd<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        loop {
            let mut frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.next_frame()? {
                    Some(frame) => frame,
                    None => return Ok(0),
                },
            };
            while frame.can_collect() == 0 && !frame.is_finished() {
                frame
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|e| self.broken(&e.to_string()))?;
            }
            let got = frame.read(to)?;
            self.out += got as u64;
            if got > 0 {
                self.frame = Some(frame);
                return Ok(got);
            }
            let stored = frame.get_checksum_from_data();
            if stored.is_some() && stored != frame.get_calculated_checksum() {
                return Err(self.broken("the checksum of a frame is wrong"));
            }
        }
    }
}
