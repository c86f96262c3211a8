//! The variable with which NCCL's calls wait for ever.

use phalanx_core::{Error, Result};

const VARIABLE: &str = "NCCL_COMM_BLOCKING";

/// Refuses it. To NCCL it is worth more than what a communicator is made with, and a call that blocks inside NCCL is reached by no deadline, and by no abort, which
/// must come after it. NCCL puts what its files (`nccl.conf`) say into the environment when it is first used, so this is asked before and after.
pub(crate) fn refuse() -> Result<()> {
    match std::env::var(VARIABLE) {
        Ok(value) if !matches!(value.trim(), "" | "0") => Err(Error::config(format!(
            "{VARIABLE} is {value:?}, in the environment or in a file nccl.conf: so NCCL would wait for other ranks without end; unset it, or set \
             it to 0, which goes before the files"
        ))),
        _ => Ok(()),
    }
}
