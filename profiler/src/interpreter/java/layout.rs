//! Offsets in the machine's structures.

use profiler_common::hotspot::{BLOB_WORDS, HAS_OFFSETS, Hotspot};

use super::super::memory::Memory;
use super::stream::Encoding;
use super::structs::Structs;
use super::structs::Unsupported;

#[derive(Clone, Debug)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Layout {
    /// What the kernel side needs, without addresses.
    place: Hotspot,
    pub(super) encoding: Encoding,
    pub(super) method_constant: u64,
    pub(super) constant_pool: u64,
    pub(super) constant_name: u64,
    pub(super) constant_code_bytes: u64,
    pub(super) constant_flags: u64,
    /// The bytecode follows.
    pub(super) constant_bytes: u64,
    pub(super) pool_holder: u64,
    /// Where the index of the name of the source file is.
    pub(super) source: Source,
    /// The entries follow.
    pub(super) pool_bytes: u64,
    pub(super) class_name: u64,
    pub(super) symbol_length: u64,
    pub(super) symbol_body: u64,
    pub(super) scopes: Option<ScopesLayout>,
}

/// An offset, in what has it.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub(super) enum Source {
    Pool(u64),
    /// Until JDK 15.
    Class(u64),
}

/// Where the blob of a compiled method has its inlined calls. Until JDK 22, all of it is in the blob; since 23, in memory of its own.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(serde::Serialize, serde::Deserialize))]
pub(super) enum ScopesLayout {
    Inside {
        /// Addresses.
        code: u64,
        scopes: u64,
        /// Offsets in the blob.
        metadata: u64,
        pcs: u64,
        after_pcs: u64,
    },
    Outside {
        /// Offset in the blob.
        code: u64,
        /// Addresses and sizes.
        mutable: u64,
        mutable_bytes: u64,
        immutable: u64,
        immutable_bytes: u64,
        /// Bytes of mutable data before the metadata.
        relocation_bytes: u64,
        /// Offsets in immutable data.
        pcs: u64,
        scopes: u64,
    },
}

impl Layout {
    pub(super) fn new(structs: &Structs, memory: &impl Memory) -> Result<Self, Unsupported> {
        let version = structs.value("Abstract_VM_Version", "_vm_major_version")?;
        let version = memory.integer(version).ok_or(Unsupported::Unreadable)?;
        let of_method = |field| structs.find("nmethod", field).or_else(|| structs.find("CompiledMethod", field));
        let method = of_method("_method").ok_or(Unsupported::Missing("nmethod::_method"))?;
        let constant_flags =
            structs.find("ConstMethod", "_flags").or_else(|| structs.find("ConstMethod", "_flags._flags"));
        let index = "_source_file_name_index";
        let source = structs.find("ConstantPool", index).map(Source::Pool);
        let source = source.or_else(|| structs.find("InstanceKlass", index).map(Source::Class));
        let place = Place { structs, method }.hotspot(of_method)?;
        Ok(Self {
            place,
            encoding: Encoding::of_version(version),
            method_constant: structs.offset("Method", "_constMethod")?,
            constant_pool: structs.offset("ConstMethod", "_constants")?,
            constant_name: structs.offset("ConstMethod", "_name_index")?,
            constant_code_bytes: structs.offset("ConstMethod", "_code_size")?,
            constant_flags: constant_flags.ok_or(Unsupported::Missing("ConstMethod::_flags"))?,
            constant_bytes: structs.size("ConstMethod")?,
            pool_holder: structs.offset("ConstantPool", "_pool_holder")?,
            source: source.ok_or(Unsupported::Missing(index))?,
            pool_bytes: structs.size("ConstantPool")?,
            class_name: structs.offset("Klass", "_name")?,
            symbol_length: structs.offset("Symbol", "_length")?,
            symbol_body: structs.offset("Symbol", "_body")?,
            scopes: ScopesLayout::new(structs),
        })
    }

    pub(super) fn place(&self) -> Hotspot {
        self.place
    }
}

struct Place<'a> {
    structs: &'a Structs,
    method: u64,
}

impl Place<'_> {
    fn hotspot(&self, of_method: impl Fn(&'static str) -> Option<u64>) -> Result<Hotspot, Unsupported> {
        let structs = self.structs;
        let compilation = structs.offset("nmethod", "_compile_id")?;
        let original = structs.offset("nmethod", "_orig_pc_offset")?;
        let addresses = [of_method("_deopt_handler_begin"), of_method("_deopt_mh_handler_begin")];
        let offsets = [of_method("_deopt_handler_offset"), of_method("_deopt_mh_handler_offset")];
        let has_offsets = addresses[0].is_none() && offsets[0].is_some();
        let deoptimizers = if has_offsets { offsets } else { addresses };
        let name = structs.offset("CodeBlob", "_name")?;
        let frame_words = structs.offset("CodeBlob", "_frame_size")?;
        let fields = [Some(name), Some(frame_words), Some(self.method), Some(compilation), Some(original)];
        let last = fields.into_iter().chain(deoptimizers).flatten().max().unwrap_or(0);
        let blob_bytes = (last + 8).next_multiple_of(8);
        if blob_bytes > BLOB_WORDS as u64 * 8 {
            return Err(Unsupported::Missing("CodeBlob"));
        }
        let short = |offset: u64| u16::try_from(offset).unwrap_or(u16::MAX);
        Ok(Hotspot {
            block_header: short(structs.size("HeapBlock")?),
            blob_bytes: short(blob_bytes),
            blob_name: short(name),
            blob_frame_words: short(frame_words),
            blob_method: short(self.method),
            blob_compilation: short(compilation),
            blob_deoptimizers: deoptimizers.map(|offset| short(offset.unwrap_or(0))),
            blob_original: short(original),
            method_constant: short(structs.offset("Method", "_constMethod")?),
            constant_bytecode: short(structs.size("ConstMethod")?),
            flags: if has_offsets { HAS_OFFSETS } else { 0 },
            ..Hotspot::default()
        })
    }
}

impl ScopesLayout {
    /// `None` for JDK 23 and 24, whose layout is between the two.
    fn new(structs: &Structs) -> Option<Self> {
        let blob = |field| structs.find("CodeBlob", field);
        let method = |field| structs.find("nmethod", field);
        if let Some(mutable) = blob("_mutable_data") {
            return Some(Self::Outside {
                code: blob("_code_offset")?,
                mutable,
                mutable_bytes: blob("_mutable_data_size")?,
                immutable: method("_immutable_data")?,
                immutable_bytes: method("_immutable_data_size")?,
                relocation_bytes: blob("_relocation_size")?,
                pcs: method("_scopes_pcs_offset")?,
                scopes: method("_scopes_data_offset")?,
            });
        }
        Some(Self::Inside {
            code: blob("_code_begin")?,
            scopes: structs.find("CompiledMethod", "_scopes_data_begin")?,
            metadata: method("_metadata_offset")?,
            pcs: method("_scopes_pcs_offset")?,
            after_pcs: method("_dependencies_offset")?,
        })
    }
}
