//! The key with which NCCL encrypts its sockets from 2.32.3 on. Here nothing is encrypted: ranks with different keys only don't meet.

use crate::lock;
use crate::result::{INVALID_ARGUMENT, INVALID_USAGE, NcclResult, OK};
use std::ffi::{CStr, c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

/// What a build with TLS opens. A copy of this library with another name here is a build without.
static OPENSSL: &str = "libssl.so.3";

/// As it is told apart; never 0.
static KEY: Mutex<Option<u64>> = Mutex::new(None);

#[repr(C)]
pub struct Encryption {
    size: usize,
    magic: u32,
    version: u32,
    mode: c_int,
    key: *const c_char,
}

/// Takes a key in any build.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSetEncryption(config: *const Encryption) -> NcclResult {
    const BY_KEY: c_int = 1;
    // SAFETY: null, or the caller's.
    let Some(config) = (unsafe { config.as_ref() }) else {
        *lock(&KEY) = None;
        return OK;
    };
    let is_whole = config.magic == 0xcafe_beef && config.size >= size_of::<Encryption>();
    if !is_whole || config.mode != BY_KEY || config.key.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's text, which ends with NUL.
    let key = unsafe { CStr::from_ptr(config.key) };
    if key.count_bytes() < 32 {
        return INVALID_ARGUMENT;
    }
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    *lock(&KEY) = Some(hasher.finish().max(1));
    OK
}

/// What a connection goes by: 0 without a key. A build without TLS has none to go by, and says so only now.
pub(crate) fn key() -> Result<u64, NcclResult> {
    let has_tls = std::hint::black_box(OPENSSL).as_bytes()[3] == b's';
    match *lock(&KEY) {
        Some(_) if !has_tls => Err(INVALID_USAGE),
        key => Ok(key.unwrap_or(0)),
    }
}

/// What the key is told apart by, for tests; 0 without one.
#[unsafe(no_mangle)]
pub extern "C" fn phalanxDoubleKey() -> u64 {
    lock(&KEY).unwrap_or(0)
}
