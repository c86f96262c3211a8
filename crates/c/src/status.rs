//! How a call has ended, as a number that stays the same in every version.

use phalanx::Error;
use std::ffi::{c_char, c_int};

/// How a call has ended.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// All went well.
    Ok = 0,
    /// No error: the operation is not over yet.
    Pending = 1,
    /// The call makes no sense. Nothing was sent; the group works on.
    ErrorMisuse = 2,
    /// The backend can't do this. Nothing was sent; the group works on.
    ErrorUnsupported = 3,
    /// No message came within the time of `phalanx_recv_timeout` or `phalanx_recv_any_timeout`. The group works on.
    ErrorNoMessage = 4,
    /// A rank died, left, or can't be reached.
    ErrorPeerLost = 5,
    /// The operation did not end within the group's time limit.
    ErrorTimeout = 6,
    /// Ranks wait for each other in a circle.
    ErrorDeadlock = 7,
    /// Ranks called different operations, or the same with other types, counts or roots.
    ErrorMismatch = 8,
    /// A rank sent what no correct rank sends.
    ErrorProtocol = 9,
    /// A rank called `phalanx_abort`.
    ErrorAborted = 10,
    /// The group failed earlier, and does nothing more.
    ErrorPoisoned = 11,
    /// The ranks did not find each other.
    ErrorRendezvous = 12,
    /// The self-test found that a machine of the job computes wrong sums.
    ErrorWrongSum = 13,
    /// The variables make no sense.
    ErrorConfig = 14,
    /// This machine lacks something.
    ErrorUnavailable = 15,
    /// A library below phalanx failed.
    ErrorLibrary = 16,
    /// The operating system refused.
    ErrorIo = 17,
    /// A bug in phalanx. Please report it.
    ErrorInternal = 18,
}

macro_rules! named {
    ($($status:ident $name:literal),* $(,)?) => { &[$((Status::$status, concat!("PHALANX_", $name, "\0"))),*] };
}

/// The names that C has for them, with the null byte at their ends.
const NAMES: &[(Status, &str)] = named![
    Ok "OK",
    Pending "PENDING",
    ErrorMisuse "ERROR_MISUSE",
    ErrorUnsupported "ERROR_UNSUPPORTED",
    ErrorNoMessage "ERROR_NO_MESSAGE",
    ErrorPeerLost "ERROR_PEER_LOST",
    ErrorTimeout "ERROR_TIMEOUT",
    ErrorDeadlock "ERROR_DEADLOCK",
    ErrorMismatch "ERROR_MISMATCH",
    ErrorProtocol "ERROR_PROTOCOL",
    ErrorAborted "ERROR_ABORTED",
    ErrorPoisoned "ERROR_POISONED",
    ErrorRendezvous "ERROR_RENDEZVOUS",
    ErrorWrongSum "ERROR_WRONG_SUM",
    ErrorConfig "ERROR_CONFIG",
    ErrorUnavailable "ERROR_UNAVAILABLE",
    ErrorLibrary "ERROR_LIBRARY",
    ErrorIo "ERROR_IO",
    ErrorInternal "ERROR_INTERNAL",
];

impl Status {
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::Misuse { .. } => Self::ErrorMisuse,
            Error::Unsupported { .. } => Self::ErrorUnsupported,
            Error::NoMessage { .. } => Self::ErrorNoMessage,
            Error::PeerLost { .. } => Self::ErrorPeerLost,
            Error::Timeout { .. } => Self::ErrorTimeout,
            Error::Deadlock { .. } => Self::ErrorDeadlock,
            Error::Mismatch { .. } => Self::ErrorMismatch,
            Error::Protocol { .. } => Self::ErrorProtocol,
            Error::Aborted { .. } => Self::ErrorAborted,
            Error::Poisoned { .. } => Self::ErrorPoisoned,
            Error::Rendezvous { .. } => Self::ErrorRendezvous,
            Error::WrongSum { .. } => Self::ErrorWrongSum,
            Error::Config { .. } => Self::ErrorConfig,
            Error::Unavailable { .. } => Self::ErrorUnavailable,
            Error::Library { .. } => Self::ErrorLibrary,
            Error::Io { .. } => Self::ErrorIo,
            _ => Self::ErrorInternal,
        }
    }
}

/// The name of a status, as in this header: `"…_ERROR_TIMEOUT"`. It is there for good.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_status_name(status: c_int) -> *const c_char {
    let known = NAMES.iter().find(|(known, _)| *known as c_int == status);
    known.map_or("no status of phalanx\0", |(_, name)| name).as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn every_status_has_its_name() {
        let name = |status| {
            // SAFETY: it is text that a null byte ends.
            unsafe { CStr::from_ptr(phalanx_status_name(status)) }.to_str().unwrap()
        };
        assert_eq!(
            [name(0), name(1), name(2)].map(|name| name.trim_start_matches("PHALANX_")),
            ["OK", "PENDING", "ERROR_MISUSE"]
        );
        assert_eq!((0..=18).map(name).filter(|name| name.starts_with("PHALANX_")).count(), 19);
        assert_eq!([name(19), name(-1)], ["no status of phalanx"; 2]);
    }
}
