//! The choice what becomes of collectives on device memory where there is no NCCL.

use phalanx_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The variable that allows the fallback.
pub const ENABLE_FALLBACK: &str = "PHALANX_ENABLE_GPU_FALLBACK";

/// Whether device memory may go over the host, which takes many times as long as NCCL; the same on all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fallback {
    /// The host never carries device memory: ranks without NCCL are an error.
    #[default]
    Never,
    /// If a rank has no NCCL: on all ranks then.
    WithoutNccl,
    /// The host always carries device memory, whether there is NCCL or not: to compare the two, or where several ranks have one device.
    Always,
}

impl Fallback {
    /// [`WithoutNccl`](Self::WithoutNccl) where `PHALANX_ENABLE_GPU_FALLBACK` is 1, else [`Never`](Self::Never).
    ///
    /// # Errors
    /// [`Config`](Error::Config): it is neither 0 nor 1.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::Fallback;
    ///
    /// # if std::env::var_os(phalanx_nccl::ENABLE_FALLBACK).is_none() {
    /// assert_eq!(Fallback::from_environment()?, Fallback::Never); // nothing is set
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_environment() -> Result<Self> {
        Self::from_text(std::env::var_os(ENABLE_FALLBACK).as_deref().and_then(std::ffi::OsStr::to_str))
    }

    fn from_text(text: Option<&str>) -> Result<Self> {
        match text {
            None | Some("" | "0") => Ok(Self::Never),
            Some("1") => Ok(Self::WithoutNccl),
            Some(text) => Err(Error::config(format!("{ENABLE_FALLBACK} is {text:?}, neither 0 nor 1"))),
        }
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "no fallback",
            Self::WithoutNccl => "a fallback without NCCL",
            Self::Always => "the fallback always",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_goes_over_the_host_unless_asked_for() {
        assert_eq!(Fallback::default(), Fallback::Never);
        for (text, fallback) in [
            (None, Fallback::Never),
            (Some(""), Fallback::Never),
            (Some("0"), Fallback::Never),
            (Some("1"), Fallback::WithoutNccl),
        ] {
            assert_eq!(Fallback::from_text(text).unwrap(), fallback);
        }
        let error = Fallback::from_text(Some("yes")).unwrap_err().to_string();
        assert_eq!(error, "configuration: PHALANX_ENABLE_GPU_FALLBACK is \"yes\", neither 0 nor 1");
    }
}
