//! Addresses and page numbers, one type for each address space, so that mixing two does not compile.

use std::fmt;

use serde::{Deserialize, Serialize};

/// log2 of the base page size.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes of a base page (4 KiB).
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// Base pages in a 2 MiB page.
pub const PAGES_PER_HUGE: u64 = 512;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

number!(
    /// Guest physical address, bytes.
    Gpa
);
number!(
    /// Guest virtual address, bytes.
    Gva
);
number!(
    /// Host virtual address in the hypervisor's process, bytes.
    Hva
);
number!(
    /// Guest page number: a guest physical address in units of 4 KiB.
    Gfn
);
number!(
    /// Virtual page number of one process, in units of 4 KiB.
    Vpn
);

impl Gpa {
    /// The guest page that holds this address.
    #[must_use]
    pub fn gfn(self) -> Gfn {
        Gfn(self.0 >> PAGE_SHIFT)
    }
}

impl Gfn {
    /// First byte of this page.
    #[must_use]
    pub fn gpa(self) -> Gpa {
        Gpa(self.0 << PAGE_SHIFT)
    }

    /// The 2 MiB block (number) that this page is part of.
    #[must_use]
    pub fn huge_block(self) -> u64 {
        self.0 / PAGES_PER_HUGE
    }
}

/// Size of a page or of a page-table leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PageSize {
    /// 4 KiB.
    #[serde(rename = "4KiB")]
    Base,
    /// 2 MiB (THP or hugetlb).
    #[serde(rename = "2MiB")]
    Huge,
}

impl PageSize {
    /// Base pages in one page of this size.
    #[must_use]
    pub fn base_pages(self) -> u64 {
        match self {
            Self::Base => 1,
            Self::Huge => PAGES_PER_HUGE,
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.base_pages() * PAGE_SIZE
    }
}
