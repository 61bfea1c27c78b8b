//! Paging: the sweep that takes idle pages, the requests to the swap device, and the pages of images.
//! [`crate::pager`] has the state.

mod originals;
mod sweep;
mod traffic;
