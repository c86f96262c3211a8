//! Ranks of one host, and callers that do what ranks would not.

#![allow(dead_code, reason = "each test file uses its part")]

use phalanx_core::Deadline;
use phalanx_transport::Secret;
use phalanx_transport::handshake::{Dialer, DialerStep, Hello, Refusal};
use phalanx_transport::tcp::Exchange;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) fn within(seconds: u64) -> Deadline {
    Deadline::after(Instant::now(), Duration::from_secs(seconds))
}

/// The ranks of a job, in this process.
pub(crate) fn ranks(world_size: usize) -> (Secret, Vec<Exchange>) {
    let secret = Secret::generate().unwrap();
    let start = |rank| Exchange::start(([127, 0, 0, 1], 0).into(), secret.clone(), rank, world_size, None);
    let ranks = (0..world_size).map(|rank| start(rank).unwrap()).collect();
    (secret, ranks)
}

/// An anonymous file with these contents.
pub(crate) fn file(contents: &[u8]) -> Arc<OwnedFd> {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::write(&file, contents).unwrap(), contents.len());
    Arc::new(file)
}

pub(crate) fn same_file(left: &OwnedFd, right: &OwnedFd) -> bool {
    let id = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|s| (s.st_dev, s.st_ino)).unwrap();
    id(left) == id(right)
}

pub(crate) fn connect(name: &str) -> UnixStream {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Shakes hands; `None` if the other side closed without a verdict.
pub(crate) fn shake(stream: &mut UnixStream, secret: &Secret, hello: Hello) -> Option<Result<(), Refusal>> {
    let (mut dialer, mut message) = Dialer::new(secret.clone(), hello, [7; 32]);
    loop {
        stream.write_all(&message).ok()?;
        let mut answer = vec![0; dialer.wants()];
        stream.read_exact(&mut answer).ok()?;
        match dialer.handle(&answer) {
            Ok(DialerStep::Send(bytes)) => message = bytes,
            Ok(DialerStep::Done) => return Some(Ok(())),
            Err(refusal) => return Some(Err(refusal)),
        }
    }
}

/// Sends bytes together with `count` descriptors of `memory`, up to three. The other side may have closed.
pub(crate) fn pass(stream: &UnixStream, bytes: &[u8], memory: &OwnedFd, count: usize) {
    let descriptors: Vec<BorrowedFd<'_>> = (0..count).map(|_| memory.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if count > 0 {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    let _ = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// Whether the other side said that it has the memory; otherwise it closed.
pub(crate) fn is_taken(stream: &mut UnixStream) -> bool {
    stream.read(&mut [0]).is_ok_and(|n| n == 1)
}
