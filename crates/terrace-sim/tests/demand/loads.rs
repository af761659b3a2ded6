//! Generated loads over 8 GiB and more, the worst ones for a hot set: their accesses to huge pages have no locality
//! but that of their law.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use super::bounds::{Accesses, OF_LOADS, OF_PROGRAMS, ages, restored, sampled};

/// Pages of 2 MiB: 12 GiB, of which the normal law reaches 8.
const PAGES: u32 = 6_144;
/// Accesses, 400 for each page: cold misses are few.
const ACCESSES: u32 = 400 * PAGES;
const HUGE: u64 = 2 << 20;
/// HPMBS's first hot set.
const HOT_SET: u32 = 250;

struct Random(Xoshiro256PlusPlus);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        u32::try_from((u64::from(self.0.next_u32()) * u64::from(limit)) >> 32).expect("below")
    }

    fn share(&mut self) -> f64 {
        f64::from(self.0.next_u32()) / f64::from(u32::MAX)
    }
}

/// Pages drawn by weight, the heaviest scattered over all.
fn by_weight(
    random: &mut Random,
    pages: u32,
    weight: impl Fn(f64) -> f64,
) -> Box<dyn FnMut(&mut Random) -> u32> {
    let mut sum = 0.0;
    let mut add = |rank| {
        sum += weight(f64::from(rank));
        sum
    };
    let sums: Vec<f64> = (0..pages).map(&mut add).collect();
    let mut places: Vec<u32> = (0..pages).collect();
    for place in (1..pages).rev() {
        places.swap(place as usize, random.below(place + 1) as usize);
    }
    Box::new(move |random: &mut Random| {
        let drawn = random.share() * sum;
        let rank = sums.partition_point(|sum| *sum < drawn);
        places[rank.min(places.len() - 1)]
    })
}

fn load(name: &str, pages: u32, accesses: u32) -> Accesses {
    let mut random = Random(Xoshiro256PlusPlus::seed_from_u64(20));
    let wide = f64::from(pages);
    let drawn: Vec<u32> = match name {
        "uniform" => (0..accesses).map(|_| random.below(pages)).collect(),
        "sweeping" => (0..accesses).map(|at| at % pages).collect(),
        "zipf" => {
            let mut draw = by_weight(&mut random, pages, |rank| (rank + 1.0).powf(-0.99));
            (0..accesses).map(|_| draw(&mut random)).collect()
        }
        "gauss" => {
            // Ranks by distance from the middle, two pages each; sigma is a tenth of all pages.
            let law = |rank: f64| (-0.5 * (rank / 2.0 / (0.1 * wide)).powi(2)).exp();
            let mut draw = by_weight(&mut random, pages, law);
            (0..accesses).map(|_| draw(&mut random)).collect()
        }
        "hot set" => {
            // 90 % of the accesses to a tenth of the pages, the rest to all.
            let law = |rank: f64| if rank < wide / 10.0 { 9.1 } else { 0.1 };
            let mut draw = by_weight(&mut random, pages, law);
            (0..accesses).map(|_| draw(&mut random)).collect()
        }
        other => panic!("no load {other}"),
    };
    Accesses::new(name, drawn, HUGE)
}

const LOADS: [&str; 5] = ["uniform", "zipf", "gauss", "hot set", "sweeping"];

#[test]
fn restored_curves_of_loads_are_near() {
    for name in LOADS {
        let accesses = load(name, PAGES, ACCESSES);
        assert!(
            u64::from(accesses.footprint) * HUGE >= 8 << 30,
            "{name}: {}",
            accesses.footprint
        );
        restored(&accesses, HOT_SET);
    }
}

#[test]
fn sampled_curves_of_loads_are_near() {
    for name in LOADS {
        let bounds = match name {
            "zipf" | "hot set" => OF_PROGRAMS,
            _ => OF_LOADS,
        };
        // Eight times as many pages as a sample has.
        sampled(&load(name, 65_536, 2_000_000), bounds);
    }
}

#[test]
fn ages_of_loads_are_between_the_moved_curves() {
    for name in LOADS {
        let accesses = load(name, PAGES, ACCESSES / 4);
        for window in [500, 2_000] {
            ages(&accesses, window);
        }
    }
}
