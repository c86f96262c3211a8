//! The options of our sockets, in one place.

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

/// Kernel buffers between ranks of one host. Autotuned buffers grow to tens of megabytes and push each other out of
/// the caches; one megabyte each way was fastest.
const LOCAL_BUFFER: usize = 1 << 20;

/// Listens on exactly `bind`, nonblocking, with the longest queue the system allows.
pub(crate) fn listen(bind: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(bind), Type::STREAM, Some(Protocol::TCP))?;
    if bind.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // A fixed port must be usable again right after the previous job; a free one needs no such thing.
    if bind.port() != 0 && cfg!(unix) {
        socket.set_reuse_address(true)?;
    }
    if bind.ip().is_loopback() {
        tune_local(&SockRef::from(&socket));
    }
    socket.bind(&bind.into())?;
    socket.listen(4096)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Begins to connect without waiting.
pub(crate) fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if addr.ip().is_loopback() {
        tune_local(&SockRef::from(&socket));
    }
    match socket.connect(&addr.into()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::WouldBlock || e.raw_os_error() == Some(IN_PROGRESS) => {}
        Err(e) => return Err(e),
    }
    Ok(socket.into())
}

const IN_PROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();

/// Whether a connection begun by [`connect`] stands by now.
pub(crate) fn connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotConnected => Ok(false),
        Err(e) => Err(e),
    }
}

/// Makes a fresh stream nonblocking and prompt.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    if is_same_host(stream) {
        tune_local(&SockRef::from(stream));
    }
    Ok(())
}

/// Whether both ends have the same address, or loopback ones.
fn is_same_host(stream: &TcpStream) -> bool {
    let canonical = |addr: io::Result<SocketAddr>| addr.map(|a| a.ip().to_canonical());
    match (canonical(stream.local_addr()), canonical(stream.peer_addr())) {
        (Ok(local), Ok(peer)) => local == peer || (IpAddr::is_loopback(&local) && peer.is_loopback()),
        _ => false,
    }
}

/// For two ends on one host there is no network to be fair to: a congestion control that paces (bbr) halves the
/// bandwidth. Links to other hosts keep what their administrator chose. Best effort: an old kernel may refuse.
fn tune_local(socket: &SockRef<'_>) {
    let _ = socket.set_send_buffer_size(LOCAL_BUFFER);
    let _ = socket.set_recv_buffer_size(LOCAL_BUFFER);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_congestion(b"reno").or_else(|_| socket.set_tcp_congestion(b"cubic"));
}
