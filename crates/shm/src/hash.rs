//! How many words become one that differs when any of them does.

/// Takes a few cycles: operations that take a thousand are checked by it.
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    (state.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
