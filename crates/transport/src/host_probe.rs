//! Whether the systems at some addresses answer, whatever runs there.

use crate::{resources, socket};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How often connections that are being made are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The outcome of a connection that was begun: whether the system at the other end has answered, or what failed; `None` while nothing
/// has come.
pub(crate) fn answer(stream: &TcpStream) -> Option<bool> {
    match socket::connected(stream) {
        Ok(true) => Some(true),
        Ok(false) => None,
        // Nobody listens there any more, and the system says so.
        Err(error) => Some(matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset)),
    }
}

/// Tries a connection to each address for as long as `limit`, to all at once: which of the systems there answer. A process that computes or
/// is stopped does not keep its system from that. Where this process has nothing left to ask with, nothing is known, and the answer is yes.
pub fn probe_hosts(addrs: &[SocketAddr], limit: Duration) -> Vec<bool> {
    let begin = |addr: &SocketAddr| match socket::connect(*addr) {
        Ok(stream) => (Some(stream), None),
        Err(error) => (None, Some(is_unknown(&error) || error.kind() == ErrorKind::ConnectionRefused)),
    };
    let mut tried: Vec<(Option<TcpStream>, Option<bool>)> = addrs.iter().map(begin).collect();
    let until = Instant::now() + limit.min(Duration::from_secs(60));
    loop {
        for (stream, answered) in &mut tried {
            if let (Some(stream), None) = (&stream, &answered) {
                *answered = answer(stream);
            }
        }
        if Instant::now() >= until || tried.iter().all(|(_, answered)| answered.is_some()) {
            return tried.into_iter().map(|(_, answered)| answered.unwrap_or(false)).collect();
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn is_unknown(error: &io::Error) -> bool {
    resources::are_exhausted(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_system_answers_whether_or_not_anybody_accepts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // A network that no machine has.
        let nowhere: SocketAddr = "192.0.2.1:9".parse().unwrap();
        let answers = probe_hosts(&[busy, nowhere, closed], Duration::from_millis(300));
        assert_eq!([answers[0], answers[2]], [true, true]);
        assert!(probe_hosts(&[], Duration::from_secs(60)).is_empty());
    }

    /// A listener whose queue is full takes no notice of whoever comes: as if the cable were cut.
    #[cfg(target_os = "linux")]
    #[test]
    fn where_nothing_answers_it_says_so_in_time() {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(0).unwrap();
        let addr = TcpListener::from(socket.try_clone().unwrap()).local_addr().unwrap();
        let _waiting: Vec<_> = (0..3).map(|_| socket::connect(addr).unwrap()).collect();
        assert_eq!(probe_hosts(&[addr], Duration::from_millis(200)), [false]);
    }
}
