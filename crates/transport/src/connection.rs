//! The connection after a handshake: an authenticated stream, in the clear or sealed.

use crate::keys::Keys;
use crate::seal::{Opening, Sealing};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// A connection whose ends have proved to each other that they know the job's secret.
///
/// Its halves can be used by two threads. In a job that encrypts, what goes over it is sealed; then bytes that were offered for
/// sending and not taken must be offered again, all of them or some, in front of others.
#[derive(Debug)]
pub struct Connection<S = TcpStream> {
    pub(crate) writer: Writer<S>,
    pub(crate) reader: Reader<S>,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Writer<S = TcpStream> {
    stream: Arc<S>,
    seal: Option<Box<Sealing>>,
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Reader<S = TcpStream> {
    stream: Arc<S>,
    seal: Option<Box<Opening>>,
}

impl<S> Connection<S> {
    pub(crate) fn new(stream: S, keys: Option<Keys>) -> Self {
        let stream = Arc::new(stream);
        let (sealing, opening) = match keys {
            Some(keys) => (Some(Box::new(Sealing::new(keys.clone()))), Some(Box::new(Opening::new(keys)))),
            None => (None, None),
        };
        let writer = Writer { stream: stream.clone(), seal: sealing };
        Self { writer, reader: Reader { stream, seal: opening } }
    }

    pub(crate) fn stream(&self) -> &Arc<S> {
        &self.reader.stream
    }
}

impl<S> Reader<S> {
    pub(crate) fn stream(&self) -> &S {
        &self.stream
    }

    /// Whether the next read gives something whatever the stream has.
    pub(crate) fn is_ready(&self) -> bool {
        self.seal.as_ref().is_some_and(|seal| seal.is_ready())
    }
}

impl<S> Write for Writer<S>
where
    for<'a> &'a S: Write,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.seal {
            None => (&*self.stream).write_vectored(parts),
            Some(seal) => seal.write(&*self.stream, parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S> Read for Reader<S>
where
    for<'a> &'a S: Read,
{
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.seal {
            None => (&*self.stream).read(buffer),
            Some(seal) => seal.read(&*self.stream, buffer),
        }
    }
}
