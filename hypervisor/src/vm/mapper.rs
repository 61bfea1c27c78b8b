//! The mappers that a VM's memory has from its beginning ([`mmu::mapper`]), besides the lane's words. Each is a file, and a line here.

use crate::vm::vcpu::way;
use crate::vm::{Vm, mappings};
use alloc::boxed::Box;
use mmu::Mapper;

/// Makes a mapper for a VM's memory; `None` if it needs none of that kind.
pub type Kind = fn(&Vm) -> Option<Box<dyn Mapper>>;

/// All kinds.
pub const KINDS: [Kind; 2] = [way::mapper, mappings::mapper];
