//! The host machine: its description in the boot loader's device tree, its extensions, the map of its memory, and the settings of
//! the running hypervisor.

pub mod clock;
pub mod description;
pub mod host_map;
pub mod isa;
pub mod pmp;
pub mod tunables;
