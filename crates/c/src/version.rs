//! The version of the interface, which a program can compare with that of its header.

use std::ffi::c_int;

/// The version of this interface. It grows when programs that were built against an older header can no longer work with the library.
pub const PHALANX_ABI_VERSION: c_int = 1;

/// The version of the interface that the library has: compare it with `PHALANX_ABI_VERSION`, that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_abi_version() -> c_int {
    PHALANX_ABI_VERSION
}
