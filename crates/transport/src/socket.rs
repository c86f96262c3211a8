//! The options of our sockets, in one place.

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Kernel buffers between ranks of one host. Autotuned buffers grow to tens of megabytes and push each other out of
/// the caches; one megabyte each way was fastest.
const LOCAL_BUFFER: usize = 1 << 20;

/// Kernel buffers of a session.
const SESSION_BUFFER: usize = 64 << 10;

/// How often a connection on which nobody says anything shows that it stands. Firewalls and address translators forget those that don't,
/// some after a few minutes, and drop what comes later without a word. Who is gone is found by other means long before.
const KEEPALIVE: Duration = Duration::from_secs(60);

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

/// The address by which processes of this host reach each other: 127.0.0.1, or ::1 on a host that has only IPv6.
///
/// # Examples
/// ```
/// assert!(phalanx_transport::loopback().is_loopback());
/// ```
pub fn loopback() -> IpAddr {
    let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
    match TcpListener::bind((v4, 0)) {
        Err(e) if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() => {
            tracing::debug!(%e, "127.0.0.1 can't be used; taking ::1");
            IpAddr::V6(Ipv6Addr::LOCALHOST)
        }
        // Where neither can be had, the usual one is named in the error that follows.
        _ => v4,
    }
}

/// Begins to connect without waiting.
pub(crate) fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    keep_alive(&SockRef::from(&socket));
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
///
/// Where nobody listens at a port that the system also gives to outgoing connections, a connection to it may be given that very port and be
/// connected with itself. That is nobody who listens, too.
pub(crate) fn connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(peer) if stream.local_addr()? == peer => Err(io::Error::from(ErrorKind::ConnectionRefused)),
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotConnected => Ok(false),
        Err(e) => Err(e),
    }
}

/// Makes a fresh stream nonblocking and prompt.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    keep_alive(&SockRef::from(stream));
    if is_same_host(stream) {
        tune_local(&SockRef::from(stream));
    }
    Ok(())
}

/// For a session, whose messages are small, at either end: a process that tells ten thousand others something long must not fill the memory that
/// the system has for all connections (`net.ipv4.tcp_mem`), for then all of them come to a halt. Best effort.
pub(crate) fn tune_session(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let _ = socket.set_send_buffer_size(SESSION_BUFFER);
    let _ = socket.set_recv_buffer_size(SESSION_BUFFER);
}

/// Best effort: a link that is never idle needs none.
fn keep_alive(socket: &SockRef<'_>) {
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE));
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_connection_with_itself_is_none() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.connect(&socket.local_addr().unwrap()).unwrap();
        let error = connected(&socket.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn both_ends_of_an_idle_connection_show_that_it_stands() {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let ours = connect(listener.local_addr().unwrap()).unwrap();
        let theirs = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        };
        prepare(&theirs).unwrap();
        for end in [ours, theirs] {
            let socket = SockRef::from(&end);
            let set = (socket.keepalive(), socket.tcp_keepalive_time(), socket.tcp_keepalive_interval());
            assert_eq!((set.0.unwrap(), set.1.unwrap(), set.2.unwrap()), (true, KEEPALIVE, KEEPALIVE));
        }
    }
}
