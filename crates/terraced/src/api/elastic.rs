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
    let look = move |d: &mut dyn super::Served| {
        d.entry(&of)?;
        d.look_elastic(&of)
    };
    let (looked, patience) = asker.ask(look).await?;
    match timeout(patience, looked).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return Err(ended(&name)),
        Err(_) => return Err(hangs(asker, &name, patience, "nothing was ordered").await),
    }
    let of = name.clone();
    let given = move |d: &mut dyn super::Served| d.order(&of, Origin::Operator, &sizes);
    let given = asker.ask(given).await?;
    let (number, ticket) = (given.sent.number, given.sent.ticket);
    match timeout(patience, given.sent.answered).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(Trouble::Refused(why)))) => return Err(Failure::Invalid(why)),
        Ok(Ok(Err(Trouble::Gone(why) | Trouble::Nothing(why)))) => {
            return Err(Failure::NotNow(why));
        }
        Ok(Err(_)) => return Err(ended(&name)),
        Err(_) if ticket.withdraw() => {
            let of = name.clone();
            let why = "what resizes it hangs; the order was taken back".to_owned();
            let told = move |d: &mut dyn super::Served| {
                d.order_withdrawn(&of, number, why);
                Ok(())
            };
            asker.ask(told).await?;
            return Err(hangs(asker, &name, patience, "the order was taken back").await);
        }
        Err(_) => {
            let so = "it was given the order and may yet carry it out: `terrace show` tells";
            return Err(hangs(asker, &name, patience, so).await);
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

async fn hangs(asker: &Asker, name: &str, patience: Duration, so: &str) -> Failure {
    let of = name.to_owned();
    let elastic = match asker.ask(move |d| Ok(d.elastic(&of))).await {
        Ok(elastic) => elastic.unwrap_or_default(),
        Err(failure) => return failure,
    };
    let by = match elastic.by_words.as_str() {
        "" => "what resizes it".to_owned(),
        words => format!("{words} ({})", elastic.at),
    };
    let seconds = patience.as_secs_f64();
    Failure::NotNow(format!(
        "{name}: {by} hangs: no answer for {seconds:.1} s; {so}. `terrace show {name}` has what was seen last"
    ))
}

fn ended(name: &str) -> Failure {
    Failure::NotNow(format!(
        "{name}: the VM is gone, or the thread that looks after its memory ended"
    ))
}
