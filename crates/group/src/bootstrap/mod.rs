//! How ranks come together: at the start, and again after a loss.

pub(crate) mod address;
pub(crate) mod arbiter_service;
pub(crate) mod assembly;
pub(crate) mod build;
#[cfg(target_os = "linux")]
pub(crate) mod exchange_fd;
mod host_probe;
pub(crate) mod init;
pub(crate) mod init_notices;
mod interface;
pub(crate) mod launcher;
pub(crate) mod local_control;
pub(crate) mod over_own_links;
pub(crate) mod own_settings;
pub(crate) mod prices;
pub(crate) mod regroup;
pub(crate) mod rendezvous;
pub(crate) mod self_test;
#[cfg(unix)]
pub(crate) mod signal;
pub(crate) mod start;
pub(crate) mod tcp_control;
pub(crate) mod tcp_job;
pub(crate) mod thread_job;
pub(crate) mod threads;
pub(crate) mod tune;
