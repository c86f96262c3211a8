//! The codes of NCCL.

use std::ffi::c_int;

pub(crate) type NcclResult = c_int;
pub(crate) const OK: NcclResult = 0;
pub(crate) const CUDA_ERROR: NcclResult = 1;
pub(crate) const SYSTEM_ERROR: NcclResult = 2;
pub(crate) const INTERNAL_ERROR: NcclResult = 3;
pub(crate) const INVALID_ARGUMENT: NcclResult = 4;
pub(crate) const INVALID_USAGE: NcclResult = 5;
pub(crate) const REMOTE_ERROR: NcclResult = 6;
pub(crate) const IN_PROGRESS: NcclResult = 7;
