use proptest::prelude::*;
use serde_json::json;

use super::*;

fn listed(count: u64) -> Vec<Vcpu> {
    let vcpu = |index: u64| Vcpu {
        index,
        path: path(index),
        thread: Some(100 + index),
    };
    (0..count).map(vcpu).collect()
}

fn path(index: u64) -> String {
    format!("/machine/unattached/device[{index}]")
}

fn read(count: u64) -> Vec<Numbered> {
    let vcpu = |number: u64| Numbered {
        number,
        registers: PagingRegisters {
            cr3: (number + 1) << 12,
            ..PagingRegisters::default()
        },
    };
    (0..count).map(vcpu).collect()
}

/// One entry for each virtual CPU: whether it is in a nested guest, and how often it was.
fn statistics_of(vcpus: &[(bool, u64)]) -> Statistics {
    let entry = |(index, &(inside, runs)): (usize, &(bool, u64))| {
        (path(index as u64), Nested { inside, runs })
    };
    vcpus.iter().enumerate().map(entry).collect()
}

/// For each virtual CPU, whether it counts.
fn count(before: &Statistics, after: &Statistics) -> Vec<bool> {
    let counted = counted(&listed(4), &read(4), Some((before, after))).unwrap();
    for (index, registers) in counted.iter().enumerate() {
        let own = (index as u64 + 1) << 12;
        assert!(
            registers.is_none_or(|r| r.cr3 == own),
            "another one's registers"
        );
    }
    counted.iter().map(Option::is_some).collect()
}

const OUT: (bool, u64) = (false, 7);

#[test]
fn a_vcpu_in_a_nested_guest_before_or_after_does_not_count() {
    let out = statistics_of(&[OUT; 4]);
    assert_eq!(count(&out, &out), [true; 4]);
    let second = statistics_of(&[OUT, (true, 7), OUT, OUT]);
    let others = [true, false, true, true];
    assert_eq!(count(&second, &out), others);
    assert_eq!(count(&out, &second), others);
    assert_eq!(count(&second, &second), others);
}

#[test]
fn a_vcpu_that_was_in_a_nested_guest_does_not_count() {
    let before = statistics_of(&[OUT; 4]);
    let after = statistics_of(&[OUT, OUT, (false, 8), OUT]);
    assert_eq!(count(&before, &after), [true, true, false, true]);
    assert_eq!(count(&after, &before), [true, true, false, true]);
}

#[test]
fn a_vcpu_of_which_nothing_is_told_does_not_count() {
    let all = statistics_of(&[OUT; 4]);
    let three = statistics_of(&[OUT; 3]);
    assert_eq!(count(&three, &all), [true, true, true, false]);
    assert_eq!(count(&all, &three), [true, true, true, false]);
    let none = Statistics::new();
    assert_eq!(count(&all, &none), [false; 4]);
    let error = counted(&listed(4), &read(4), Some((&none, &all)));
    assert_eq!(error, Err(Uncounted::NoCounters));
}

#[test]
fn registers_of_other_vcpus_than_were_asked_about_do_not_count() {
    let out = statistics_of(&[OUT; 4]);
    for around in [None, Some((&out, &out))] {
        assert_eq!(
            counted(&listed(4), &read(3), around),
            Err(Uncounted::Changed)
        );
        assert_eq!(
            counted(&listed(3), &read(4), around),
            Err(Uncounted::Changed)
        );
        let mut swapped = read(4);
        swapped.swap(1, 2);
        assert_eq!(
            counted(&listed(4), &swapped, around),
            Err(Uncounted::Changed)
        );
    }
    let all = counted(&listed(4), &read(4), None).unwrap();
    assert!(all.iter().all(Option::is_some), "none can nest");
}

fn entry(index: u64, inside: Any, runs: Any) -> Any {
    json!({
        "provider": "kvm",
        "qom-path": path(index),
        "stats": [
            { "name": GUEST_MODE, "value": inside },
            { "name": NESTED_RUN, "value": runs },
        ],
    })
}

#[test]
fn statistics_are_read_as_old_and_new_kernels_tell_them() {
    let list = json!([
        entry(0, json!(false), json!(3)),
        entry(1, json!(1), json!(u64::MAX))
    ]);
    let want = statistics_of(&[(false, 3), (true, u64::MAX)]);
    assert_eq!(statistics(&list), Ok(want));
    assert_eq!(statistics(&json!([])), Ok(Statistics::new()));
}

#[test]
fn statistics_that_make_no_sense_tell_nothing() {
    let good = || entry(0, json!(false), json!(3));
    for bad in [
        entry(1, json!("false"), json!(3)),
        entry(1, json!(-1), json!(3)),
        entry(1, json!(false), json!(-3)),
        entry(1, json!(false), json!(1e300)),
        entry(1, json!(false), json!([3, 4])),
        entry(1, json!(null), json!(3)),
        json!({ "provider": "kvm", "qom-path": path(1) }),
        json!({ "provider": "kvm", "qom-path": path(1), "stats": 7 }),
        json!({ "provider": "kvm", "qom-path": 7, "stats": [] }),
        json!({ "provider": "kvm", "stats": [] }),
        json!({
            "provider": "cryptodev",
            "qom-path": path(1),
            "stats": entry(1, json!(false), json!(3))["stats"],
        }),
        json!({
            "provider": "kvm",
            "qom-path": path(1),
            "stats": [
                { "name": GUEST_MODE, "value": true },
                { "name": GUEST_MODE, "value": false },
                { "name": NESTED_RUN, "value": 3 },
            ],
        }),
        json!("nothing"),
    ] {
        let found = statistics(&json!([bad, good()])).unwrap();
        assert_eq!(found, statistics_of(&[(false, 3)]), "{bad}");
    }
    assert!(statistics(&json!({})).is_err());
    let flood = vec![json!({}); 4 * MAX_VCPUS + 1];
    assert!(statistics(&Any::Array(flood)).is_err());
}

#[test]
fn of_two_entries_about_one_vcpu_none_is_believed() {
    let inside = entry(0, json!(true), json!(3));
    let out = entry(0, json!(false), json!(3));
    for list in [
        json!([inside, out]),
        json!([out, inside]),
        json!([out, out, out]),
    ] {
        assert_eq!(statistics(&list), Ok(Statistics::new()));
    }
}

#[test]
fn vcpus_are_read_and_doubles_refused() {
    let vcpu = |index: u64, path: &str| json!({ "cpu-index": index, "qom-path": path, "thread-id": 5, "target": "x86_64", "props": {} });
    let two = vcpus(&json!([vcpu(0, "/a"), vcpu(4, "/b")])).unwrap();
    let seen: Vec<_> = two.iter().map(|v| (v.index, v.path.as_str())).collect();
    assert_eq!(seen, [(0, "/a"), (4, "/b")]);
    for bad in [
        json!({}),
        json!([{}]),
        json!([vcpu(0, "/a"), vcpu(0, "/b")]),
        json!([vcpu(0, "/a"), vcpu(1, "/a")]),
        json!([vcpu(0, &"/".repeat(MAX_PATH + 1))]),
        json!([{ "cpu-index": -1, "qom-path": "/a" }]),
        Any::Array(
            (0..=MAX_VCPUS as u64)
                .map(|n| vcpu(n, &n.to_string()))
                .collect(),
        ),
    ] {
        assert!(vcpus(&bad).is_err());
    }
}

/// Any JSON, with words that mean something here and there.
fn any_json() -> impl Strategy<Value = Any> {
    let word = prop::sample::select(vec![
        "kvm",
        GUEST_MODE,
        NESTED_RUN,
        "name",
        "value",
        "stats",
        "qom-path",
        "provider",
        "/a",
        "cpu-index",
        "thread-id",
    ]);
    let leaf = prop_oneof![
        Just(Any::Null),
        any::<bool>().prop_map(Any::from),
        any::<i64>().prop_map(Any::from),
        any::<f64>().prop_map(Any::from),
        word.clone().prop_map(Any::from),
        ".{0,8}".prop_map(Any::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        let map = prop::collection::btree_map(word.clone(), inner.clone(), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(Any::from),
            map.prop_map(|map| map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_answer_makes_this_panic(answer in any_json()) {
        let _ = vcpus(&answer);
        let _ = statistics(&answer);
    }

    /// Against the rule in its plainest words.
    #[test]
    fn a_vcpu_counts_only_if_it_surely_stayed_out(
        before in prop::collection::vec((any::<bool>(), 0_u64..3), 0..6),
        after in prop::collection::vec((any::<bool>(), 0_u64..3), 0..6),
        vcpus in 1_u64..6,
    ) {
        let (first, second) = (statistics_of(&before), statistics_of(&after));
        let got = counted(&listed(vcpus), &read(vcpus), Some((&first, &second)));
        match got {
            Ok(got) => for (index, registers) in got.iter().enumerate() {
                let stayed_out = match (before.get(index), after.get(index)) {
                    (Some((false, runs)), Some((false, later))) => runs == later,
                    _ => false,
                };
                prop_assert_eq!(registers.is_some(), stayed_out);
            },
            Err(why) => prop_assert!(why == Uncounted::NoCounters && before.is_empty()),
        }
    }
}
