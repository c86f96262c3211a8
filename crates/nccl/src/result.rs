//! Errors of the libraries' codes.

use crate::error_text::{cuda_text, nccl_text, text};
use crate::last_error::LAST_ERRORS;
use crate::load::{Cuda, Nccl};
use crate::sys::cuda;
use crate::sys::nccl::{self, RawComm};
use phalanx_core::{Error, Result};

impl Nccl {
    /// Success, or the error of `call`.
    pub(crate) fn check(&self, call: &'static str, code: nccl::Code, comm: Option<RawComm>) -> Result<()> {
        if code == nccl::SUCCESS { Ok(()) } else { Err(self.error(call, code, comm)) }
    }

    pub(crate) fn error(&self, call: &'static str, code: nccl::Code, comm: Option<RawComm>) -> Error {
        let (mut what, said) = (nccl_text(self.table(), code), self.last_words());
        if LAST_ERRORS.are_about(comm, &said) {
            what = format!("{what}: {said}");
        }
        Error::Library { library: self.to_string(), call: call.into(), what }
    }
}

impl Nccl {
    /// Notes that `comm` is well: NCCL's last error so far is about others.
    pub(crate) fn all_is_well(&self, comm: Option<RawComm>) {
        LAST_ERRORS.all_is_well(comm, &self.last_words());
    }

    /// NCCL's last error, whichever communicator it is about.
    fn last_words(&self) -> String {
        let last = self.table().get_last_error.function.map(|last| {
            // SAFETY: NCCL takes a null communicator too, and does not look at it.
            text(unsafe { last(std::ptr::null_mut()) })
        });
        last.map_or_else(String::new, |last| last.trim().to_owned())
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
