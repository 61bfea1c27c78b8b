//! The mappers that a VM's memory has from its beginning ([`mmu::mapper`]), besides the lane's words. Each is a file, and a line here.

use crate::vm::Vm;
use crate::vm::mappings::Notifier;
use crate::vm::vcpu::way;
use alloc::boxed::Box;
use alloc::sync::Arc;
use mmu::Mapper;

/// Makes a mapper for a VM's memory; `None` if it needs none of that kind.
pub type Kind = fn(&Vm) -> Option<Box<dyn Mapper>>;

/// All kinds.
pub const KINDS: [Kind; 2] = [way::mapper, notifier];

/// Makes the notifier of a VM whose vCPUs may have mappings.
fn notifier(vm: &Vm) -> Option<Box<dyn Mapper>> {
    vm.tlb.mappings.as_ref().map(|mappings| Box::new(Notifier::new(Arc::clone(mappings))) as _)
}
