//! A resize by the API: the VM is looked at first, so that the order is checked against what is so now.
//!
//! Each wait is short and ends with what is known: a device that hangs keeps nobody waiting but its own keeper.

use std::time::Duration;

use terrace_api::elastic::{Ordered, Resize};
use tokio::time::timeout;

use super::{Asker, Failure};
use crate::elastic::{Origin, Trouble};

/// Orders sizes for a VM, and waits until what resizes it has the order.
pub async fn resize(asker: &Asker, name: String, sizes: Resize) -> Result<Ordered, Failure> {
    let of = name.clone();
    let (looked, patience) = asker.ask(move |d| d.look_elastic(&of)).await?;
    match timeout(patience, looked).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return Err(ended(&name)),
        Err(_) => return Err(hangs(&name, patience, "nothing was ordered")),
    }
    let of = name.clone();
    let given = move |d: &mut dyn super::Served| d.order(&of, Origin::Operator, &sizes);
    let given = asker.ask(given).await?;
    let (number, ticket) = (given.sent.number, given.sent.ticket);
    match timeout(patience, given.sent.answered).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(Trouble::Refused(why)))) => return Err(Failure::Invalid(why)),
        Ok(Ok(Err(Trouble::Gone(why)))) => return Err(Failure::NotNow(why)),
        Ok(Err(_)) => return Err(ended(&name)),
        Err(_) if ticket.withdraw() => {
            let of = name.clone();
            let why = "what resizes it hangs; the order was taken back".to_owned();
            let told = move |d: &mut dyn super::Served| {
                d.order_withdrawn(&of, number, why);
                Ok(())
            };
            asker.ask(told).await?;
            return Err(hangs(&name, patience, "the order was taken back"));
        }
        Err(_) => {
            let so = "it was given the order and may yet carry it out: `terrace show` tells";
            return Err(hangs(&name, patience, so));
        }
    }
    Ok(Ordered {
        done: format!(
            "{name}: {} ordered by {}; `terrace show {name}` tells how far it is",
            given.words, given.by_words
        ),
        number,
        by: given.by.into(),
        by_words: given.by_words,
        size_bytes: given.size_bytes,
    })
}

fn hangs(name: &str, patience: Duration, so: &str) -> Failure {
    let seconds = patience.as_secs_f64();
    Failure::NotNow(format!(
        "{name}: what resizes it has not answered for {seconds:.0} s; {so}"
    ))
}

fn ended(name: &str) -> Failure {
    Failure::NotNow(format!(
        "{name}: the VM is gone, or the thread that looks after its memory ended"
    ))
}
