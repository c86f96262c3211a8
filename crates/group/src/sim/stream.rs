//! The sockets of a simulated process, as the endpoint uses them.

use super::network::{End, FIRST_PORT, Line, Net};
use phalanx_transport::LinkFault;
use phalanx_transport::simulated::Sockets;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// The port at which a simulated process listens in this generation.
pub(super) fn port(generation: u64) -> u16 {
    FIRST_PORT + generation as u16
}

/// The address at which it does.
pub(super) fn address(process: u64, generation: u64) -> SocketAddr {
    SocketAddr::from((host(process as usize), port(generation)))
}

fn host(process: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, process as u8)
}

/// The sockets of one process in one generation.
#[derive(Debug)]
pub(super) struct SimSockets {
    net: Net,
    me: usize,
    port: u16,
    /// The process of each rank.
    roster: Arc<[u64]>,
    /// Bytes that a connection which it makes holds in each direction.
    capacity: usize,
}

impl SimSockets {
    pub(super) fn new(net: &Net, (me, port): (usize, u16), roster: Arc<[u64]>, capacity: usize) -> Arc<Self> {
        Arc::new(Self { net: net.clone(), me, port, roster, capacity })
    }

    fn stream(&self, end: End) -> SimStream {
        SimStream { net: self.net.clone(), end, roster: self.roster.clone() }
    }
}

/// One end of a connection. Dropping it closes it.
#[derive(Debug)]
pub(super) struct SimStream {
    net: Net,
    end: End,
    roster: Arc<[u64]>,
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.net.lock().close(self.end);
    }
}

impl Sockets for SimSockets {
    type Stream = SimStream;

    fn accept(&self) -> io::Result<(SimStream, IpAddr)> {
        let mut network = self.net.lock();
        let end = network.accept(self.me, self.port).ok_or(ErrorKind::WouldBlock)?;
        let from = host(network.other(end)).into();
        Ok((self.stream(end), from))
    }

    fn connect(&self, addr: SocketAddr) -> io::Result<SimStream> {
        let IpAddr::V4(host) = addr.ip() else { return Err(ErrorKind::HostUnreachable.into()) };
        let [.., to] = host.octets();
        let end = self.net.lock().connect(self.me, (to.into(), addr.port()), self.capacity);
        Ok(self.stream(end))
    }

    fn connected(stream: &SimStream) -> io::Result<bool> {
        match stream.net.lock().line(stream.end) {
            Line::Calling => Ok(false),
            Line::Open => Ok(true),
            Line::Refused => Err(ErrorKind::ConnectionRefused.into()),
        }
    }

    fn trusts(stream: &SimStream, rank: usize) {
        stream.net.lock().trusted(stream.end, stream.roster[rank] as usize);
    }
}

impl Read for &SimStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.net.lock().read(self.end, buffer) {
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            Ok(n) => Ok(n),
            Err(LinkFault::Closed) => Ok(0),
            Err(fault) => Err(io::Error::other(fault.to_string())),
        }
    }
}

impl Write for &SimStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.net.lock().write(self.end, bytes) {
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            Ok(n) => Ok(n),
            Err(LinkFault::Closed) => Err(ErrorKind::BrokenPipe.into()),
            Err(fault) => Err(io::Error::other(fault.to_string())),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for SimStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for SimStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
