//! Branches of x86-64 code.

use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};

/// Addresses outside of this code, which begins at `start`, that it jumps to directly.
pub(in crate::interpreter) fn branches_out(code: &[u8], start: u64) -> Vec<u64> {
    let end = start.saturating_add(code.len() as u64);
    let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut targets: Vec<u64> = decoder
        .into_iter()
        .filter(|instruction| {
            matches!(instruction.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch)
                && matches!(instruction.op0_kind(), OpKind::NearBranch64)
        })
        .map(|instruction| instruction.near_branch_target())
        .filter(|target| !(start..end).contains(target))
        .collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_jumps_leave_the_code() {
        let code = [
            0x90, // nop
            0x74, 0xfd, // je 0x1000
            0x0f, 0x84, 0xf7, 0x0f, 0, 0, // je 0x2000
            0xe8, 0xf2, 0x1f, 0, 0, // call 0x3000
            0xe9, 0xed, 0xef, 0xff, 0xff, // jmp 0
            0xff, 0xe0, // jmp *%rax
        ];
        assert_eq!(branches_out(&code, 0x1000), [0, 0x2000]);
    }
}
