//! A descriptor that this process was started with, of which it knows the number only.

use rustix::fs::FileType;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// A descriptor of our own for the socket that the launcher left open under `number`. The launcher's stays open.
///
/// # Errors
/// It is not open, or it is no socket, or one that this process has opened itself since the launcher's was closed.
pub(crate) fn inherited_socket(number: RawFd) -> io::Result<OwnedFd> {
    let own = duplicate(number)?;
    match FileType::from_raw_mode(rustix::fs::fstat(&own)?.st_mode) {
        FileType::Socket => Ok(own),
        _ => Err(io::Error::other("it is open, but no socket")),
    }
}

// Nothing safe duplicates a descriptor of which the number alone is known: `/proc/self/fd` does not open sockets, and containers often
// forbid `pidfd_getfd`.
#[allow(unsafe_code, reason = "the number of an inherited descriptor comes from the environment")]
fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: It is not -1, and it is borrowed for two system calls only, which ask for its flags and make a descriptor of our own, and do nothing
    // to this one. If nothing is open there the system says so.
    let inherited = unsafe { BorrowedFd::borrow_raw(number) };
    // What is closed when another program starts did not come from one: the number has been given to a file of this process, which is left alone.
    if fcntl_getfd(inherited)?.contains(FdFlags::CLOEXEC) {
        return Err(io::Error::other(
            "the launcher's was closed, and this process has opened something else there",
        ));
    }
    Ok(fcntl_dupfd_cloexec(inherited, 3)?)
}

/// Two connected sockets, of which the second is as one that a launcher left open.
#[cfg(test)]
pub(crate) fn sockets() -> (std::os::unix::net::UnixStream, std::os::unix::net::UnixStream) {
    let (launchers, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&ours, FdFlags::empty()).unwrap();
    (launchers, ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_is_had_once_more_and_stays_where_it_was() {
        let (mut launchers, ours) = sockets();
        let mut copy = UnixStream::from(inherited_socket(ours.as_raw_fd()).unwrap());
        copy.write_all(b"x").unwrap();
        drop(copy);
        (&ours).write_all(b"y").unwrap();
        let mut heard = [0; 2];
        launchers.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"xy");
    }

    #[test]
    fn what_is_not_open_or_no_socket_or_our_own_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, FdFlags::empty()).unwrap();
        let (own, _other) = UnixStream::pair().unwrap();
        for number in [-1, i32::MIN, i32::MAX, 1_000_000, file.as_raw_fd(), own.as_raw_fd()] {
            assert!(inherited_socket(number).is_err(), "{number}");
        }
    }
}
