//! The entry points of the lane's blocks of code ([`crate::lane`]), by the way out of the guest, by what they do, and
//! by the format.

use rv::Format;

unsafe extern "C" {
    fn lane_table_vs_m_39_0();
    fn lane_table_vs_m_39_0_sync();
    fn lane_table_vs_m_39_1();
    fn lane_table_vs_m_39_1_sync();
    fn lane_table_vs_m_48_0();
    fn lane_table_vs_m_48_0_sync();
    fn lane_table_vs_m_48_1();
    fn lane_table_vs_m_48_1_sync();
    fn lane_table_vs_m_57_0();
    fn lane_table_vs_m_57_0_sync();
    fn lane_table_vs_m_57_1();
    fn lane_table_vs_m_57_1_sync();
    fn lane_table_vs_hs_39_0();
    fn lane_table_vs_hs_39_0_sync();
    fn lane_table_vs_hs_39_1();
    fn lane_table_vs_hs_39_1_sync();
    fn lane_table_vs_hs_48_0();
    fn lane_table_vs_hs_48_0_sync();
    fn lane_table_vs_hs_48_1();
    fn lane_table_vs_hs_48_1_sync();
    fn lane_table_vs_hs_57_0();
    fn lane_table_vs_hs_57_0_sync();
    fn lane_table_vs_hs_57_1();
    fn lane_table_vs_hs_57_1_sync();
    fn lane_table_s_m_39_0();
    fn lane_table_s_m_39_0_sync();
    fn lane_table_s_m_39_1();
    fn lane_table_s_m_39_1_sync();
    fn lane_table_s_m_48_0();
    fn lane_table_s_m_48_0_sync();
    fn lane_table_s_m_48_1();
    fn lane_table_s_m_48_1_sync();
    fn lane_table_s_m_57_0();
    fn lane_table_s_m_57_0_sync();
    fn lane_table_s_m_57_1();
    fn lane_table_s_m_57_1_sync();
}

/// The way out of a guest, and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From VS mode to M mode.
    VirtualToMachine,
    /// From VS mode to HS mode.
    VirtualToSupervisor,
    /// From S mode to M mode.
    SupervisorToMachine,
}

/// The lane's effect on the entry of the fenced address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// Invalid until the next access.
    Invalidate,
    /// Synchronised with the guest's entry.
    Sync,
}

/// The address of the jump table for shadow roots of `format`. `has_zba`: the harts have Zba, which saves an instruction
/// for each level.
///
/// # Panics
/// If it is not a format of `satp`.
#[must_use]
pub fn table(way: Way, deed: Deed, format: &Format, has_zba: bool) -> u64 {
    type Tables = [[unsafe extern "C" fn(); 2]; 3];
    let tables: Tables = match (way, deed) {
        (Way::VirtualToMachine, Deed::Invalidate) => [
            [lane_table_vs_m_39_0, lane_table_vs_m_39_1],
            [lane_table_vs_m_48_0, lane_table_vs_m_48_1],
            [lane_table_vs_m_57_0, lane_table_vs_m_57_1],
        ],
        (Way::VirtualToMachine, Deed::Sync) => [
            [lane_table_vs_m_39_0_sync, lane_table_vs_m_39_1_sync],
            [lane_table_vs_m_48_0_sync, lane_table_vs_m_48_1_sync],
            [lane_table_vs_m_57_0_sync, lane_table_vs_m_57_1_sync],
        ],
        (Way::VirtualToSupervisor, Deed::Invalidate) => [
            [lane_table_vs_hs_39_0, lane_table_vs_hs_39_1],
            [lane_table_vs_hs_48_0, lane_table_vs_hs_48_1],
            [lane_table_vs_hs_57_0, lane_table_vs_hs_57_1],
        ],
        (Way::VirtualToSupervisor, Deed::Sync) => [
            [lane_table_vs_hs_39_0_sync, lane_table_vs_hs_39_1_sync],
            [lane_table_vs_hs_48_0_sync, lane_table_vs_hs_48_1_sync],
            [lane_table_vs_hs_57_0_sync, lane_table_vs_hs_57_1_sync],
        ],
        (Way::SupervisorToMachine, Deed::Invalidate) => [
            [lane_table_s_m_39_0, lane_table_s_m_39_1],
            [lane_table_s_m_48_0, lane_table_s_m_48_1],
            [lane_table_s_m_57_0, lane_table_s_m_57_1],
        ],
        (Way::SupervisorToMachine, Deed::Sync) => [
            [lane_table_s_m_39_0_sync, lane_table_s_m_39_1_sync],
            [lane_table_s_m_48_0_sync, lane_table_s_m_48_1_sync],
            [lane_table_s_m_57_0_sync, lane_table_s_m_57_1_sync],
        ],
    };
    tables[usize::from(format.levels) - 3][usize::from(has_zba)] as *const () as u64
}
