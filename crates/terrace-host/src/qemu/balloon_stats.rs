//! The statistics that a balloon's driver reports to QEMU (`guest-stats` of `virtio-balloon`).
//!
//! QEMU asks the guest for them while `guest-stats-polling-interval` is not 0, which is its default. Its answer is
//! untrusted: the guest wrote the values, and QEMU passes them on.

use qapi::{ExecuteError, qmp};
use serde::Deserialize;
use serde_json::Value;
use terrace_proto::printable::excerpt;

use super::{Monitor, QemuError};

/// Folders of QEMU's object tree that hold devices, with an id and without.
const FOLDERS: [&str; 2] = ["/machine/peripheral", "/machine/peripheral-anon"];

/// Longest path of an object that is asked.
const MAX_PATH: usize = 256;

/// The statistics of a guest; `None`: not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestStats {
    /// Time of the last report by QEMU's clock, s; 0: the driver never reported.
    pub last_update: u64,
    /// Memory that nobody uses, bytes.
    pub free_bytes: Option<u64>,
    /// Memory that can be had without swapping, bytes.
    pub available_bytes: Option<u64>,
    /// Page cache, bytes.
    pub cache_bytes: Option<u64>,
    /// All memory, bytes.
    pub total_bytes: Option<u64>,
    /// Major faults.
    pub major_faults: Option<u64>,
    /// Bytes swapped in.
    pub swapped_in_bytes: Option<u64>,
    /// Bytes swapped out.
    pub swapped_out_bytes: Option<u64>,
}

/// The settings of a balloon with which the VM was started; `None`: this QEMU does not know the setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalloonSetup {
    /// The guest may take memory back before it kills a program for want of it.
    pub deflates_on_oom: Option<bool>,
    /// The guest reports its free pages, and QEMU gives them back to the host.
    pub reports_free_pages: Option<bool>,
}

impl GuestStats {
    /// The statistics of QEMU's answer. A value of another form than expected is one that was not reported.
    #[must_use]
    pub fn of(answer: &Value) -> Self {
        let stat = |name: &str| number(&answer["stats"][name]);
        Self {
            last_update: number(&answer["last-update"]).unwrap_or(0),
            free_bytes: stat("stat-free-memory"),
            available_bytes: stat("stat-available-memory"),
            cache_bytes: stat("stat-disk-caches"),
            total_bytes: stat("stat-total-memory"),
            major_faults: stat("stat-major-faults"),
            swapped_in_bytes: stat("stat-swap-in"),
            swapped_out_bytes: stat("stat-swap-out"),
        }
    }
}

/// A value that was reported: QEMU has -1, as a signed or an unsigned number, for the others.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().filter(|value| i64::try_from(*value).is_ok())
}

/// An object of QEMU's tree, with its type.
#[derive(Deserialize)]
struct Object {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Object {
    fn is_balloon(&self) -> bool {
        self.kind.starts_with("child<virtio-balloon")
    }

    /// The path below a folder, if it is one to ask: no name leads elsewhere.
    fn path(&self, folder: &str) -> Option<String> {
        let path = format!("{folder}/{}", self.name);
        let is_plain = !self.name.is_empty() && !self.name.contains('/');
        (is_plain && path.len() <= MAX_PATH).then_some(path)
    }
}

impl Monitor {
    /// The path of the VM's balloon in QEMU's object tree; `None` if there is no balloon.
    ///
    /// # Errors
    /// If QEMU does not answer; so for all that follow.
    pub fn balloon_path(&mut self) -> Result<Option<String>, QemuError> {
        for folder in FOLDERS {
            let command = qmp::qom_list {
                path: folder.into(),
            };
            let list = match self.try_execute(&super::readings::Loose(command))? {
                Ok(list) => list,
                // A machine without such a folder.
                Err(ExecuteError::Qapi(_)) => continue,
                Err(error) => return Err(self.failed("qom-list", error)),
            };
            let objects = list.as_array().into_iter().flatten();
            let objects = objects.filter_map(|object| Object::deserialize(object).ok());
            let mut balloons = objects.filter(Object::is_balloon);
            if let Some(path) = balloons.find_map(|balloon| balloon.path(folder)) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// The guest's statistics by its balloon's driver; `None` if the driver never reported, or QEMU has no such property.
    pub fn guest_stats(&mut self, balloon: &str) -> Result<Option<GuestStats>, QemuError> {
        let answer = self.property(balloon, "guest-stats")?;
        let stats = answer.map(|answer| GuestStats::of(&answer));
        Ok(stats.filter(|stats| stats.last_update > 0))
    }

    /// The settings of a balloon.
    pub fn balloon_setup(&mut self, balloon: &str) -> Result<BalloonSetup, QemuError> {
        let mut flag = |name| {
            let answer = self.property(balloon, name)?;
            Ok(answer.and_then(|answer| answer.as_bool()))
        };
        Ok(BalloonSetup {
            deflates_on_oom: flag("deflate-on-oom")?,
            reports_free_pages: flag("free-page-reporting")?,
        })
    }

    /// Time between two requests of QEMU for statistics, s; 0: QEMU does not ask. `None` if there is no such property.
    pub fn stats_interval(&mut self, balloon: &str) -> Result<Option<u64>, QemuError> {
        let answer = self.property(balloon, "guest-stats-polling-interval")?;
        Ok(answer.and_then(|answer| answer.as_u64()))
    }

    /// Sets how often QEMU asks the guest for statistics, s; 0: never.
    pub fn set_stats_interval(&mut self, balloon: &str, seconds: u64) -> Result<(), QemuError> {
        let command = qmp::qom_set {
            path: balloon.into(),
            property: "guest-stats-polling-interval".into(),
            value: seconds.into(),
        };
        let name = format!(
            "qom-set {}.guest-stats-polling-interval={seconds}",
            excerpt(balloon, MAX_PATH)
        );
        self.execute(&name, &command).map(drop)
    }

    fn property(&mut self, path: &str, property: &str) -> Result<Option<Value>, QemuError> {
        let command = qmp::qom_get {
            path: path.into(),
            property: property.into(),
        };
        match self.try_execute(&command)? {
            Ok(value) => Ok(Some(value)),
            Err(ExecuteError::Qapi(_)) => Ok(None),
            Err(error) => Err(self.failed("qom-get", error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_were_not_reported_are_none() {
        let stats = GuestStats::of(&json!({
            "last-update": 1_700_000_000_u64,
            "stats": {
                "stat-free-memory": 5 << 20,
                "stat-available-memory": -1,
                "stat-disk-caches": u64::MAX,
                "stat-total-memory": "512M",
                "stat-major-faults": 1.5,
                "stat-swap-in": null,
            },
        }));
        let expected = GuestStats {
            last_update: 1_700_000_000,
            free_bytes: Some(5 << 20),
            ..GuestStats::default()
        };
        assert_eq!(stats, expected);
    }

    #[test]
    fn an_answer_of_another_form_is_no_statistics() {
        for answer in [
            json!(null),
            json!([1]),
            json!("x"),
            json!({"stats": 3, "last-update": -4}),
        ] {
            assert_eq!(GuestStats::of(&answer), GuestStats::default());
        }
    }

    #[test]
    fn no_name_of_an_object_leads_elsewhere() {
        let path = |name: &str| {
            let kind = "child<virtio-balloon-pci>".into();
            let object = Object {
                name: name.into(),
                kind,
            };
            assert!(object.is_balloon());
            object.path(FOLDERS[0])
        };
        assert_eq!(path("b0").as_deref(), Some("/machine/peripheral/b0"));
        assert_eq!(
            path("device[1]").as_deref(),
            Some("/machine/peripheral/device[1]")
        );
        for wrong in ["", "../x", "a/b", &"x".repeat(300)] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }
}
