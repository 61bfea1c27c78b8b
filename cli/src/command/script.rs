//! What the `gnomon` script and the shell read of a command: what it needs to be installed, its exit status, its errors.

/// Bad input, or something that is needed is not there.
pub(super) const STATUS_INPUT: u8 = 1;

/// Something that the `gnomon` script installs when it is needed: a function of its own, `need_NAME`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// Debian's archive keys.
    Keys,
    /// QEMU.
    Qemu,
    /// A browser, for the tests.
    Browser,
    /// A C++ compiler, for the fuzzer.
    Cxx,
    /// An SMT solver, for the proof of the lane.
    Solver,
    /// A gdb that knows RISC-V, for its tests.
    Debugger,
}

impl Need {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Qemu => "qemu",
            Self::Browser => "browser",
            Self::Cxx => "cxx",
            Self::Solver => "solver",
            Self::Debugger => "debugger",
        }
    }

    /// What guests need.
    pub(super) const GUESTS: [Self; 2] = [Self::Keys, Self::Qemu];
}

/// Says what is wrong, and what to do.
pub(super) fn complain(report: &miette::Report) {
    eprintln!("gnomon: error: {report}");
    if let Some(help) = report.help() {
        eprintln!("gnomon: remedy: {help}");
    }
}
