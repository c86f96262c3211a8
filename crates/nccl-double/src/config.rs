//! How communicators are to be: what their callers, the environment and NCCL's files say.

use crate::fault;
use std::ffi::c_int;

/// To NCCL worth more than what a communicator is configured to.
const BLOCKING: &str = "NCCL_COMM_BLOCKING";

/// The beginning of `ncclConfig_t`, which all its versions have.
#[repr(C)]
pub struct Config {
    pub(crate) size: usize,
    pub(crate) magic: u32,
    pub(crate) version: u32,
    pub(crate) blocking: c_int,
}

impl Config {
    /// Whether calls are to block, which they do where nothing is said; `None` if it is no configuration.
    pub(crate) fn blocking(config: Option<&Self>) -> Option<bool> {
        const MAGIC: u32 = 0xcafe_beef;
        const UNDEFINED: c_int = c_int::MIN;
        let has_blocking =
            |config: &Self| config.size > std::mem::offset_of!(Self, blocking) && config.version >= 21_400;
        let said = match config {
            None => true,
            Some(config) if config.magic != MAGIC => return None,
            Some(config) if !has_blocking(config) => true,
            Some(Self { blocking: 0, .. }) => false,
            Some(Self { blocking: 1 | UNDEFINED, .. }) => true,
            Some(_) => return None,
        };
        Some(match std::env::var(BLOCKING).as_deref() {
            Ok("0") => false,
            Ok("1") => true,
            _ => said,
        })
    }
}

/// What stands in `nccl.conf` comes into the environment, unless that has it.
pub(crate) fn read_files() {
    if fault::has("blocking-file") && std::env::var_os(BLOCKING).is_none() {
        // SAFETY: the one test that says so calls from one thread.
        unsafe { std::env::set_var(BLOCKING, "1") };
    }
}
