//! Rules that the sources keep: which crate and which module may see which, and how large things may be, and where
//! links lead.

mod banned;
mod dependency_rule;
mod fields;
mod layers;
mod links;
mod named;
mod sources;
mod tidy;
