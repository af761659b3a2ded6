//! Accesses: the interface between a load and the machine.

/// Line size of the processor's caches, bytes.
pub const LINE: u64 = 64;

/// Lines in a 4 KiB page.
pub const LINES_PER_PAGE: u64 = 4096 / LINE;

/// One access of a load to one 64-byte line of its own dense memory (its pages are numbered from 0; the guest maps them
/// one by one, in that order). [`Pace`] says whether the last-level cache sees it, or it always reaches memory.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(u64);

impl Access {
    const WRITE: u64 = 1;
    const ENDS: u64 = 2;
    const UPDATE: u64 = 4;

    /// An access to `line` (0 to 63) of 4 KiB page `page` that is an operation of its own.
    #[must_use]
    pub fn new(page: u64, line: u64, write: bool) -> Self {
        Self(page << 9 | (line & 63) << 3 | Self::ENDS | u64::from(write))
    }

    /// Marks the access as a part of an operation that later accesses continue.
    #[must_use]
    pub fn within_operation(self) -> Self {
        Self(self.0 & !Self::ENDS)
    }

    /// Marks the access as a read-modify-write: it writes, and the processor's counters see it as a load and as a
    /// store.
    #[must_use]
    pub fn updating(self) -> Self {
        Self(self.0 | Self::WRITE | Self::UPDATE)
    }

    /// The 4 KiB page.
    #[must_use]
    pub fn page(self) -> u64 {
        self.0 >> 9
    }

    /// The line within the page, 0 to 63.
    #[must_use]
    pub fn line(self) -> u64 {
        self.0 >> 3 & 63
    }

    /// The line's number in the load's memory.
    #[must_use]
    pub fn line_number(self) -> u64 {
        self.0 >> 3
    }

    /// Whether the access writes.
    #[must_use]
    pub fn is_write(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Whether a load instruction is part of the access: a read, or an update.
    #[must_use]
    pub fn loads(self) -> bool {
        self.0 & (Self::WRITE | Self::UPDATE) != Self::WRITE
    }

    /// Whether an operation (a request of `kv`, else each access) ends with this access.
    #[must_use]
    pub fn ends_operation(self) -> bool {
        self.0 & Self::ENDS != 0
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_write() { "write" } else { "read" };
        let end = if self.ends_operation() { "" } else { " …" };
        write!(f, "{kind} {}:{}{end}", self.page(), self.line())
    }
}

/// The pace of a load's accesses; the same for all accesses of one call of [`Source::fill`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Time that the processor computes per access, ns, beside waiting for memory.
    pub compute_ns: f64,
    /// Independent misses in flight at a time (memory-level parallelism), 1 or more: data latency is
    /// divided by it.
    pub parallelism: f64,
    /// Whether the accesses come before the last-level cache; otherwise each is a miss of it already.
    pub before_cache: bool,
}

/// The accesses of one vCPU: endless unless it reports an end. The same source gives the same accesses.
pub trait Source: Send {
    /// Puts the next accesses into `batch`, at least one and at most all of it; returns how many. 0: no access will
    /// ever follow. `now_ns` is the time of the full-size machine since the start of the run (stages and drifts
    /// follow it; it never goes back).
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) -> usize;

    /// The pace of the accesses that the last [`Source::fill`] gave.
    fn pace(&self) -> Pace;

    /// Number of programs that ended before the one whose accesses the last [`Source::fill`] gave. Each program has
    /// memory of its own: it may begin only after the one before it ended on all vCPUs.
    fn program(&self) -> u64 {
        0
    }

    /// A copy of the source in the same state (the oracle reads ahead with it).
    fn fork(&self) -> Box<dyn Source>;
}
