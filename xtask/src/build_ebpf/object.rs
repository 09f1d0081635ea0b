//! Makes of a linked object the one that is committed: without DWARF, which only disassemblers read and which is most
//! of it, and without a trace of the machine it was built on. BTF stays: the loader and the verifier's log use it.

use anyhow::{Context as _, Result, bail};
use object::build::elf::{Builder, SectionData};
use object::elf;

/// Strips `linked` and refuses an object in which one of `private_paths` occurs.
pub(super) fn publish(linked: &[u8], private_paths: &[String]) -> Result<Vec<u8>> {
    let stripped = strip(linked).context("the linker's output could not be stripped")?;
    if let Some(path) = private_paths.iter().find(|path| contains(&stripped, path.as_bytes())) {
        bail!("the object contains `{path}`, a folder of this machine, and would differ on any other");
    }
    Ok(stripped)
}

/// Removes the debug sections, the relocations for them and their section symbols.
fn strip(linked: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(linked)?;
    let is_debug = |name: &[u8]| name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    let debug: Vec<_> = builder
        .sections
        .iter()
        .filter(|section| is_debug(section.name.as_slice()))
        .map(|section| section.id())
        .collect();
    for id in debug {
        builder.sections.get_mut(id).delete = true;
    }
    builder.delete_orphans();
    // LLVM keeps sections' names and symbols' names in one table, and `object` writes two.
    if !builder.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = builder.sections.add();
        names.name = ".shstrtab".into();
        names.sh_type = elf::SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

fn contains(content: &[u8], wanted: &[u8]) -> bool {
    !wanted.is_empty() && content.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests;
