//! How many bytes the cores of this host keep in the cache that they share.

use std::sync::OnceLock;

/// What Linux says of it. A virtual machine may be told less than the processor has, or more.
const FILE: &str = "/sys/devices/system/cpu/cpu0/cache/index3/size";
/// What a group of cores of an EPYC shares: taken where nothing is said.
const USUAL: usize = 32 << 20;
/// In the tests of this crate, so that they need no long buffers to come to what is done there.
const IN_TESTS: usize = 128 << 10;

/// The bytes of the cache that cores share, or the usual number where the system does not tell.
fn last_level_cache() -> usize {
    if cfg!(test) {
        return IN_TESTS;
    }
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| std::fs::read_to_string(FILE).ok().and_then(|text| bytes(&text)).unwrap_or(USUAL))
}

/// Whether so many bytes, written by all ranks in one operation, do not stay in the cache that cores share: half of it, since as many are read.
pub(crate) fn outgrows_cache(written: usize) -> bool {
    written >= last_level_cache() / 2
}

/// Reads a size as Linux writes it: `32768K`.
fn bytes(text: &str) -> Option<usize> {
    let text = text.trim_end();
    let (number, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit).filter(|&bytes| bytes > 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_linux_writes_them() {
        assert_eq!(bytes("32768K\n"), Some(32 << 20));
        assert_eq!(bytes("260M"), Some(260 << 20));
        assert_eq!(bytes("1024"), Some(1024));
        for text in ["", "\n", "K", "0K", "-1K", "much", "18446744073709551615K"] {
            assert_eq!(bytes(text), None, "{text:?}");
        }
    }
}
