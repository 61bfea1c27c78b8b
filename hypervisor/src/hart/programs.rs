//! The services that the exit path needs from its hart for programs that a guest's kernel runs by call, and for roots that it switches to by
//! call ([`abi::vmspace`]).

/// The hart that handles an exit, as far as it runs programs for the loaded vCPU's kernel. A part of [`crate::hart::env::Env`].
pub trait Programs {
    /// Prepares for a program of the loaded vCPU: every exception in it comes to Gnomon, and no interrupt of the guest's is taken. Returns the
    /// kernel's `sie`.
    fn begin_program(&mut self) -> u64;
    /// Ends what [`Programs::begin_program`] has begun, for the kernel to go on.
    fn end_program(&mut self);
    /// Returns the pending interrupts that the kernel has enabled, while its program runs, by their bits in `sip`.
    fn program_interrupts(&self) -> u64;
    /// Returns the loaded vCPU's own comparator, in guest time. Only with Sstc.
    fn guest_deadline(&self) -> u64;
    /// Gives the loaded vCPU's guest that `satp`. Only behind a G-stage.
    fn set_guest_root(&mut self, satp: u64);
}
