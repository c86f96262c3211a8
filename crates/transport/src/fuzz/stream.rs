//! A stream in memory, which gives and takes as many bytes at a time as it is told.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Bytes {
    pub(super) incoming: VecDeque<u8>,
    pub(super) outgoing: Vec<u8>,
    /// How many more bytes it takes.
    pub(super) room: usize,
}

/// Clones are the same stream.
#[derive(Debug, Clone, Default)]
pub(super) struct Stream(Arc<Mutex<Bytes>>);

impl Stream {
    pub(super) fn state(&self) -> MutexGuard<'_, Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `cut` bytes of `from` come, and as many can leave. The first of what is left.
    pub(super) fn moves<'b>(&self, from: &'b [u8], cut: usize) -> &'b [u8] {
        let (comes, later) = from.split_at(cut.min(from.len()));
        let mut bytes = self.state();
        bytes.incoming.extend(comes);
        bytes.room = cut;
        later
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.state().incoming.read(buffer)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut bytes = self.state();
        let n = buffer.len().min(bytes.room);
        bytes.room -= n;
        bytes.outgoing.extend_from_slice(&buffer[..n]);
        if n == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(n) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        (&*self).write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
