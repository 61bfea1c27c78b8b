//! Limits of clients.

/// The longest line of a request, in bytes, without its end.
pub const MOST_LINE: usize = 64 << 10;
/// The most clients of a socket at a time.
pub const MOST_CLIENTS: usize = 32;
/// The most requests of a client at a time.
pub const MOST_PENDING: usize = 64;
/// The most of those that may take as long as a VM lives. The rest is for others.
pub const MOST_LONG: usize = 48;
