//! `gnomon test`.
