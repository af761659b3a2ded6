//! The Linux host: hypervisor clients, topology, trackers, movers.
