//! Shares: directories of the host, which a virtio device serves by 9P2000.L.
//!
//! | module | what it has |
//! |---|---|
//! | `wire` | the format of messages and answers |
//! | `client` | a session: file numbers, and messages in flight |
//! | `ledger` | operations of a call that wait for the host |
//! | `operation` | what an operation on a node sends and receives |
//! | `node` | nodes, and their cached pages |
//!
//! Nothing but the pages of mapped files is cached: each lookup, read and write is a message, as on a Linux mount with `cache=none`.
//!
//! File systems are synchronous, but a share has to wait. An operation that needs an answer fails with [`Errno::HOST`] and stays with the
//! thread, in its ledger. The call ends there, the thread sleeps until the answer has come, and the call is made again. The ledger then has the
//! results of all operations that the call has made before, so none is sent twice.

mod client;
pub mod ledger;
mod node;
mod operation;
mod wire;

pub use client::{Client, Message, Transport};
pub use ledger::Ledger;
pub use node::ShareNode as Node;
pub use operation::MOST_READ;

use crate::errno::{Errno, Result};
use crate::sync::Mutex;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

/// A share by its tag.
#[derive(Clone, Debug)]
struct Share {
    tag: String,
    root: Arc<dyn crate::fs::Node>,
}

static SHARES: Mutex<Vec<Share>> = Mutex::new(Vec::new());
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Returns whether there is any share.
#[must_use]
pub fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Begins a session with a share's server, and adds the share by its tag. Waits for the server by polling the device.
///
/// # Errors
/// `EIO` if the server does not speak the protocol, and the server's errors.
pub fn add(tag: &str, client: &Arc<Client>) -> Result<()> {
    let root = node::ShareNode::attach(client)?;
    SHARES.lock().push(Share { tag: tag.into(), root });
    IS_USED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Returns the tags of all shares.
#[must_use]
pub fn tags() -> Vec<String> {
    SHARES.lock().iter().map(|share| share.tag.clone()).collect()
}

/// Returns the root directory of a share.
///
/// # Errors
/// `ENOENT` if no share has this tag.
pub fn root(tag: &str) -> Result<Arc<dyn crate::fs::Node>> {
    let shares = SHARES.lock();
    let share = shares.iter().find(|share| share.tag == tag).ok_or(Errno::NOENT)?;
    Ok(Arc::clone(&share.root))
}

#[cfg(test)]
mod tests;
