//! A VM as gdb sees it, by the crate `gdbstub`: each vCPU is a thread, and all else is asked of Gnomon ([`abi::control::debug`]).

mod kallsyms;
mod registers;
pub mod symbols;

use super::ControlError;
use super::client::Client;
use abi::control::debug::{Debug, MOST_READ, MOST_WRITE, Registers, Stopped};
use abi::control::{Answer, Request, VmInfo};
use gdbstub::arch::Arch;
use gdbstub::common::{Signal, Tid};
use gdbstub::conn::ConnectionExt;
use gdbstub::stub::run_blocking::{BlockingEventLoop, Event, WaitForStopReasonError};
use gdbstub::stub::{GdbStub, MultiThreadStopReason};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadResume, MultiThreadResumeOps, MultiThreadSchedulerLocking,
    MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps};
use gdbstub::target::ext::breakpoints::{Breakpoints, BreakpointsOps, SwBreakpoint, SwBreakpointOps};
use gdbstub::target::ext::target_description_xml_override::{
    TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
};
use gdbstub::target::{Target, TargetError, TargetResult};
use gdbstub_arch::riscv::reg::RiscvCoreRegs;
use registers::Register;
use std::io;
use std::marker::PhantomData;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The pause between two requests, while a VM has not stopped or a page is not in memory.
const POLL: Duration = Duration::from_millis(10);
/// The time limit for a VM to stop, and for a page to be brought in.
const PATIENCE: Duration = Duration::from_secs(10);
const PAGE: u64 = 4096;

/// RV64 with those supervisor registers that Gnomon tells.
#[derive(Debug)]
pub enum Rv64 {}

impl Arch for Rv64 {
    type Usize = u64;
    type Registers = RiscvCoreRegs<u64>;
    type BreakpointKind = usize;
    type RegId = Register;
}

/// The VM.
#[derive(Debug)]
pub struct Debugged {
    client: Client,
    vm: VmInfo,
    /// The vCPU that makes a step when the VM is resumed.
    step: Option<u32>,
    /// The description of its registers, for gdb.
    description: String,
}

impl Debugged {
    /// Attaches to a VM, which stops.
    ///
    /// # Errors
    /// [`ControlError`], also if another debugger is attached.
    pub fn attach(client: Client, vm: VmInfo) -> Result<Self, ControlError> {
        let mut debugged = Self { client, vm, step: None, description: String::new() };
        debugged.ask(&Debug::Attach)?;
        debugged.stop()?;
        debugged.description = registers::description(debugged.registers(thread(0))?.vlenb);
        Ok(debugged)
    }

    /// Serves one gdb, until it detaches or is gone.
    ///
    /// # Errors
    /// A message.
    pub fn serve<C>(&mut self, connection: C) -> Result<(), String>
    where
        C: ConnectionExt<Error = io::Error> + 'static,
    {
        let served = GdbStub::new(connection).run_blocking::<Loop<C>>(self);
        served.map(|_| ()).map_err(|why| why.to_string())
    }

    /// Removes all breakpoints, and resumes the VM.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn detach(&mut self) -> Result<(), ControlError> {
        self.ask(&Debug::Detach).map(|_| ())
    }

    /// Asks, until what it takes is there.
    fn ask(&mut self, wish: &Debug) -> Result<Answer, ControlError> {
        let (until, request) = (Instant::now() + PATIENCE, Request::Debug(self.vm.number, wish.clone()));
        loop {
            match self.client.ask(&format!("gdb at VM `{}`", self.vm.name), &request)? {
                Answer::Later if Instant::now() < until => sleep(POLL),
                Answer::Later => return Err(ControlError::Silent(self.client.run().into())),
                answer => return Ok(answer),
            }
        }
    }

    fn nonsense<T>(&self) -> Result<T, ControlError> {
        Err(ControlError::Nonsense(self.client.run().into()))
    }

    fn state(&mut self) -> Result<Stopped, ControlError> {
        match self.ask(&Debug::State)? {
            Answer::Stopped(stopped) => Ok(stopped),
            _ => self.nonsense(),
        }
    }

    /// Waits until it has stopped, by now.
    fn stop(&mut self) -> Result<(), ControlError> {
        let until = Instant::now() + PATIENCE;
        while self.state()? == Stopped::Not {
            if Instant::now() > until {
                return Err(ControlError::Silent(self.client.run().into()));
            }
            sleep(POLL);
        }
        Ok(())
    }

    fn registers(&mut self, tid: Tid) -> Result<Registers, ControlError> {
        match self.ask(&Debug::Registers(vcpu(tid)))? {
            Answer::Registers(registers) => Ok(*registers),
            _ => self.nonsense(),
        }
    }
}

/// Threads are counted from 1.
fn vcpu(tid: Tid) -> u32 {
    tid.get() as u32 - 1
}

fn thread(vcpu: u32) -> Tid {
    Tid::new(vcpu as usize + 1).unwrap_or(Tid::MIN)
}

/// A refusal is an answer to gdb as well; whatever else ends the session.
fn told<T>(result: Result<T, ControlError>) -> TargetResult<T, Debugged> {
    /// "Bad address", as gdb knows it.
    const EFAULT: u8 = 14;
    result.map_err(|why| match why {
        ControlError::Refused { .. } => TargetError::Errno(EFAULT),
        why => TargetError::Fatal(why),
    })
}

impl Target for Debugged {
    type Arch = Rv64;
    type Error = ControlError;

    fn base_ops(&mut self) -> BaseOps<'_, Rv64, ControlError> {
        BaseOps::MultiThread(self)
    }

    fn support_target_description_xml_override(&mut self) -> Option<TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
}

impl TargetDescriptionXmlOverride for Debugged {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        length: usize,
        into: &mut [u8],
    ) -> TargetResult<usize, Self> {
        if annex != b"target.xml" {
            return Err(TargetError::NonFatal);
        }
        let rest = usize::try_from(offset).ok().and_then(|offset| self.description.as_bytes().get(offset..));
        let rest = rest.unwrap_or_default();
        let count = rest.len().min(length).min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

impl MultiThreadBase for Debugged {
    fn read_registers(&mut self, regs: &mut RiscvCoreRegs<u64>, tid: Tid) -> TargetResult<(), Self> {
        let Registers { x, pc, .. } = told(self.registers(tid))?;
        (regs.x, regs.pc) = (x, pc);
        Ok(())
    }

    fn write_registers(&mut self, regs: &RiscvCoreRegs<u64>, tid: Tid) -> TargetResult<(), Self> {
        let before = told(self.registers(tid))?;
        let pairs = regs.x.iter().zip(&before.x).chain([(&regs.pc, &before.pc)]);
        for (register, (value, _)) in (0..).zip(pairs).filter(|(_, (value, before))| value != before) {
            told(self.ask(&Debug::SetRegister { vcpu: vcpu(tid), register, value: *value }))?;
        }
        Ok(())
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], tid: Tid) -> TargetResult<usize, Self> {
        let mut done = 0;
        while done < data.len() {
            let (at, left) = (start.wrapping_add(done as u64), data.len() - done);
            let read = Debug::Read { vcpu: vcpu(tid), at, bytes: left.min(MOST_READ as usize) as u32 };
            match self.ask(&read) {
                Ok(Answer::Memory(bytes)) if !bytes.is_empty() && bytes.len() <= left => {
                    data[done..done + bytes.len()].copy_from_slice(&bytes);
                    done += bytes.len();
                }
                Ok(_) => return told(self.nonsense()),
                Err(ControlError::Refused { .. }) if done != 0 => break,
                Err(why) => return told(Err(why)),
            }
        }
        Ok(done)
    }

    fn write_addrs(&mut self, start: u64, data: &[u8], tid: Tid) -> TargetResult<(), Self> {
        let mut done = 0;
        while done < data.len() {
            let at = start.wrapping_add(done as u64);
            let count = (data.len() - done).min(MOST_WRITE).min((PAGE - at % PAGE) as usize);
            let bytes = data[done..done + count].to_vec();
            told(self.ask(&Debug::Write { vcpu: vcpu(tid), at, bytes }))?;
            done += count;
        }
        Ok(())
    }

    fn list_active_threads(&mut self, active: &mut dyn FnMut(Tid)) -> Result<(), ControlError> {
        (0..self.vm.vcpus).map(thread).for_each(active);
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl SingleRegisterAccess<Tid> for Debugged {
    fn read_register(&mut self, tid: Tid, register: Register, into: &mut [u8]) -> TargetResult<usize, Self> {
        let bytes = if let Register::Vector(register) = register {
            match told(self.ask(&Debug::Vector { vcpu: vcpu(tid), register }))? {
                Answer::Memory(bytes) => bytes,
                _ => return told(self.nonsense()),
            }
        } else {
            let all = told(self.registers(tid))?;
            let (value, count) = register.value(&all).ok_or(TargetError::NonFatal)?;
            value.to_le_bytes()[..count].to_vec()
        };
        let into = into.get_mut(..bytes.len()).ok_or(TargetError::NonFatal)?;
        into.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write_register(&mut self, tid: Tid, register: Register, value: &[u8]) -> TargetResult<(), Self> {
        let vcpu = vcpu(tid);
        if let Register::Vector(register) = register {
            return told(self.ask(&Debug::SetVector { vcpu, register, bytes: value.to_vec() })).map(|_| ());
        }
        let mut bytes = [0; 8];
        bytes.get_mut(..value.len()).ok_or(TargetError::NonFatal)?.copy_from_slice(value);
        let all = told(self.registers(tid))?;
        let (register, value) = register.set(u64::from_le_bytes(bytes), &all).ok_or(TargetError::NonFatal)?;
        told(self.ask(&Debug::SetRegister { vcpu, register, value })).map(|_| ())
    }
}

impl MultiThreadResume for Debugged {
    fn resume(&mut self) -> Result<(), ControlError> {
        let wish = self.step.take().map_or(Debug::Continue, Debug::Step);
        match self.ask(&wish) {
            // It stays where it is, or has ended: that is found when it is looked at next.
            Err(ControlError::Refused { .. }) => Ok(()),
            asked => asked.map(|_| ()),
        }
    }

    fn clear_resume_actions(&mut self) -> Result<(), ControlError> {
        self.step = None;
        Ok(())
    }

    fn set_resume_action_continue(&mut self, _: Tid, _: Option<Signal>) -> Result<(), ControlError> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSchedulerLocking for Debugged {
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), ControlError> {
        // A vCPU that steps runs alone; otherwise all vCPUs resume.
        Ok(())
    }
}

impl MultiThreadSingleStep for Debugged {
    fn set_resume_action_step(&mut self, tid: Tid, _: Option<Signal>) -> Result<(), ControlError> {
        self.step = Some(vcpu(tid));
        Ok(())
    }
}

impl Breakpoints for Debugged {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Debugged {
    fn add_sw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        // By the tables of whichever vCPU has it mapped: gdb does not say which one is meant.
        for vcpu in 0..self.vm.vcpus {
            match self.ask(&Debug::Break { vcpu, at }) {
                Ok(_) => return Ok(true),
                Err(ControlError::Refused { .. }) => {}
                Err(why) => return Err(TargetError::Fatal(why)),
            }
        }
        Ok(false)
    }

    fn remove_sw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        told(self.ask(&Debug::Unbreak(at))).map(|_| true)
    }
}

/// The events while the VM runs.
struct Loop<C>(PhantomData<C>);

impl<C: ConnectionExt<Error = io::Error>> BlockingEventLoop for Loop<C> {
    type Target = Debugged;
    type Connection = C;
    type StopReason = MultiThreadStopReason<u64>;

    fn wait_for_stop_reason(
        target: &mut Debugged,
        connection: &mut C,
    ) -> Result<Event<Self::StopReason>, WaitForStopReasonError<ControlError, io::Error>> {
        loop {
            if connection.peek().map_err(WaitForStopReasonError::Connection)?.is_some() {
                let byte = connection.read().map_err(WaitForStopReasonError::Connection)?;
                return Ok(Event::IncomingData(byte));
            }
            let stopped = match target.state() {
                Ok(Stopped::Not) => {
                    sleep(POLL);
                    continue;
                }
                Ok(Stopped::Halted) => {
                    MultiThreadStopReason::SignalWithThread { tid: thread(0), signal: Signal::SIGINT }
                }
                Ok(Stopped::AtBreak(vcpu)) => MultiThreadStopReason::SwBreak(thread(vcpu)),
                Ok(Stopped::Stepped(vcpu)) => {
                    MultiThreadStopReason::SignalWithThread { tid: thread(vcpu), signal: Signal::SIGTRAP }
                }
                // The VM has ended.
                Err(ControlError::Refused { .. } | ControlError::Gone(_)) => MultiThreadStopReason::Exited(0),
                Err(why) => return Err(WaitForStopReasonError::Target(why)),
            };
            return Ok(Event::TargetStopped(stopped));
        }
    }

    fn on_interrupt(target: &mut Debugged) -> Result<Option<Self::StopReason>, ControlError> {
        match target.ask(&Debug::Halt).and_then(|_| target.stop()) {
            Ok(()) => {}
            // It comes to its end, or starts over: that is seen by and by.
            Err(ControlError::Refused { .. }) => return Ok(None),
            Err(why) => return Err(why),
        }
        Ok(Some(MultiThreadStopReason::SignalWithThread { tid: thread(0), signal: Signal::SIGINT }))
    }
}
