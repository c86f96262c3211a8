//! libnccl's types and functions of `nccl.h`, from 2.7 on. `cargo xtask abi` compares them with the header.

use super::cuda::RawStream;
use super::table;
use std::ffi::{CStr, c_char, c_int, c_void};

/// `ncclComm_t`.
pub(crate) type RawComm = *mut c_void;
/// `ncclResult_t`.
pub(crate) type Code = c_int;
/// `ncclDataType_t`.
pub(crate) type RawType = c_int;
/// `ncclRedOp_t`.
pub(crate) type RawOp = c_int;

/// `ncclScalarResidence_t`.
pub(crate) type RawResidence = c_int;

/// `ncclSuccess`.
pub(crate) const SUCCESS: Code = 0;
/// `ncclInProgress`.
pub(crate) const IN_PROGRESS: Code = 7;
/// `NCCL_SPLIT_NOCOLOR`.
pub(crate) const NO_COLOR: c_int = -1;
/// `ncclScalarHostImmediate`: the scalar is read before the call returns.
pub(crate) const SCALAR_ON_HOST: RawResidence = 1;
/// `((ncclConfig_t)NCCL_CONFIG_INITIALIZER).magic`.
const CONFIG_MAGIC: u32 = 0xcafe_beef;

/// `ncclInt8`.
pub(crate) const INT8: RawType = 0;
/// `ncclUint8`.
pub(crate) const UINT8: RawType = 1;
/// `ncclInt32`.
pub(crate) const INT32: RawType = 2;
/// `ncclUint32`.
pub(crate) const UINT32: RawType = 3;
/// `ncclInt64`.
pub(crate) const INT64: RawType = 4;
/// `ncclUint64`.
pub(crate) const UINT64: RawType = 5;
/// `ncclFloat16`.
pub(crate) const FLOAT16: RawType = 6;
/// `ncclFloat32`.
pub(crate) const FLOAT32: RawType = 7;
/// `ncclFloat64`.
pub(crate) const FLOAT64: RawType = 8;
/// `ncclBfloat16`.
pub(crate) const BFLOAT16: RawType = 9;
/// `ncclFloat8e4m3`, since NCCL 2.24.
pub(crate) const FLOAT8_E4M3: RawType = 10;
/// `ncclFloat8e5m2`, since NCCL 2.24.
pub(crate) const FLOAT8_E5M2: RawType = 11;

/// `ncclSum`.
pub(crate) const SUM: RawOp = 0;
/// `ncclProd`.
pub(crate) const PROD: RawOp = 1;
/// `ncclMax`.
pub(crate) const MAX: RawOp = 2;
/// `ncclMin`.
pub(crate) const MIN: RawOp = 3;
/// `ncclAvg`.
pub(crate) const AVG: RawOp = 4;

/// `NCCL_ENCRYPTION_MODE_PSK`, since NCCL 2.32.3.
const ENCRYPTION_BY_KEY: c_int = 1;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawId(pub(crate) [u8; 128]);

/// `ncclConfig_t` as it was in 2.14, its first version, which every later library understands: it goes by `size` and `version`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl RawConfig {
    /// Calls return at once, and what they began is asked after with `ncclCommGetAsyncError`.
    pub(crate) fn non_blocking() -> Self {
        Self { size: size_of::<Self>(), magic: CONFIG_MAGIC, version: 21_400, blocking: 0 }
    }
}

/// `ncclEncryptionConfig_t`, since NCCL 2.32.3.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawEncryption {
    size: usize,
    magic: u32,
    version: u32,
    mode: c_int,
    psk: *const c_char,
}

impl RawEncryption {
    /// The configuration with a key of 32 bytes or more, which must be there as long as this is used.
    pub(crate) fn with_key(key: &CStr) -> Self {
        let size = size_of::<Self>();
        Self { size, magic: CONFIG_MAGIC, version: 23_203, mode: ENCRYPTION_BY_KEY, psk: key.as_ptr() }
    }
}

table! {
    /// Functions of libnccl.
    NcclTable;
    needed {
        get_version = "ncclGetVersion": fn(*mut c_int) -> Code;
        get_unique_id = "ncclGetUniqueId": fn(*mut RawId) -> Code;
        get_error_string = "ncclGetErrorString": fn(Code) -> *const c_char;
        comm_count = "ncclCommCount": fn(RawComm, *mut c_int) -> Code;
        comm_user_rank = "ncclCommUserRank": fn(RawComm, *mut c_int) -> Code;
        comm_destroy = "ncclCommDestroy": fn(RawComm) -> Code;
        all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, RawType, RawOp, RawComm, RawStream) -> Code;
        broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, RawType, c_int, RawComm, RawStream) -> Code;
        reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, RawType, RawOp, c_int, RawComm, RawStream) -> Code;
        all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, RawType, RawComm, RawStream) -> Code;
        reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, RawType, RawOp, RawComm, RawStream) -> Code;
        send = "ncclSend": fn(*const c_void, usize, RawType, c_int, RawComm, RawStream) -> Code;
        recv = "ncclRecv": fn(*mut c_void, usize, RawType, c_int, RawComm, RawStream) -> Code;
        group_start = "ncclGroupStart": fn() -> Code;
        group_end = "ncclGroupEnd": fn() -> Code;
    }
    optional {
        comm_abort = "ncclCommAbort" since "NCCL 2.4": fn(RawComm) -> Code;
        comm_get_async_error = "ncclCommGetAsyncError" since "NCCL 2.4": fn(RawComm, *mut Code) -> Code;
        red_op_create_pre_mul_sum = "ncclRedOpCreatePreMulSum" since "NCCL 2.11": fn(*mut RawOp, *mut c_void, RawType, RawResidence, RawComm) -> Code;
        red_op_destroy = "ncclRedOpDestroy" since "NCCL 2.11": fn(RawOp, RawComm) -> Code;
        get_last_error = "ncclGetLastError" since "NCCL 2.13": fn(RawComm) -> *const c_char;
        comm_init_rank_config = "ncclCommInitRankConfig" since "NCCL 2.14": fn(*mut RawComm, c_int, RawId, c_int, *mut RawConfig) -> Code;
        comm_finalize = "ncclCommFinalize" since "NCCL 2.14": fn(RawComm) -> Code;
        comm_split = "ncclCommSplit" since "NCCL 2.18": fn(RawComm, c_int, c_int, *mut RawComm, *mut RawConfig) -> Code;
        set_encryption = "ncclSetEncryption" since "NCCL 2.32.3": fn(*const RawEncryption) -> Code;
    }
}
