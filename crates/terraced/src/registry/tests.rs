use super::*;

fn entry(name: &str) -> Entry {
    Entry {
        name: name.into(),
        process: None,
        socket: PathBuf::new(),
        hypervisor: String::new(),
        memory_bytes: 0,
        reason: String::new(),
        unscannable: false,
        findings: Vec::new(),
        managed: None,
        agent: None,
    }
}

#[test]
fn a_vms_key_is_unique_until_and_after_it_is_forgotten() {
    let mut registry = Registry::default();
    let (b, a) = (registry.put(entry("b")), registry.put(entry("a")));
    assert_eq!(registry.put(entry("b")), b);
    let names: Vec<&str> = registry.iter().map(|(_, e)| e.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let gone = registry.keep(|entry| entry.name == "a");
    assert_eq!(
        (gone.len(), registry.key("b"), registry.has(b)),
        (1, None, false)
    );
    assert!(registry.put(entry("b")) > b.max(a));
}
