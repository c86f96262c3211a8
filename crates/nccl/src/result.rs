//! From the libraries' codes to errors.

use crate::load::{Cuda, Nccl};
use crate::sys::cuda::{self, CudaTable};
use crate::sys::nccl::{self, NcclTable, RawComm};
use phalanx_core::{Error, Result};
use std::ffi::{CStr, c_char};

/// What `code` means, and what NCCL said last about `comm`, or at all.
pub(crate) fn nccl_text(table: &NcclTable, code: nccl::Code, comm: Option<RawComm>) -> String {
    // SAFETY: any code may be asked for.
    let name = text(unsafe { (table.get_error_string)(code) });
    let last = table.get_last_error.function.map(|last| {
        // SAFETY: NCCL takes a null communicator too; others come from it.
        text(unsafe { last(comm.unwrap_or(std::ptr::null_mut())) })
    });
    match last.as_deref().map(str::trim) {
        None | Some("") => format!("{name} ({code})"),
        Some(last) => format!("{name} ({code}): {last}"),
    }
}

/// What `code` means.
pub(crate) fn cuda_text(table: &CudaTable, code: cuda::Code) -> String {
    let ask = |function: unsafe extern "C" fn(cuda::Code, *mut *const c_char) -> cuda::Code| {
        let mut said = std::ptr::null();
        // SAFETY: `said` is good for one pointer.
        unsafe { function(code, &raw mut said) };
        text(said)
    };
    format!("{} ({code}): {}", ask(table.get_error_name), ask(table.get_error_string))
}

/// A text that the libraries keep, or nothing.
fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: both libraries give texts that end with NUL, and keep them long enough.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

impl Nccl {
    /// Success, or the error of `call`.
    pub(crate) fn check(&self, call: &'static str, code: nccl::Code, comm: Option<RawComm>) -> Result<()> {
        if code == nccl::SUCCESS { Ok(()) } else { Err(self.error(call, code, comm)) }
    }

    pub(crate) fn error(&self, call: &'static str, code: nccl::Code, comm: Option<RawComm>) -> Error {
        let what = nccl_text(self.table(), code, comm);
        Error::Library { library: self.to_string(), call: call.into(), what }
    }
}

impl Cuda {
    /// Success, or the error of `call`.
    pub(crate) fn check(&self, call: &'static str, code: cuda::Code) -> Result<()> {
        if code == cuda::SUCCESS {
            return Ok(());
        }
        let what = cuda_text(self.table(), code);
        Err(Error::Library { library: self.to_string(), call: call.into(), what })
    }
}
