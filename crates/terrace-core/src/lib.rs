//! The pure engine: stages and policies, without clock, file, socket or thread.
