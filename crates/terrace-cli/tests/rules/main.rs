//! Rules that the sources keep: which crate and which module may see which, and how large things may be.

mod dependency_rule;
mod fields;
mod layers;
mod sources;
mod tidy;
