//! Which CSRs hold a guest's supervisor state.

/// `$body`, where `$bank` names the CSRs that hold the guest's supervisor state: the VS-level ones, or
/// the S-level ones themselves.
macro_rules! with_bank {
    ($mode:expr, |$bank:ident| $body:expr) => {
        match $mode {
            hypervisor::device::offer::GuestMode::Virtual => {
                use metal::csr::vs as $bank;
                $body
            }
            hypervisor::device::offer::GuestMode::Supervisor => {
                use metal::csr as $bank;
                $body
            }
        }
    };
}
pub(super) use with_bank;
