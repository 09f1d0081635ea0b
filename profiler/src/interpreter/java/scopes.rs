//! Inlined calls of compiled methods, by return address (`pcDesc.hpp`, `scopeDesc.cpp`, `debugInfo.hpp`).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::super::memory::Memory;
use super::layout::{Layout, ScopesLayout};
use super::method::{Method, Methods};
use profiler_common::interpreter::CodePlace;

use crate::object::interpreted::{Compiled, Scope};

/// Real methods have a tenth of it.
const PART_BYTES_MAX: usize = 1 << 20;
/// `PcDesc`: offset of the address in the code, of its scope, of its objects, flags; 4 bytes each.
const PC_BYTES: usize = 16;
/// The index of a call that has none.
const ENTRY_INDEX: u32 = u32::MAX;

/// What a compiled method has of its inlined calls.
struct Parts {
    /// Offset of the code in the blob.
    code: u64,
    pcs: Vec<u8>,
    scopes: Vec<u8>,
    /// Addresses of methods and classes.
    metadata: Vec<u8>,
}

/// `None` if the blob is another method's by now.
pub(super) fn read(memory: &impl Memory, layout: &Layout, methods: &mut Methods, code: &CodePlace) -> Option<Compiled> {
    let place = layout.place();
    let at = |offset: u16| code.address.wrapping_add(offset.into());
    if memory.word(at(place.blob_method))? != code.refers_to
        || u64::from(memory.integer(at(place.blob_compilation))?) != code.detail
    {
        return None;
    }
    let own = methods.get(memory, layout, code.refers_to)?;
    let parts = layout.scopes.and_then(|scopes| Parts::read(memory, &scopes, code.address));
    let Some(parts) = parts else { return Some(Compiled::without_lines(own.function())) };
    let mut reader = Reader {
        memory,
        layout,
        methods,
        parts: &parts,
        compiled: Compiled::without_lines(own.function()),
        by_offset: FxHashMap::default(),
        functions: FxHashMap::from_iter([(code.refers_to, Some((0, own)))]),
    };
    for pc in parts.pcs.as_chunks::<PC_BYTES>().0 {
        let [offset, scope] = [0, 4].map(|at| pc[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)));
        let address = parts.code.wrapping_add(offset.into());
        // The first and the last are marks.
        if let (Ok(offset), Ok(address)) = (i32::try_from(offset), u32::try_from(address))
            && offset > 0
            && let Some(scope) = reader.scope(scope)
        {
            reader.compiled.calls.push((address, scope));
        }
    }
    let mut compiled = reader.compiled;
    compiled.calls.sort_unstable();
    Some(compiled)
}

struct Reader<'a, M> {
    memory: &'a M,
    layout: &'a Layout,
    methods: &'a mut Methods,
    parts: &'a Parts,
    compiled: Compiled,
    /// Numbers of scopes by their offsets.
    by_offset: FxHashMap<u32, Option<u32>>,
    /// Functions with their numbers, by the addresses of methods: read once, because the target may change them meanwhile.
    functions: FxHashMap<u64, Option<(u32, Arc<Method>)>>,
}

/// Places of inlined calls in a method, in all.
const SCOPES_MAX: usize = 1 << 14;
/// Functions that are inlined into a method. The compilers' limits on sizes keep it below.
const FUNCTIONS_MAX: usize = 1024;
/// Depth of inlined calls; the compilers' is limited to 9 and, for recursion and small methods, some dozens.
const DEPTH_MAX: usize = 128;

impl<M: Memory> Reader<'_, M> {
    /// The number of the scope at this offset.
    fn scope(&mut self, offset: u32) -> Option<u32> {
        // From the innermost to one that is known, then back.
        let mut chain = Vec::new();
        let mut next = offset;
        let mut caller = loop {
            if let Some(known) = self.by_offset.get(&next) {
                break *known;
            }
            if next == 0 || chain.len() == DEPTH_MAX || self.compiled.scopes.len() >= SCOPES_MAX {
                break None;
            }
            let Some(decoded) = self.decode(next) else { break None };
            chain.push((next, decoded));
            next = decoded.caller;
        };
        for (offset, decoded) in chain.into_iter().rev() {
            let number = self.function(decoded.method).and_then(|(function, method)| {
                let number = u32::try_from(self.compiled.scopes.len()).ok()?;
                let line = if decoded.index == ENTRY_INDEX { None } else { method.line(decoded.index) };
                self.compiled.scopes.push(Scope { function, line, column: None, caller });
                Some(number)
            });
            self.by_offset.insert(offset, number);
            caller = number;
        }
        caller
    }

    fn decode(&self, offset: u32) -> Option<Decoded> {
        let mut bytes = self.parts.scopes.get(usize::try_from(offset).ok()?..)?;
        let encoding = self.layout.encoding;
        let caller = encoding.number(&mut bytes)?;
        let method = encoding.number(&mut bytes)?;
        let index = encoding.number(&mut bytes)?.wrapping_sub(1);
        let slot = usize::try_from(method.checked_sub(1)?).ok()?;
        let method = self.parts.metadata.as_chunks().0.get(slot).map(|bytes| u64::from_le_bytes(*bytes))?;
        // Callers are written first.
        (caller < offset).then_some(Decoded { caller, method, index })
    }

    /// The function of a method, with its number.
    fn function(&mut self, address: u64) -> Option<(u32, Arc<Method>)> {
        if let Some(known) = self.functions.get(&address) {
            return known.clone();
        }
        if self.functions.len() >= FUNCTIONS_MAX {
            return None;
        }
        let method = self.methods.get(self.memory, self.layout, address);
        let function = method.and_then(|method| {
            let number = u32::try_from(self.compiled.functions.len()).ok()?;
            self.compiled.functions.push((method.name.clone(), method.file.clone()));
            Some((number, method))
        });
        self.functions.insert(address, function.clone());
        function
    }
}

#[derive(Clone, Copy)]
struct Decoded {
    /// Offset of the scope that this one was inlined into; 0 for none.
    caller: u32,
    method: u64,
    /// In the method's bytecode.
    index: u32,
}

impl Parts {
    fn read(memory: &impl Memory, layout: &ScopesLayout, blob: u64) -> Option<Self> {
        let word = |offset: u64| memory.word(blob.wrapping_add(offset));
        let integer = |offset: u64| memory.integer(blob.wrapping_add(offset)).map(u64::from);
        let range = |start, end| memory.range(start, end, PART_BYTES_MAX);
        match *layout {
            ScopesLayout::Inside { code, scopes, metadata, pcs, after_pcs } => {
                let (scopes, pcs) = (word(scopes)?, blob.wrapping_add(integer(pcs)?));
                Some(Self {
                    code: word(code)?.wrapping_sub(blob),
                    pcs: range(pcs, blob.wrapping_add(integer(after_pcs)?))?,
                    scopes: range(scopes, pcs)?,
                    metadata: range(blob.wrapping_add(integer(metadata)?), scopes)?,
                })
            }
            ScopesLayout::Outside {
                code,
                mutable,
                mutable_bytes,
                immutable,
                immutable_bytes,
                relocation_bytes,
                pcs,
                scopes,
            } => {
                let (mutable, mutable_bytes) = (word(mutable)?, integer(mutable_bytes)?);
                let (immutable, immutable_bytes) = (word(immutable)?, integer(immutable_bytes)?);
                let scopes = immutable.wrapping_add(integer(scopes)?);
                Some(Self {
                    code: integer(code)?,
                    pcs: range(immutable.wrapping_add(integer(pcs)?), scopes)?,
                    scopes: range(scopes, immutable.wrapping_add(immutable_bytes))?,
                    metadata: range(
                        mutable.wrapping_add(integer(relocation_bytes)?),
                        mutable.wrapping_add(mutable_bytes),
                    )?,
                })
            }
        }
    }
}
