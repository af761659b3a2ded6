use super::*;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 1000 * MIB;
/// 2 % of that.
const STEP: u64 = 20 * MIB;

/// A guest whose statistics come every two seconds.
struct Guest {
    cache: Cache,
    size: u64,
    second: u64,
    read: u64,
    droppable: u64,
}

impl Guest {
    fn new() -> Self {
        Self {
            cache: Cache::default(),
            size: SIZE,
            second: 0,
            read: 500 * MIB,
            droppable: 400 * MIB,
        }
    }

    /// Lets so many seconds pass, in each two of which it reads so much.
    fn pass(&mut self, seconds: u64, reads: u64) -> Option<Missed> {
        let mut missed = None;
        for _ in 0..seconds / 2 {
            self.second += 2;
            self.read += reads;
            let seen = self.said();
            let now = self.now();
            missed = missed.or(self
                .cache
                .see(now, &seen, self.size, &ArbiterConfig::default()));
            self.size = missed.map_or(self.size, |missed| missed.from);
        }
        missed
    }

    fn said(&self) -> GuestMemory {
        GuestMemory {
            free_bytes: Some(30 * MIB),
            available_bytes: Some(30 * MIB + self.droppable),
            cache_bytes: Some(600 * MIB),
            major_faults: Some(7),
            disk_read_bytes: Some(self.read),
            ..GuestMemory::default()
        }
    }

    fn now(&self) -> Tick {
        Tick(self.second * 1_000_000_000)
    }

    fn gives(&self) -> u64 {
        self.cache
            .gives(self.now(), self.size, 1, &ArbiterConfig::default())
    }

    fn give(&mut self) {
        let step = self.gives();
        assert!(step > 0 && step <= STEP, "{step}");
        let sizes = (self.size, self.size - step);
        self.cache.give(sizes, &ArbiterConfig::default());
        self.size = sizes.1;
    }
}

#[test]
fn a_quiet_guest_gives_a_step_each_time_that_it_was_watched() {
    let mut guest = Guest::new();
    guest.pass(20, 0);
    assert_eq!(guest.gives(), 0, "it was not watched for long enough");
    guest.pass(20, 0);
    for _ in 0..5 {
        guest.give();
        assert_eq!(guest.pass(20, 0), None);
        assert_eq!(guest.gives(), 0, "two steps at once");
        assert_eq!(guest.pass(12, 0), None);
    }
    assert_ne!(guest.gives(), 0);
}

#[test]
fn a_guest_that_reads_gives_no_cache() {
    let mut guest = Guest::new();
    guest.pass(60, MIB / 4);
    assert_eq!(guest.gives(), 0);
    guest.pass(32, 0);
    assert_ne!(guest.gives(), 0);
}

#[test]
fn one_that_reads_again_gets_it_back_and_rests_longer_each_time() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    for minutes in [5, 10, 20] {
        guest.give();
        let missed = guest.pass(2, 10 * MIB).unwrap();
        assert_eq!((missed.from, missed.read), (SIZE, 10 * MIB));
        assert_eq!(missed.until.0 - guest.now().0, minutes * 60_000_000_000);
        guest.pass(minutes * 60 - 4, 0);
        assert_eq!(guest.gives(), 0);
        guest.pass(6, 0);
    }
    assert_ne!(guest.gives(), 0);
}

#[test]
fn a_little_that_is_read_again_is_no_loss() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    guest.give();
    assert_eq!(guest.pass(32, MIB / 8), None);
}

/// Steps that were not missed for the time of a watch each.
#[test]
fn one_that_reads_again_later_gets_all_back_and_waits_longer() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    for _ in 0..5 {
        guest.give();
        guest.pass(40, 0);
    }
    let missed = guest.pass(2, 10 * MIB).unwrap();
    assert_eq!(missed.from, SIZE);
    // Its size is on its way: it is said once.
    assert_eq!(guest.pass(20, 10 * MIB), None);
    guest.pass(300, 0);
    assert_eq!(
        guest.gives(),
        0,
        "it was quiet for less than twice as long as that took"
    );
    guest.pass(150, 0);
    assert_ne!(guest.gives(), 0);
}

#[test]
fn the_watch_begins_when_the_memory_is_gone() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    guest.give();
    let (gone, size) = (guest.size, SIZE);
    guest.size = size;
    assert_eq!(guest.pass(60, 0), None);
    guest.size = gone;
    guest.pass(20, 0);
    assert_eq!(guest.gives(), 0);
    guest.pass(14, 0);
    assert_ne!(guest.gives(), 0);
}

#[test]
fn a_block_that_is_more_than_two_steps_is_not_taken() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    let gives = |block| {
        let config = ArbiterConfig::default();
        guest.cache.gives(guest.now(), SIZE, block, &config)
    };
    assert_eq!(gives(32 * MIB), 32 * MIB);
    assert_eq!(gives(64 * MIB), 0);
}

#[test]
fn major_faults_are_reads() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    guest.give();
    let seen = GuestMemory {
        major_faults: Some(2000),
        ..guest.said()
    };
    let now = guest.now();
    assert!(
        guest
            .cache
            .see(now, &seen, guest.size, &ArbiterConfig::default())
            .is_some()
    );
}

#[test]
fn programs_memory_is_not_taken_for_cache() {
    let mut guest = Guest::new();
    // Its cache is that of shared memory, which is not available.
    guest.droppable = 79 * MIB;
    guest.pass(40, 0);
    assert_eq!(guest.gives(), 0);
    guest.droppable = 80 * MIB;
    guest.pass(2, 0);
    assert_ne!(guest.gives(), 0);
}

#[test]
fn a_guest_whose_reads_nobody_counts_any_more_gets_all_back() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    guest.give();
    let uncounted = |guest: &mut Guest, second: u64| {
        guest.second += second;
        let seen = GuestMemory {
            disk_read_bytes: None,
            ..guest.said()
        };
        let now = guest.now();
        guest
            .cache
            .see(now, &seen, guest.size, &ArbiterConfig::default())
    };
    // One answer that is missing ends no watch.
    assert_eq!(uncounted(&mut guest, 2), None);
    assert_eq!(
        uncounted(&mut guest, 30).map(|missed| missed.from),
        Some(SIZE)
    );
    guest.size = SIZE;
    assert_eq!(guest.gives(), 0);
}

#[test]
fn a_guest_that_started_anew_is_watched_anew() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    guest.read = 0;
    guest.pass(20, 0);
    assert_eq!(guest.gives(), 0);
    guest.pass(20, 0);
    assert_ne!(guest.gives(), 0);
}

#[test]
fn no_cache_is_taken_if_that_is_switched_off() {
    let mut guest = Guest::new();
    guest.pass(40, 0);
    let off = ArbiterConfig {
        cache_percent: 0,
        ..ArbiterConfig::default()
    };
    assert_eq!(guest.cache.gives(guest.now(), SIZE, 1, &off), 0);
}

#[test]
fn figures_without_bounds_take_no_more_than_a_step() {
    let mut guest = Guest::new();
    for _ in 0..40 {
        guest.second += 2;
        let seen = GuestMemory {
            free_bytes: Some(0),
            available_bytes: Some(u64::MAX),
            cache_bytes: Some(u64::MAX),
            major_faults: Some(u64::MAX),
            disk_read_bytes: Some(u64::MAX),
            ..GuestMemory::default()
        };
        let now = guest.now();
        guest
            .cache
            .see(now, &seen, guest.size, &ArbiterConfig::default());
    }
    assert_eq!(guest.gives(), STEP);
}
