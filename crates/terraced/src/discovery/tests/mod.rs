mod inspection;

use terrace_host::memory_map::Unscannable;
use terrace_host::qemu::Uncounted;

use super::*;

#[test]
fn damon_takes_over_private_ram_only_if_it_is_allowed() {
    let private = || Err(Unscannable::PrivateRam("pc.ram".into()).into());
    let pinned = || Err(Unscannable::Vfio("/dev/vfio/1".into()).into());
    let by_damon = |choice, memory| by_damon(choice, &memory, &Ok(Readings::default()));
    let why = by_damon(TrackerChoice::Auto, private()).unwrap();
    assert!(why.contains("share=on"), "{why}");
    assert_eq!(by_damon(TrackerChoice::Auto, pinned()), None);
    assert_eq!(by_damon(TrackerChoice::PageTables, private()), None);
    assert!(by_damon(TrackerChoice::Damon, pinned()).is_some());
}

#[test]
fn damon_takes_over_where_nested_guests_are_not_told() {
    let memory = || Ok(Arc::new(GuestMemory::new(Vec::new(), Vec::new()).unwrap()));
    let uncounted = |source| {
        Err(QemuError::Uncounted {
            socket: "/s".into(),
            source,
        })
    };
    let lasting = uncounted(Uncounted::Emulated);
    let why = by_damon(TrackerChoice::Auto, &memory(), &lasting).unwrap();
    assert!(why.contains("-cpu MODEL,-svm"), "{why}");
    let passing = uncounted(Uncounted::Reset);
    assert_eq!(by_damon(TrackerChoice::Auto, &memory(), &passing), None);
    let scan = by_damon(TrackerChoice::PageTables, &memory(), &lasting);
    assert_eq!(scan, None, "not scanned then, and the reason is said");
}
