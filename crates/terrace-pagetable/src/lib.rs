//! x86-64 page-table walker and accessed-bit scanner over any guest memory.
