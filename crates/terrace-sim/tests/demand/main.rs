//! Miss-ratio curves of recorded programs and of generated loads, against the exact ones.

mod bounds;
mod cuts;
mod loads;
