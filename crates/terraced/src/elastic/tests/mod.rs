//! Elastic memory over the API: with a device that a test plays on its control socket ([`device`]), with the real one
//! ([`real`]), and with providers that a test scripts ([`faults`], [`admitted`]).

mod admitted;
mod device;
mod faults;
mod real;
mod script;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
