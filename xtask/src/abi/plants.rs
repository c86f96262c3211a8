//! Mistakes that are planted in a copy of sys. A probe that does not find them proves nothing.

use super::c::Header;
use super::compare::{Texts, findings};
use super::headers::Subject;
use std::path::PathBuf;

/// In which file, what is there, what is put there, and whom a finding must name.
type Plant = (Subject, &'static str, &'static str, &'static str);

const PLANTS: [Plant; 12] = [
    (
        Subject::Cuda,
        "memcpy_to_host_async = \"cuMemcpyDtoHAsync_v2\"",
        "x = \"cuMemcpyDtoHAsync_v9\"",
        "cuMemcpyDtoHAsync_v9",
    ),
    (
        Subject::Cuda,
        "fn(RawPointer, u8, usize, RawStream)",
        "fn(RawPointer, u32, usize, RawStream)",
        "cuMemsetD8Async",
    ),
    (
        Subject::Cuda,
        "fn(RawStream, RawEvent, c_uint)",
        "fn(RawEvent, RawStream, c_uint)",
        "cuStreamWaitEvent",
    ),
    (Subject::Cuda, "RawPointer = u64", "RawPointer = u32", "CUdeviceptr"),
    (Subject::Cuda, "NOT_READY: Code = 600", "NOT_READY: Code = 601", "CUDA_ERROR_NOT_READY"),
    (Subject::Cuda, "STREAM_PER_THREAD: usize = 2", "STREAM_PER_THREAD: usize = 1", "CU_STREAM_PER_THREAD"),
    (
        Subject::Nccl,
        "fn(*const c_void, usize, RawType, c_int, RawComm, RawStream)",
        "fn(*const c_void, c_int, RawType, c_int, RawComm, RawStream)",
        "ncclSend",
    ),
    (
        Subject::Nccl,
        "fn(RawComm, c_int, c_int, *mut RawComm, *mut RawConfig)",
        "fn(RawComm, c_int, *mut RawComm, *mut RawConfig)",
        "ncclCommSplit",
    ),
    (
        Subject::Nccl,
        "\"ncclCommSplit\" since \"NCCL 2.18\"",
        "\"ncclCommSplit\" since \"NCCL 99.0\"",
        "ncclCommSplit",
    ),
    (Subject::Nccl, "\"ncclCommCount\"", "\"ncclCommCounts\"", "ncclCommCounts"),
    (
        Subject::Nccl,
        "    version: u32,\n    blocking: c_int,\n",
        "    blocking: c_int,\n    version: u32,\n",
        "ncclConfig_t",
    ),
    (Subject::Nccl, "RawId(pub(crate) [u8; 128])", "RawId(pub(crate) [u8; 64])", "ncclUniqueId"),
];

/// Those of `subject` that are not found, and those for which there is no place any more.
pub(super) fn missed(
    texts: &Texts,
    subject: Subject,
    header: &Header,
    include: &str,
    dirs: &[PathBuf],
) -> Result<Vec<String>, String> {
    let mut missed = Vec::new();
    for (_, from, to, name) in PLANTS.into_iter().filter(|(of, ..)| *of == subject) {
        let mut planted = texts.clone();
        let text = subject.text(&mut planted);
        if text.matches(from).count() != 1 {
            missed.push(format!("a mistake cannot be planted in sys, where {from:?} should stand once"));
            continue;
        }
        *text = text.replace(from, to);
        let found = findings(&planted, subject, header, include, dirs)?;
        if !found.iter().any(|finding| finding.contains(name)) {
            missed.push(format!("{to:?} was planted in sys, and not found: {found:?}"));
        }
    }
    Ok(missed)
}
