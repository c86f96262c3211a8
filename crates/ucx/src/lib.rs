//! A transport over UCX.
#[cfg(target_os = "linux")]
mod attendant;
mod factory;
#[cfg(target_os = "linux")]
mod hub;
#[cfg(target_os = "linux")]
mod links;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod message;
#[cfg(target_os = "linux")]
mod pipe;
#[cfg(target_os = "linux")]
mod sleepers;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod transport;
#[cfg(target_os = "linux")]
mod worker;

pub use factory::{Ucx, register};
#[cfg(target_os = "linux")]
pub use load::{UCX_LIBRARY, Ucp};
