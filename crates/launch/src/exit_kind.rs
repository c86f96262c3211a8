//! How the process of a rank ended.

use phalanx_rendezvous::lifeline::Exit;
use std::fmt;

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;
pub(crate) const SIGABRT: i32 = 6;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExitKind {
    /// The process returned this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// The process is gone, but the system did not say how: another part of this program collected its exit status.
    Unknown,
    /// The process had not ended when the others had failed because of it: it hung, was stopped, or was cut off. The launcher ended it.
    StillRunning,
    /// The host of the process is lost: its launcher was killed, it went down, or nothing is heard of it any more. So nobody knows how it ended.
    HostLost,
}

impl ExitKind {
    /// Whether the process said that all went well.
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::ExitKind;
    ///
    /// assert!(ExitKind::Code(0).is_success());
    /// assert!(!ExitKind::Signal(9).is_success());
    /// ```
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// As the ranks are told.
    pub(crate) fn told(self) -> Exit {
        match self {
            Self::Code(code) => Exit::Code(code),
            Self::Signal(signal) => Exit::Signal(signal),
            Self::Unknown | Self::StillRunning | Self::HostLost => Exit::Unknown,
        }
    }
}

impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {}", signal_name(signal)),
            Self::Unknown => {
                f.write_str("ended in an unknown way (its exit status was taken by somebody else)")
            }
            Self::StillRunning => f.write_str("was still running"),
            Self::HostLost => f.write_str("was lost with its host"),
        }
    }
}

/// `SIGKILL` for 9, and so on; `signal 71` where the system has no name.
pub(crate) fn signal_name(signal: i32) -> String {
    #[cfg(unix)]
    if let Some(name) = signal_hook::low_level::signal_name(signal) {
        return name.to_owned();
    }
    format!("signal {signal}")
}
