//! Live migration: a VM goes on in another run.
//!
//! ```text
//!  the VM's run ◄── gnomon migrate ───────── unix: or tcp: ──────────► gnomon run --incoming ──► its machine
//!                    Hello: an early state  ───────────────────────►   starts a machine for it
//!                    pages while it runs, round after round  ──────►   Load::Pages, Load::Zero
//!                    pauses it: the rest, its state  ──────────────►   Load::State, Load::Check
//!                                                     Checked  ◄────
//!                    gives it away (Save::Give), Commit  ──────────►   Load::Start
//!                                                     Started  ◄────
//!                    stops it here
//! ```
//!
//! Until `Commit` the VM is where it was, whatever breaks: there it goes on, and the other side drops what it has. Between `Commit` and `Started` it
//! is paused where it was, so that it never runs twice; if the line breaks just then, the user has to look which of the two goes on.

mod line;
mod receive;
mod send;

pub use line::{Address, Line, MigrateError};
pub use receive::Incoming;
pub use send::{Moved, Progress, check, send};
