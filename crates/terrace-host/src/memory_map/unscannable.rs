//! The reasons why a guest's RAM cannot be scanned, and what to change.

/// The reason why a guest's RAM cannot be scanned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unscannable {
    /// Only QEMU sees it.
    #[error("guest RAM '{0}' is private to QEMU; {help}", help = share_on())]
    PrivateRam(String),
    /// QEMU itself may not write it, so no other process does on its behalf.
    #[error("guest RAM '{0}' is not mapped for reading and writing by QEMU; {help}", help = share_on())]
    NotWritable(String),
    /// Shared, but no file stands for it.
    #[error(
        "guest RAM '{0}' is shared but QEMU holds no descriptor for it that is open for reading and writing; \
         {help}",
        help = share_on()
    )]
    NoDescriptor(String),
    /// Huge pages from hugetlbfs do not move one by one.
    #[error(
        "guest RAM '{0}' comes from hugetlbfs, whose pages only move if free ones were reserved on the target \
         node; use a memory-backend-file on tmpfs (mem-path=/dev/shm/NAME,align=2M) with transparent \
         huge pages instead"
    )]
    Hugetlbfs(String),
    /// The guest's memory is encrypted: the bytes that the host reads are no page tables.
    #[error(
        "guest memory is encrypted ({0}): the host can neither read its page tables nor move its pages; \
         let the guest place its own pages, or leave this VM alone"
    )]
    Encrypted(String),
    /// A device reads and writes the RAM by itself.
    #[error(
        "a device is passed through ({0}), which pins all guest RAM: no page can move; take the device \
         out (-device vfio-pci, libvirt <hostdev>) or leave this VM alone"
    )]
    Vfio(String),
}

impl Unscannable {
    /// Whether the RAM is there all the same, to be watched and moved by its address.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        matches!(self, Self::PrivateRam(_) | Self::NoDescriptor(_))
    }
}

fn share_on() -> &'static str {
    "start it with -object memory-backend-memfd,id=ram,size=SIZE,share=on (or memory-backend-file on \
     tmpfs: mem-path=/dev/shm/NAME,share=on,align=2M) and -machine memory-backend=ram; libvirt: \
     <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
}
