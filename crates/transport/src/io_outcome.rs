//! What a read or a write on a nonblocking stream came to, for transports over sockets.

use crate::resources;
use crate::transport::LinkFault;
use std::io::{self, ErrorKind};

/// How many bytes a read or a write on a nonblocking stream has moved; `None` if none can move now.
///
/// A process that lacks descriptors or memory moves nothing now, and may later. A read of 0 bytes is the end of the stream: the caller knows whether it read.
///
/// # Errors
/// [`Closed`](LinkFault::Closed) where the other end has closed the stream or died, [`Nonsense`](LinkFault::Nonsense) for
/// [`InvalidData`](ErrorKind::InvalidData), which a stream that checks its bytes returns, and [`Unreachable`](LinkFault::Unreachable) for everything else:
/// the system gave up on the network between the ends.
///
/// # Examples
/// ```
/// use phalanx_transport::{LinkFault, moved};
/// use std::io::{Error, ErrorKind};
///
/// assert_eq!(moved(Ok(8)), Ok(Some(8)));
/// assert_eq!(moved(Err(ErrorKind::WouldBlock.into())), Ok(None));
/// assert_eq!(moved(Err(ErrorKind::BrokenPipe.into())), Err(LinkFault::Closed));
/// assert!(matches!(moved(Err(Error::other("no route"))), Err(LinkFault::Unreachable(_))));
/// ```
pub fn moved(outcome: io::Result<usize>) -> Result<Option<usize>, LinkFault> {
    outcome.map(Some).or_else(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
        _ if resources::are_exhausted(&error) => Ok(None),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
            Err(LinkFault::Closed)
        }
        ErrorKind::InvalidData => Err(LinkFault::Nonsense(error.to_string())),
        _ => Err(LinkFault::Unreachable(error.to_string())),
    })
}
