//! Resizable memory over the API: with a device that a test plays on its control socket ([`device`]), with a monitor
//! that a test plays ([`qemu`]), and with providers that a test scripts ([`faults`]).

mod admitted;
mod balance;
mod balance_faults;
mod device;
mod faults;
mod huge;
mod qemu;
mod resident;
mod script;
mod shared_ram;

mod real;
mod recorded;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
