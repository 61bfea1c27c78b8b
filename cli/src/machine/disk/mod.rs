//! Files that are VMs' disks.

mod error;
mod node;
mod provide;
mod qcow2;
mod spec;

pub use error::{Beside, DiskError};
pub use node::{Disk, Snapshot, Use};
pub(crate) use node::{PLACES, args, block_device, file_node, name};
pub(crate) use provide::lock;
pub use provide::{Disks, provide};
pub use spec::{DiskSpec, Format};
