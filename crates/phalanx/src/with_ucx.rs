//! What looks a backend up by its name, after UCX was registered.

use phalanx_core::Result;
use phalanx_group::{BackendKind, ProcessGroup};
use phalanx_rendezvous::Config;
use std::sync::Arc;

/// Makes this process a rank of its job, as the environment says: the group of all ranks. `PHALANX_BACKEND=ucx` is among the choices.
///
/// # Errors
/// As for [`phalanx_group::init`].
///
/// # Examples
/// ```
/// let group = phalanx::init()?;
/// println!("rank {} of {}", group.rank(), group.world_size()); // without a launcher: rank 0 of 1
/// group.finalize()?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn init() -> Result<ProcessGroup> {
    phalanx_ucx::register()?;
    phalanx_group::init()
}

/// As [`init`], with the configuration as an argument.
///
/// # Errors
/// As for [`phalanx_group::join`].
///
/// # Examples
/// ```
/// let group = phalanx::join(&phalanx::Config::from_env()?)?;
/// group.finalize()?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn join(config: &Config) -> Result<ProcessGroup> {
    phalanx_ucx::register()?;
    phalanx_group::join(config)
}

/// The backend that is registered under this name, as [`phalanx_group::backend_kind`] says.
///
/// # Errors
/// [`Config`](phalanx_core::Error::Config): none is.
///
/// # Examples
/// ```
/// assert!(phalanx::backend::backend_kind("ucx").is_ok());
/// ```
#[track_caller]
pub fn backend_kind(name: &str) -> Result<Arc<dyn BackendKind>> {
    phalanx_ucx::register()?;
    phalanx_group::backend_kind(name)
}

/// The names that `PHALANX_BACKEND` can have in this process, in order.
///
/// # Examples
/// ```
/// assert_eq!(phalanx::backend::registered_backends(), ["auto", "shm", "tcp", "ucx"]);
/// ```
pub fn registered_backends() -> Vec<&'static str> {
    // Where that fails, a backend of the program's own has the name.
    let _ = phalanx_ucx::register();
    phalanx_group::registered_backends()
}
