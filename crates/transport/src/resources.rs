//! The resources that a process may run out of.

use rustix::io::Errno;
use std::io::{self, ErrorKind};

/// Whether an error tells that this process or its system has run out of descriptors, memory or ports: then it says nothing of the
/// other end.
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    are_descriptors_exhausted(error)
        || error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error())
        || matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::AddrNotAvailable)
}

/// Whether it is descriptors that this process or its system has run out of: they come back only if something here is closed.
pub(crate) fn are_descriptors_exhausted(error: &io::Error) -> bool {
    let out_of = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    #[cfg(unix)]
    let in_system = out_of(Errno::NFILE);
    #[cfg(not(unix))]
    let in_system = false;
    in_system || out_of(Errno::MFILE)
}

/// Lets this process open as many descriptors as it is allowed to, once: systems grant 1024 unasked, for the sake of programs that use
/// `select`, and rank 0 of a thousand ranks needs more.
#[cfg(unix)]
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::sync::Once;
    /// More than any job needs. Where there is no limit at all, some programs would walk through all numbers there are.
    const ENOUGH: u64 = 1 << 20;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        let wanted = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
        if limit.current.is_some_and(|current| current < wanted) {
            let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
            tracing::debug!(from = limit.current, to = wanted, ?raised, "the limit of open files");
        }
    });
}

#[cfg(not(unix))]
pub(crate) fn raise_descriptor_limit() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_here_says_nothing_of_the_other_end() {
        for errno in [Errno::MFILE, Errno::NOBUFS, Errno::ADDRNOTAVAIL] {
            assert!(are_exhausted(&errno.into()), "{errno}");
        }
        for errno in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT, Errno::CONNRESET] {
            assert!(!are_exhausted(&errno.into()), "{errno}");
        }
    }
}
