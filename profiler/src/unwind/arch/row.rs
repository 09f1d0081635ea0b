//! Rows of unwind information, and why one is not translated.

use gimli::{
    Encoding, EndianSlice, LittleEndian, Operation, Register, RegisterRule, UnwindContextStorage, UnwindExpression,
    UnwindSection, UnwindTableRow,
};
use strum::EnumCount;

/// One row: on x86-64 17 general registers, 10 vector registers that functions of the Windows ABI save; on aarch64 12, 8 and the
/// state of the signature. Its size bounds the work
/// that a module can cause: DWARF's `remember_state`, an instruction of two bytes, copies a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowStorage;

impl UnwindContextStorage<usize> for RowStorage {
    type Rules = [(Register, RegisterRule<usize>); 32];
    type Stack = Box<[UnwindTableRow<usize, Self>; 16]>;
}

pub(crate) type Bytes<'data> = EndianSlice<'data, LittleEndian>;

/// Per expression. The longest supported one, of a procedure linkage table, has 9.
const OPERATIONS_MAX: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub(crate) enum Unsupported {
    /// Relative to a register that calls overwrite. Only a signal leads to such code, never a return address.
    VolatileCfa,
    /// Relative to another register that calls preserve.
    PreservedCfa,
    CfaExpression,
    /// An offset exceeds the range of a rule, or the stack would not shrink.
    Offset,
    /// The return address is neither below the CFA nor, on aarch64, at another fixed place.
    ReturnAddress,
    /// A signal frame other than the kernel's.
    SignalFrame,
    /// The instructions are malformed, or of a kind that compilers do not write.
    Malformed,
    TooManyRules,
}

#[cfg(test)]
impl Unsupported {
    /// Return addresses, and therefore ordinary stacks, can be in such code.
    pub(crate) const fn breaks_stacks(self) -> bool {
        !matches!(self, Self::VolatileCfa)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a, S> {
    pub section: &'a S,
    pub encoding: Encoding,
    pub is_signal: bool,
}

pub(crate) type Row = UnwindTableRow<usize, RowStorage>;

pub(super) fn operations<'data, S: UnwindSection<Bytes<'data>>>(
    context: &Context<'_, S>,
    expression: &UnwindExpression<usize>,
) -> Result<Vec<Operation<Bytes<'data>>>, Unsupported> {
    let expression = expression.get(context.section).map_err(|_| Unsupported::Malformed)?;
    let mut iterator = expression.operations(context.encoding);
    let mut operations = Vec::with_capacity(OPERATIONS_MAX);
    while let Some(operation) = iterator.next().map_err(|_| Unsupported::Malformed)? {
        if operations.len() == OPERATIONS_MAX {
            return Err(Unsupported::CfaExpression);
        }
        operations.push(operation);
    }
    Ok(operations)
}

pub(super) fn narrow(offset: i64) -> Result<i16, Unsupported> {
    i16::try_from(offset).map_err(|_| Unsupported::Offset)
}
