//! Arguments of `terrace mrc`.

use std::path::PathBuf;

use bytesize::ByteSize;

use super::trace::Input;

/// The largest hot set, pages: sizes up to twice as many are counted in 32 bits.
const MAX_HOT_SET: u32 = u32::MAX / 2;

/// Arguments of `terrace mrc`.
#[derive(Debug, clap::Args)]
pub struct Mrc {
    #[command(flatten)]
    pub input: Input,
    /// Size of a page: 4KiB or 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = page_bytes)]
    pub page: u64,
    /// Estimate the curve from the accesses to at most 8,192 of the pages, chosen by hash.
    #[arg(long, conflicts_with_all = ["hot_set", "compare"])]
    pub sampled: bool,
    /// Restore the curve from the accesses to pages outside a hot set of so many pages, as protection faults show them.
    #[arg(long, value_name = "PAGES", value_parser = hot_set_pages)]
    pub hot_set: Option<u32>,
    /// Put the exact, the restored and the sampled curve side by side. The hot set is 250 pages of 2 MiB, or 5 % of the
    /// touched pages of 4 KiB, unless --hot-set gives another size.
    #[arg(long)]
    pub compare: bool,
    /// Say what is missed with so much memory, or with each of several sizes: 1GiB,2GiB.
    #[arg(long, value_name = "SIZE[,SIZE]", value_delimiter = ',', value_parser = super::bytes)]
    pub at: Vec<ByteSize>,
    /// Also write JSON to this file; `-` for standard output, instead of the text.
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Also draw the curve as a picture (SVG) in this file; `-` for standard output, instead of the text.
    #[arg(long, value_name = "OUT")]
    pub svg: Option<PathBuf>,
}

fn hot_set_pages(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pages @ 1..=MAX_HOT_SET) => Ok(pages),
        Ok(_) | Err(_) => Err(format!(
            "a hot set is a number of pages from 1 to {MAX_HOT_SET}, not a size"
        )),
    }
}

fn page_bytes(text: &str) -> Result<u64, String> {
    match text {
        "4KiB" => Ok(4 << 10),
        "2MiB" => Ok(2 << 20),
        _ => Err("pages are 4KiB or 2MiB".into()),
    }
}
