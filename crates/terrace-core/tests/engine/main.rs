//! The engine on a tiny simulated host: rounds, moves, sizes, the pool.

mod ages;
mod by_guest;
mod by_guest_hostile;
mod collapse;
mod demand;
mod fairness;
mod hot_pages;
mod in_rounds;
mod lists;
mod mechanism;
mod part_attacks;
mod parts;
mod plan_only;
mod pool;
mod ram_changed;
mod rates;
mod rounds;
mod samples;
mod sizes_and_tiers;
mod tables;
