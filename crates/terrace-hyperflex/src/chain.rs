//! From a chain of descriptors, which a guest may have made in any shape, to bytes of bounded size.

use std::ops::Deref;

use virtio_queue::DescriptorChain;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes as _, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

use crate::abi::ANSWER_BYTES;

/// A chain of a form that the device does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The part of a chain that the device can write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writable {
    /// Address and bytes of each buffer.
    pub buffers: Vec<(GuestAddress, u32)>,
}

/// Reads the driver's bytes into `bytes`, at most `most` of them, and returns the place of the answer, if there is one.
///
/// # Errors
/// If the chain does not end, a buffer to write stands before one to read, there is more than one buffer to
/// write or it is not of the answer's size, there is too much, or memory is not there.
pub fn request<M>(
    chain: DescriptorChain<M>,
    memory: &GuestMemoryMmap,
    most: usize,
    bytes: &mut Vec<u8>,
) -> Result<Option<GuestAddress>, Malformed>
where
    M: Deref,
    M::Target: GuestMemory,
{
    bytes.clear();
    let mut answer = None;
    for_each(chain, |descriptor| {
        let len = usize::try_from(descriptor.len()).map_err(|_| Malformed)?;
        if descriptor.is_write_only() {
            // Looked at before any page is taken: a chain that cannot be answered has nothing done.
            let fits = len == ANSWER_BYTES && answer.is_none();
            if !fits || !memory.check_range(descriptor.addr(), len, Permissions::Write) {
                return Err(Malformed);
            }
            answer = Some(descriptor.addr());
            return Ok(());
        }
        let at = bytes.len();
        // The length is the guest's word, up to 4 GiB: it is bounded before anything is allocated for it.
        if answer.is_some() || len > most - at {
            return Err(Malformed);
        }
        // Copied, and read once: the bytes that are checked are the bytes that are used, even if the guest writes to
        // the buffer meanwhile.
        bytes.resize(at + len, 0);
        let slot = bytes.get_mut(at..).ok_or(Malformed)?;
        memory
            .read_slice(slot, descriptor.addr())
            .map_err(|_| Malformed)
    })?;
    Ok(answer)
}

/// The buffers of a chain that the device writes to, which has no others.
///
/// # Errors
/// If the chain does not end, has buffers to read, or memory is not there.
pub fn writable<M>(
    chain: DescriptorChain<M>,
    memory: &GuestMemoryMmap,
) -> Result<Writable, Malformed>
where
    M: Deref,
    M::Target: GuestMemory,
{
    let mut buffers = Vec::new();
    for_each(chain, |descriptor| {
        let len = usize::try_from(descriptor.len()).map_err(|_| Malformed)?;
        // No message to the driver is in more pieces than this.
        let few = buffers.len() < 16;
        // All of it is checked here, so that nothing is written in part.
        if !few
            || !descriptor.is_write_only()
            || !memory.check_range(descriptor.addr(), len, Permissions::Write)
        {
            return Err(Malformed);
        }
        buffers.push((descriptor.addr(), descriptor.len()));
        Ok(())
    })?;
    Ok(Writable { buffers })
}

impl Writable {
    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// If there is not enough room.
    pub fn write(&self, memory: &GuestMemoryMmap, mut bytes: &[u8]) -> Result<(), Malformed> {
        let room: u64 = self.buffers.iter().map(|(_, len)| u64::from(*len)).sum();
        if room < bytes.len() as u64 {
            return Err(Malformed);
        }
        for (at, len) in &self.buffers {
            let n = usize::try_from(*len).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(n);
            memory.write_slice(now, *at).map_err(|_| Malformed)?;
            bytes = rest;
        }
        Ok(())
    }
}

/// All descriptors; the iterator of a chain ends silently if one leads nowhere or round in circles.
fn for_each<M>(
    chain: DescriptorChain<M>,
    mut each: impl FnMut(&Descriptor) -> Result<(), Malformed>,
) -> Result<(), Malformed>
where
    M: Deref,
    M::Target: GuestMemory,
{
    let mut ended = false;
    for descriptor in chain {
        ended = !descriptor.has_next();
        each(&descriptor)?;
    }
    // A last descriptor that names a next one means that the iterator gave up: part of the chain was not read.
    if ended { Ok(()) } else { Err(Malformed) }
}
