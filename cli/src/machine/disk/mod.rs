//! Files that are VMs' disks.

mod error;
mod lock;
mod node;
mod provide;
mod qcow2;
mod spec;

pub use error::{Beside, DiskError};
pub use lock::Lock;
pub use node::{Disk, Snapshot, Use};
pub(crate) use node::{PLACES, args, block_device, file_node, name};
pub use provide::{Disks, provide};
pub use spec::{DiskSpec, Format};
