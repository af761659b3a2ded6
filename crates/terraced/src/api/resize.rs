//! A resize by the API: one question to the daemon's thread, and the engine's one answer to it, which comes in
//! bounded time even if the VM's provider hangs.

use terrace_api::provision::{Ordered, Resize};
use terrace_proto::provision::Origin;

use super::asker::Asker;
use super::failure::Failure;
use crate::served::Served;

/// Orders sizes for a VM, and waits until the VM's provider has the order.
pub async fn resize(asker: &Asker, name: String, sizes: Resize) -> Result<Ordered, Failure> {
    let of = name.clone();
    let want = move |d: &mut dyn Served| {
        let vm = d.known(&of)?;
        Ok(d.resize(vm, Origin::Operator, &sizes)?)
    };
    let answered = asker.ask(want).await?;
    let ended = |_| {
        Failure::NotNow(format!(
            "{name}: the VM is gone, or the thread of its provider ended"
        ))
    };
    Ok(answered.await.map_err(ended)??)
}
