use super::*;

const TWO_PHASES: &str = "\
#regions
a, 100000, none
b, 64

# the first
first
10
a, 1, 64, 3, ro
b, 0, 64, 1

second
5
a, 0, 4096, 1, rw
";

fn write(text: &str) -> (Masim, std::path::PathBuf) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("terrace-masim-{}-{number}.cfg", std::process::id());
    let folder = std::env::temp_dir();
    std::fs::write(folder.join(&name), text).expect("a file");
    (Masim { file: name.into() }, folder)
}

fn run(text: &str) -> Vec<Box<dyn Source>> {
    let (masim, folder) = write(text);
    let context = Context {
        scale: 1,
        seed: 1,
        vm: "vm1",
        vcpus: 2,
        is_cached: false,
        folder: &folder,
    };
    let pace = Pace {
        compute_ns: 1.0,
        parallelism: 1.0,
        before_cache: true,
    };
    let sources = masim.sources(&context, pace).expect("it is right");
    std::fs::remove_file(folder.join(&masim.file)).expect("it is there");
    sources
}

fn fault(text: &str) -> (usize, String) {
    parse(text).expect_err("it is wrong")
}

#[test]
fn regions_start_at_pages_one_after_another() {
    let program = parse(TWO_PHASES).expect("it is right");
    assert_eq!(program.pages, 26);
    assert_eq!(program.regions[1].start, 25 * 4096);
    assert_eq!(program.phases.len(), 2);
    assert_eq!(program.phases[1].ns, 5_000_000);
}

#[test]
fn a_draw_is_131072_accesses_of_one_pattern() {
    let mut source = run(TWO_PHASES).remove(0);
    let mut batch = [Access::default(); 1024];
    let mut to_a = 0;
    for draw in 0..400 {
        let mut given = 0;
        let mut writes = 0;
        while given < 131_072 {
            assert_eq!(source.fill(0, &mut batch), 1024);
            given += 1024;
            writes += batch.iter().filter(|access| access.is_write()).count();
        }
        // Reads are of a, writes of b: never both in a draw.
        assert!(writes == 0 || writes == 131_072, "draw {draw}: {writes}");
        to_a += u32::from(writes == 0);
    }
    // 3 of 4, 300 expected, deviation 8.7.
    assert!((265..335).contains(&to_a), "{to_a} of 400");
}

#[test]
fn a_phase_ends_after_the_draw_in_which_its_time_is_over() {
    let mut source = run(TWO_PHASES).remove(0);
    let mut batch = [Access::default(); 131_072];
    assert_eq!(source.fill(0, &mut batch), 131_072);
    assert_eq!(source.fill(10_000_000, &mut batch[..1]), 1);
    // Over, but the draw is not.
    assert_eq!(source.fill(10_000_001, &mut batch), 131_071);
    assert_eq!(source.fill(10_000_002, &mut batch), 131_072);
    let pages: Vec<u64> = batch[..25].iter().map(|access| access.page()).collect();
    let mut expected: Vec<u64> = (1..25).collect();
    expected.push(0);
    assert_eq!(pages, expected, "strides of a page, from the second on");
    assert!(batch[0].is_write());
    assert_eq!(source.fill(15_000_003, &mut batch), 0, "all is over");
}

#[test]
fn other_vcpus_are_idle() {
    let mut source = run(TWO_PHASES).remove(1);
    assert_eq!(source.fill(0, &mut [Access::default(); 8]), 0);
}

#[test]
fn an_unknown_region_is_named_with_its_line() {
    let (line, why) = fault("a, 64\n\np\n1\nc, 0, 64, 1\n");
    assert_eq!(line, 5);
    assert!(why.contains("no region \"c\""), "{why}");
}

#[test]
fn a_region_twice_is_named() {
    let (line, why) = fault("a, 64\na, 128\n\np\n1\na, 0, 64, 1\n");
    assert_eq!((line, why.contains("two regions \"a\"")), (2, true));
}

#[test]
fn a_size_of_zero_or_below_is_refused() {
    assert_eq!(fault("a, 0\n\np\n1\na, 0, 64, 1\n").0, 1);
    assert_eq!(fault("a, -1\n\np\n1\na, 0, 64, 1\n").0, 1);
}

#[test]
fn a_size_that_overflows_is_refused() {
    assert_eq!(fault("a, 99999999999999999999\n\np\n1\na, 0, 64, 1\n").0, 1);
}

#[test]
fn an_unknown_mode_is_refused() {
    let (line, why) = fault("a, 64\n\np\n1\na, 0, 64, 1, xx\n");
    assert!(line == 5 && why.contains("ro, wo and rw"), "{line}: {why}");
}

#[test]
fn a_sequence_without_a_stride_is_refused() {
    assert_eq!(fault("a, 64\n\np\n1\na, 0, 0, 1\n").0, 5);
}

#[test]
fn a_phase_without_a_chance_is_refused() {
    let (line, why) = fault("a, 64\n\np\n1\na, 0, 64, 0\n");
    assert!(line == 3 && why.contains("probability"), "{line}: {why}");
}

#[test]
fn a_phase_without_patterns_is_refused() {
    assert_eq!(fault("a, 64\n\np\n1\n").0, 3);
}

#[test]
fn a_phase_without_time_is_refused() {
    assert_eq!(fault("a, 64\n\np\n0\na, 0, 64, 1\n").0, 4);
}

#[test]
fn a_file_without_phases_is_refused() {
    let (line, why) = fault("a, 64\n");
    assert!(line == 1 && why.contains("without a phase"), "{why}");
}

#[test]
fn a_missing_file_is_named() {
    let masim = Masim {
        file: "none.cfg".into(),
    };
    let why = masim.pages(Path::new("/nowhere")).expect_err("no file");
    assert!(why.0.contains("/nowhere/none.cfg"), "{why}");
}
