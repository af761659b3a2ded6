//! JSON keys that were renamed. Answers have each under its old name too, and answers of an older daemon are
//! understood, for one version.

use serde::Serialize;
use serde_json::{Map, Value};

/// The new name and the old one.
const RENAMED: [(&str, &str); 5] = [
    ("provisioning", "elastic"),
    ("by_name", "by_words"),
    ("targets_sent", "told"),
    ("verified_ratio", "honesty"),
    ("retained_bytes", "kept_bytes"),
];

/// A value as JSON that has renamed keys under both names.
///
/// # Errors
/// If the value has no JSON form.
pub fn with_old<T: Serialize>(value: &T) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(value)?;
    each_object(&mut value, &|members| {
        for (new, old) in RENAMED {
            if let Some(value) = members.get(new).cloned() {
                members.insert(old.to_owned(), value);
            }
        }
    });
    Ok(value)
}

/// Gives keys their new names. Values are moved, not copied: a daemon that was taken over could nest old keys so that
/// each level doubled the answer.
pub fn rename(value: &mut Value) {
    each_object(value, &|members| {
        for (new, old) in RENAMED {
            if let Some(value) = members.remove(old) {
                members.entry(new).or_insert(value);
            }
        }
    });
}

/// Changes every object of a value, the inner ones first.
fn each_object(value: &mut Value, change: &impl Fn(&mut Map<String, Value>)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_object(item, change)),
        Value::Object(members) => {
            members
                .values_mut()
                .for_each(|member| each_object(member, change));
            change(members);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn renamed_keys_stand_under_both_names() {
        let new = json!({"vm": "web1", "provisioning": {"targets_sent": true, "tiers": [{"verified_ratio": 0.5}]}});
        let both = with_old(&new).unwrap();
        assert_eq!(both["elastic"], both["provisioning"]);
        assert_eq!(both["elastic"]["told"], true);
        assert_eq!(both["elastic"]["tiers"][0]["honesty"], 0.5);
    }

    #[test]
    fn an_answer_of_an_older_daemon_is_understood() {
        let mut old = json!({"elastic": {"told": true, "by_words": "HyperFlex"}});
        rename(&mut old);
        assert_eq!(
            old,
            json!({"provisioning": {"targets_sent": true, "by_name": "HyperFlex"}})
        );
        let mut both = json!({"told": false, "targets_sent": true});
        rename(&mut both);
        assert_eq!(both, json!({"targets_sent": true}));
    }

    #[test]
    fn old_keys_nested_by_a_hostile_daemon_do_not_multiply() {
        let depth = 100;
        let text = "{'elastic':".replace('\'', "\"").repeat(depth) + "1" + &"}".repeat(depth);
        let mut value = serde_json::from_str(&text).unwrap();
        rename(&mut value);
        assert_eq!(value.to_string().matches("provisioning").count(), depth);
    }

    #[test]
    fn more_tiers_than_a_vm_has_are_not_read() {
        use terrace_proto::provision::{MAX_TIERS, ProvisioningStatus};
        let of = |tiers| json!({"elastic": null, "tiers": vec![json!({}); tiers]});
        serde_json::from_value::<ProvisioningStatus>(of(MAX_TIERS)).unwrap();
        let error = serde_json::from_value::<ProvisioningStatus>(of(MAX_TIERS + 1)).unwrap_err();
        assert!(
            error.to_string().contains("a list of 4 tiers at most"),
            "{error}"
        );
    }
}
