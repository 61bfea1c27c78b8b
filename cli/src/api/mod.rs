//! Requests about runs and VMs: one method for each, for commands and for other programs.
//!
//! ```text
//!  gnomon pause linux ──► verbs::Pause ◄── methods::Call ◄── serve ◄── {"id": 1, "method": "pause", ...}
//!                             │
//!                             ▼ control
//! ```
//!
//! - [`call`]: the form of a method. [`verbs`]: the methods.
//! - [`methods`]: the table of all methods, by name, and the schema.
//! - [`wire`]: lines. [`serve`]: clients. [`failure`]: errors. [`limits`]: limits of clients.

pub mod call;
pub mod failure;
pub mod limits;
pub mod methods;
pub mod serve;
pub mod start;
pub mod verbs;
pub mod wire;
