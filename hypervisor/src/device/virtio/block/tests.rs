//! The disk behind its transport, as a driver sees it.
