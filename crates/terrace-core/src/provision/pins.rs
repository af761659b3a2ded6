//! Pins: who may have pinned a VM's memory, so that none may be taken away. That is a device that is passed through,
//! or another process that has the RAM.

use terrace_proto::provision::{Origin, OtherUsers};

/// The state of one way in which memory is pinned.
#[derive(Debug, Default)]
pub(super) struct Pin {
    /// The device or process that pins the memory, in words; `None` if none is known to.
    by: Option<String>,
    /// The reason why that is not known, if it is not.
    unknown: Option<String>,
    /// Whether the pins were reported.
    is_said: bool,
}

impl Pin {
    /// The device or process that pins the memory, in words; `None` if none is known to.
    pub fn by(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// The reason why that is not known, if it is not.
    pub fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    /// Takes in the pinner of the memory, and returns the sentence that is due: that there is one, or that there is
    /// none any more.
    fn seen(
        &mut self,
        seen: Result<Option<&str>, &str>,
        begun: impl Fn(&str) -> String,
        over: &str,
    ) -> Option<String> {
        let said = match seen {
            Ok(Some(who)) if !std::mem::replace(&mut self.is_said, true) => Some(begun(who)),
            Ok(None) if std::mem::take(&mut self.is_said) => Some(over.to_owned()),
            // That it is not known for now is no news.
            _ => None,
        };
        // Unknown does not mean unpinned: both fields are set, and either refuses to shrink a VM.
        self.by = seen.ok().flatten().map(str::to_owned);
        self.unknown = seen.err().map(str::to_owned);
        said
    }
}

/// Both ways in which a VM's memory is pinned.
#[derive(Debug, Default)]
pub(super) struct Pins {
    /// A device that is passed through.
    pub device: Pin,
    /// Another process that has the VM's RAM.
    pub sharer: Pin,
}

impl Pins {
    /// Takes in whether a device is passed through, and returns the sentence that is due. `is_safe`: the mechanism
    /// frees memory that is pinned.
    pub fn device_seen(
        &mut self,
        seen: Result<&Option<String>, &String>,
        is_safe: bool,
    ) -> Option<String> {
        let begun = |device: &str| {
            format!(
                "a device is passed through ({device}), which pins all of its memory: it cannot shrink"
            )
        };
        let over = "no device is passed through any more: it can shrink";
        let said = match seen {
            Ok(Some(_)) if is_safe => None,
            Ok(device) => self.device.seen(Ok(device.as_deref()), begun, over),
            Err(why) => self.device.seen(Err(why), begun, over),
        };
        if is_safe {
            (self.device.by, self.device.unknown) = (None, None);
        }
        said
    }

    /// Takes in who else has the VM's RAM, and returns the sentence that is due.
    pub fn sharer_seen(&mut self, seen: &OtherUsers) -> Option<String> {
        let seen = match seen {
            OtherUsers::Somebody(who) => Ok(Some(who.as_str())),
            OtherUsers::Nobody => Ok(None),
            OtherUsers::Unknown(why) => Err(why.as_str()),
        };
        let begun = |who: &str| format!("{who}, may have pinned it: it cannot shrink");
        let over = "no other process has its RAM any more: it can shrink";
        self.sharer.seen(seen, begun, over)
    }

    /// The reason why targets are held: a device, or another process.
    pub fn holding(&self) -> Origin {
        if self.sharer.by.is_some() {
            Origin::Sharing
        } else {
            Origin::Pinning
        }
    }
}
