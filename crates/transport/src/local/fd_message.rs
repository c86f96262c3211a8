//! Sending and receiving one descriptor, with its number, over a unix socket.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Sends `memory` as number `seq`. Fresh sockets have room for it: what does not fit is an error.
pub(super) fn send(stream: &UnixStream, seq: u64, memory: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [memory.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one descriptor");
    let number = seq.to_le_bytes();
    match sendmsg(stream, &[IoSlice::new(&number)], &mut control, SendFlags::NOSIGNAL)? {
        8 => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

/// Receives exactly what [`send`] sends, in one piece. Descriptors that belong to anything else are closed.
pub(super) fn recv(stream: &UnixStream) -> io::Result<(u64, OwnedFd)> {
    // Space for one too many: those who pass two are found out, and beyond that the kernel says `CTRUNC`.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut number = [0; 8];
    let message =
        recvmsg(stream, &mut [IoSliceMut::new(&mut number)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    let whole = message.bytes == number.len() && !message.flags.contains(ReturnFlags::CTRUNC);
    match (whole, descriptors.pop(), descriptors.is_empty()) {
        (true, Some(memory), true) => Ok((u64::from_le_bytes(number), memory)),
        _ if message.bytes == 0 => Err(ErrorKind::UnexpectedEof.into()),
        // The kernel had no number for it in this process.
        (false, None, _) if message.flags.contains(ReturnFlags::CTRUNC) => {
            Err(rustix::io::Errno::MFILE.into())
        }
        _ => Err(io::Error::new(ErrorKind::InvalidData, "it passed something else than one descriptor")),
    }
}
