//! The libraries' texts for their codes.

use crate::sys::cuda::{self, CudaTable};
use crate::sys::nccl::{self, NcclTable};
use std::ffi::{CStr, c_char};

/// The text for `code`.
pub(crate) fn nccl_text(table: &NcclTable, code: nccl::Code) -> String {
    // SAFETY: any code may be asked for.
    format!("{} ({code})", text(unsafe { (table.get_error_string)(code) }))
}

/// The text for `code`.
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
pub(crate) fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: both libraries give texts that end with NUL, and keep them long enough.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}
