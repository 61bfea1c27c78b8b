//! The H extension's whole translation: a VS-stage walk each of whose references is itself
//! translated by the G-stage (norm:H_vm_gstagetrans).

use crate::walk::{self, AdPolicy, Fault, ReadPte, Reason, UpdatePte, Walk};
use rv::{Access, Addr, Caps, Exception, Format, Gpa, Gva, Hpa, Pfn, Pte, Request, Space, Trap};

/// `htinst` of a guest-page fault on reading a VS-stage entry, for 64-bit entries (the spec's
/// "pseudoinstruction"; norm:H_trap_xtinst_guestpage).
pub const TINST_PTE_READ: u64 = 0x3000;
/// Like [`TINST_PTE_READ`], for a fault on writing an entry, to set A or D (norm:H_trap_xtinst_guestpage_rw).
pub const TINST_PTE_WRITE: u64 = 0x3020;

/// One stage that is not Bare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage<Out: Space> {
    /// The table's format.
    pub format: &'static Format,
    /// Its root.
    pub root: Pfn<Out>,
    /// The extensions that give its entries more meaning.
    pub caps: Caps,
    /// The policy for setting its A and D flags.
    pub ad: AdPolicy,
}

/// Both stages, as `vsatp` and `hgatp` select them; `None` is Bare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stages {
    /// The guest's own table, of guest physical addresses.
    pub vs: Option<Stage<Gpa>>,
    /// The hypervisor's table.
    pub g: Option<Stage<Hpa>>,
}

/// The addresses of a guest's access after translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// After the VS-stage.
    pub gpa: Addr<Gpa>,
    /// After both stages.
    pub hpa: Addr<Hpa>,
}

/// The reason why the G-stage cannot serve an access to guest physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestMemory {
    /// A guest-page fault.
    Fault {
        /// The address that faulted.
        gpa: Addr<Gpa>,
        /// Its `htinst`.
        tinst: u64,
    },
    /// No memory to read or write where a table should be.
    NoMemory,
}

/// Translates a guest's access as a hart with the H extension does.
///
/// `mem` reads (and, where a stage says Svadu, updates) host memory; its error means that nothing
/// is there, which raises an access fault. With both stages Svade nothing is written.
///
/// # Errors
/// The trap that the hardware raises: the exception is always that of the original access
/// (norm:H_vm_gpapriv), `tval` the guest virtual address, `tval2` the faulting guest physical
/// address shifted right by 2, `tinst` the pseudoinstruction for faults of implicit accesses. For
/// faults of the access itself `tinst` is 0: only the hart knows the instruction.
pub fn two_stage<M: UpdatePte<Hpa>>(
    stages: &Stages,
    gva: Addr<Gva>,
    req: &Request,
    mem: &mut M,
) -> Result<Arrival, Trap> {
    let trap = |what| trap_of(what, req.access, gva);
    let gpa = match &stages.vs {
        // VS-stage Bare: the address passes unchanged, and only the G-stage judges it.
        None => Addr::new(gva.raw()),
        Some(vs) => {
            let mut tables = GuestTables { g: stages.g, mem };
            walk::translate(vs.format, vs.root, gva, req, (vs.caps, vs.ad), &mut tables)
                .map_err(|fault| match fault.reason {
                    Reason::Memory(what) => trap(what),
                    _ => Trap::new(page_fault(req.access), gva.raw()),
                })?
                .out
        }
    };
    let hpa = through_g(&stages.g, gpa, &req.at_g_stage(), mem).map_err(|fault| trap(explicit(fault, gpa)))?;
    Ok(Arrival { gpa, hpa })
}

/// The guest's tables, seen through the G-stage.
pub struct GuestTables<'a, M> {
    /// The G-stage, if it is not Bare.
    pub g: Option<Stage<Hpa>>,
    /// Host memory.
    pub mem: &'a mut M,
}

impl<M: UpdatePte<Hpa>> GuestTables<'_, M> {
    /// An implicit access: checked as a user load or store of its own, whatever the original access
    /// is (norm:H_vm_gpapriv), and MXR, which is about explicit loads, has no say.
    fn reach(&mut self, at: Addr<Gpa>, access: Access, tinst: u64) -> Result<Addr<Hpa>, GuestMemory> {
        through_g(&self.g, at, &Request::user(access), self.mem).map_err(|fault| match fault.reason {
            Reason::Memory(_) => GuestMemory::NoMemory,
            _ => GuestMemory::Fault { gpa: at, tinst },
        })
    }
}

impl<M: UpdatePte<Hpa>> ReadPte<Gpa> for GuestTables<'_, M> {
    type Error = GuestMemory;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, GuestMemory> {
        let hpa = self.reach(at, Access::Load, TINST_PTE_READ)?;
        self.mem.read(hpa).map_err(|_| GuestMemory::NoMemory)
    }
}

impl<M: UpdatePte<Hpa>> UpdatePte<Gpa> for GuestTables<'_, M> {
    fn update(&mut self, at: Addr<Gpa>, old: Pte, new: Pte) -> Result<bool, GuestMemory> {
        let hpa = self.reach(at, Access::Store, TINST_PTE_WRITE)?;
        self.mem.update(hpa, old, new).map_err(|_| GuestMemory::NoMemory)
    }
}

/// Translates `gpa` by the G-stage, for a request as the G-stage sees it ([`Request::at_g_stage`]).
///
/// # Errors
/// The reason for its refusal.
pub fn through_g<M: UpdatePte<Hpa>>(
    g: &Option<Stage<Hpa>>,
    gpa: Addr<Gpa>,
    req: &Request,
    mem: &mut M,
) -> Result<Addr<Hpa>, Fault<M::Error>> {
    match g {
        None => Ok(Addr::new(gpa.raw())),
        Some(g) => {
            let found: Walk<Hpa> = walk::translate(g.format, g.root, gpa, req, (g.caps, g.ad), mem)?;
            Ok(found.out)
        }
    }
}

fn explicit<E>(fault: Fault<E>, gpa: Addr<Gpa>) -> GuestMemory {
    match fault.reason {
        Reason::Memory(_) => GuestMemory::NoMemory,
        _ => GuestMemory::Fault { gpa, tinst: 0 },
    }
}

fn trap_of(what: GuestMemory, access: Access, gva: Addr<Gva>) -> Trap {
    match what {
        GuestMemory::Fault { gpa, tinst } => {
            Trap { exception: guest_page_fault(access), tval: gva.raw(), tval2: gpa.raw() >> 2, tinst }
        }
        GuestMemory::NoMemory => Trap::new(access_fault(access), gva.raw()),
    }
}

/// The page fault that a refused access raises. HLVX raises that of a load.
#[must_use]
pub const fn page_fault(access: Access) -> Exception {
    match access {
        Access::Load | Access::LoadExec => Exception::LoadPage,
        Access::Store => Exception::StorePage,
        Access::Fetch => Exception::FetchPage,
    }
}

/// The guest-page fault that an access refused by the G-stage raises.
#[must_use]
pub const fn guest_page_fault(access: Access) -> Exception {
    match access {
        Access::Load | Access::LoadExec => Exception::LoadGuestPage,
        Access::Store => Exception::StoreGuestPage,
        Access::Fetch => Exception::FetchGuestPage,
    }
}

/// The access fault that an access to nothing raises.
#[must_use]
pub const fn access_fault(access: Access) -> Exception {
    match access {
        Access::Load | Access::LoadExec => Exception::LoadAccess,
        Access::Store => Exception::StoreAccess,
        Access::Fetch => Exception::FetchAccess,
    }
}
