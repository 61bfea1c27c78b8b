//! The guest's agent, which runs programs for `gnomon shell` and `gnomon cp` (`programs/src/bin/agent`).

use crate::host::build::BuildError;
use crate::host::parts;
use crate::host::place::IoError;
use miette::Diagnostic;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, U16, U64};

/// Its path in the initramfs.
pub const PATH: &str = "bin/gnomon-agent";
/// The path in the initramfs of its unit, for a system with systemd.
pub const UNIT_PATH: &str = "etc/gnomon-agent.service";
/// The unit.
pub const UNIT: &str = include_str!("initramfs/agent.service");

/// The reason why there is no agent.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum AgentError {
    /// The agent cannot be built.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Build(#[from] BuildError),
    /// The agent cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
    /// The compiler has made something else.
    #[error("the agent of gnomon shell is not a program")]
    #[diagnostic(help("this is a bug of Gnomon's; start without it: --shell off"))]
    Damaged,
}

/// Builds the agent. Returns its ELF file, without what Linux does not load.
///
/// # Errors
/// [`AgentError`].
pub fn provide() -> Result<Vec<u8>, AgentError> {
    let path = parts::program("agent")?;
    let file = std::fs::read(&path).map_err(IoError::at("read", &path))?;
    loaded(file).ok_or(AgentError::Damaged)
}

/// Cuts an ELF file off behind its last segment, so that it has no sections.
fn loaded(mut file: Vec<u8>) -> Option<Vec<u8>> {
    let bytes = file.as_slice();
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, bytes).ok()?;
    let loads = segments.iter().filter(|segment| segment.p_type(endian) == object::elf::PT_LOAD);
    let end = loads.map(|segment| segment.p_offset(endian).checked_add(segment.p_filesz(endian))).max()??;
    let mut plain = *header;
    plain.e_shoff = U64::new(endian, 0);
    plain.e_shnum = U16::new(endian, 0);
    plain.e_shstrndx = U16::new(endian, object::elf::SymbolSection(0));
    let start = object::pod::bytes_of(&plain).to_vec();
    file.truncate(usize::try_from(end).ok()?);
    file.get_mut(..start.len())?.copy_from_slice(&start);
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_loses_its_sections_alone() {
        let own = std::fs::read(std::env::current_exe().expect("a program")).expect("readable");
        let short = loaded(own.clone()).expect("a program");
        assert!(short.len() < own.len());
        assert_eq!(short[64..], own[64..short.len()]);
        let header = FileHeader64::<Endianness>::parse(short.as_slice()).expect("a header");
        let endian = header.endian().expect("an order");
        assert!(header.section_headers(endian, short.as_slice()).expect("sections").is_empty());
        assert!(loaded(b"no program".to_vec()).is_none());
    }
}
