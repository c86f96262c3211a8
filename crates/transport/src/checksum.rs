//! Checksums of frames: XXH3, which is about as fast as memory is read.
//!
//! They find what changed a frame on its way by accident. Against people there is encryption: links are authenticated, and no stranger
//! sends frames.

use crate::frame::HEADER_LEN;
use twox_hash::XxHash3_64;

/// Longest payload of a frame with checksums. All of it is kept until it has been checked: that should fit into a cache.
pub(crate) const CHECKED_LEN_MAX: usize = 64 << 10;
/// Bytes of the checksum of what follows a header; it stands between the two.
pub(crate) const BODY_SUM_LEN: usize = 8;
/// The place of a header's own checksum, in bytes that are zero without checksums.
const HEADER_SUM: std::ops::Range<usize> = 20..24;

/// Puts its checksum into an encoded header.
pub(crate) fn seal(header: &mut [u8; HEADER_LEN]) {
    let sum = of_header(header);
    header[HEADER_SUM].copy_from_slice(&sum);
}

/// Takes the checksum out of a header again; false if it is not that header's.
pub(crate) fn unseal(header: &mut [u8; HEADER_LEN]) -> bool {
    let mut sum = [0; 4];
    sum.copy_from_slice(&header[HEADER_SUM]);
    header[HEADER_SUM].fill(0);
    sum == of_header(header)
}

fn of_header(header: &[u8; HEADER_LEN]) -> [u8; 4] {
    (XxHash3_64::oneshot(header) as u32).to_le_bytes()
}

/// The checksum of everything that follows a header.
pub(crate) fn of_body(signature: &[u8], payload: &[u8]) -> [u8; BODY_SUM_LEN] {
    let seed = if signature.is_empty() { 0 } else { XxHash3_64::oneshot(signature) };
    XxHash3_64::oneshot_with_seed(seed, payload).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let mut sealed: [u8; HEADER_LEN] = std::array::from_fn(|i| i as u8);
        sealed[HEADER_SUM].fill(0);
        let plain = sealed;
        seal(&mut sealed);
        for bit in 0..8 * HEADER_LEN {
            let mut changed = sealed;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!unseal(&mut changed), "bit {bit}");
        }
        assert!(unseal(&mut sealed));
        assert_eq!(sealed, plain);
    }

    #[test]
    fn every_flipped_bit_of_a_body_is_noticed() {
        for (signature, payload) in
            [(vec![], vec![1u8; 300]), (vec![3; 50], vec![]), (vec![3; 50], vec![0; 20])]
        {
            let sum = of_body(&signature, &payload);
            for bit in 0..8 * (signature.len() + payload.len()) {
                let mut body = [&signature[..], &payload].concat();
                body[bit / 8] ^= 1 << (bit % 8);
                let (signature, payload) = body.split_at(signature.len());
                assert_ne!(of_body(signature, payload), sum, "bit {bit}");
            }
        }
    }
}
