//! Which host a rank is on, as far as shared memory is concerned.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Equal for ranks that can pass memory to each other: one kernel, booted once, and one network namespace, in which abstract
/// sockets have their names. Two containers of one machine have different keys unless they share the network.
///
/// Not a proof: virtual machines cloned while they ran believe to be one. Memory passed between them does not arrive,
/// and the error says so; different host ids (`PHALANX_HOST_ID`) keep them apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostKey(String);

impl HostKey {
    /// The key of this process; `None` where the system has no abstract sockets, or hides what the key is made of.
    /// A `host_id` makes different hosts of ranks that could share one.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::HostKey;
    ///
    /// let here = HostKey::of_this_process(None);
    /// assert_eq!(here.is_some(), cfg!(target_os = "linux"));
    /// assert_eq!(here, HostKey::of_this_process(None));
    /// assert!(here.is_none() || here != HostKey::of_this_process(Some("another")));
    /// ```
    pub fn of_this_process(host_id: Option<&str>) -> Option<Self> {
        let key = system_key()?;
        Some(Self(match host_id {
            Some(id) => format!("{key}/{id}"),
            None => key,
        }))
    }

    /// As text, for comparing and for logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(target_os = "linux")]
fn system_key() -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::metadata("/proc/self/ns/net").ok()?;
    Some(format!("{}/{}", boot.trim(), network.ino()))
}

#[cfg(not(target_os = "linux"))]
fn system_key() -> Option<String> {
    None
}
