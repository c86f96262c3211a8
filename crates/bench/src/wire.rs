//! The limit of an operation of two ranks over TCP: what it takes to move as many bytes, through one plain socket with the
//! options that the system gives it, without frames and without adding anything up.

use crate::data::Data;
use crate::op::Op;
use crate::timing::Work;
use phalanx::store::Secret;
use phalanx::{Error, ProcessGroup, ReduceOp, Result};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long the ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes moved in one direction before the other has its turn.
const PIECE: usize = 256 << 10;
/// As the hexadecimal text of a secret.
const PASSWORD_LEN: usize = 2 * Secret::LEN;

/// One rank's end of a socket between rank 0 and rank 1, and what passes through it.
pub(crate) struct Wire<'g> {
    op: Op,
    group: &'g ProcessGroup,
    stream: &'g TcpStream,
    out: Vec<f32>,
    into: Vec<f32>,
    data: Data<f32>,
}

/// Connects rank 1 with rank 0, which listens at `host`. Collective.
///
/// # Errors
/// `Io`: they cannot be connected. What operations return.
pub(crate) fn connect(group: &ProcessGroup, host: &str) -> Result<TcpStream> {
    let failed = |error| Error::io("connecting the ranks with a plain socket", error);
    // Who knows the password is the other rank, not a stranger.
    let (mut port, mut password) = ([0], [0; PASSWORD_LEN]);
    let stream = if group.rank() == 0 {
        let listener = TcpListener::bind((host, 0)).map_err(failed)?;
        port = [listener.local_addr().map_err(failed)?.port()];
        password.copy_from_slice(Secret::generate()?.to_hex().as_bytes());
        group.broadcast(&mut port, 0)?;
        group.broadcast(&mut password, 0)?;
        accept(&listener, &password).map_err(failed)?
    } else {
        group.broadcast(&mut port, 0)?;
        group.broadcast(&mut password, 0)?;
        let mut stream = TcpStream::connect((host, port[0])).map_err(failed)?;
        stream.write_all(&password).map_err(failed)?;
        stream
    };
    stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(failed)?;
    Ok(stream)
}

fn accept(listener: &TcpListener, password: &[u8; PASSWORD_LEN]) -> io::Result<TcpStream> {
    let begun = Instant::now();
    listener.set_nonblocking(true)?;
    while begun.elapsed() < PATIENCE {
        match some(listener.accept().map(Some), None)? {
            Some((mut stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(Duration::from_secs(1)))?;
                let mut said = [0; PASSWORD_LEN];
                if stream.read_exact(&mut said).is_ok() && said == *password {
                    return Ok(stream);
                }
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// The outcome, or `none` if nothing can be moved now.
fn some<T>(outcome: io::Result<T>, none: T) -> io::Result<T> {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(none),
        outcome => outcome,
    }
}

impl<'g> Wire<'g> {
    /// Whether it is known what `op` must move between so many ranks.
    pub(crate) fn knows(op: Op, ranks: usize) -> bool {
        ranks == 2 && matches!(op, Op::AllReduce | Op::Broadcast | Op::SendRecv)
    }

    /// `count`: elements of the whole buffer.
    pub(crate) fn new(op: Op, count: usize, group: &'g ProcessGroup, stream: &'g TcpStream) -> Self {
        let data = Data::new(Op::SendRecv, ReduceOp::Sum, group.world_size());
        Self { op, group, stream, out: vec![0.0; count], into: vec![0.0; count], data }
    }

    /// Sends, receives, or both at once.
    fn move_all(&mut self, sends: bool, receives: bool) -> io::Result<()> {
        let mut out: &[u8] = if sends { bytemuck::cast_slice(&self.out) } else { &[] };
        let mut into: &mut [u8] = if receives { bytemuck::cast_slice_mut(&mut self.into) } else { &mut [] };
        let mut stream = self.stream;
        let mut moved_last = Instant::now();
        while !(out.is_empty() && into.is_empty()) {
            let mut moved = 0;
            if !out.is_empty() {
                let n = some(stream.write(&out[..out.len().min(PIECE)]), 0)?;
                out = &out[n..];
                moved += n;
            }
            if !into.is_empty() {
                let piece = into.len().min(PIECE);
                let n = match stream.read(&mut into[..piece]) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    read => some(read, 0)?,
                };
                into = &mut into[n..];
                moved += n;
            }
            match moved {
                0 if moved_last.elapsed() > PATIENCE => return Err(ErrorKind::TimedOut.into()),
                0 => std::thread::yield_now(),
                _ => moved_last = Instant::now(),
            }
        }
        Ok(())
    }
}

impl Work for Wire<'_> {
    fn op(&self) -> Op {
        self.op
    }

    fn group(&self) -> &ProcessGroup {
        self.group
    }

    fn spoil(&mut self) {
        Data::spoil(&mut self.into);
    }

    fn touch(&mut self) {
        self.data.write(self.group.rank(), &mut self.out);
    }

    fn perform(&mut self) -> Result<()> {
        let is_first = self.group.rank() == 0;
        let moved = match self.op {
            // Each rank sends half of what it has, and half of what comes of it.
            Op::AllReduce => self.move_all(true, true),
            Op::SendRecv => {
                self.move_all(is_first, !is_first).and_then(|()| self.move_all(!is_first, is_first))
            }
            _ => self.move_all(is_first, !is_first),
        };
        moved.map_err(|error| Error::io("moving bytes through a plain socket", error))
    }

    fn wrong(&self) -> u64 {
        match self.group.rank() {
            0 if self.op == Op::Broadcast => 0,
            rank => self.data.wrong(1 - rank, 0, &self.into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx::threads;
    use std::thread;

    const OPS: [Op; 3] = [Op::AllReduce, Op::Broadcast, Op::SendRecv];

    /// For each operation, the wrong elements of each rank before and after it.
    fn wrong_on(group: &ProcessGroup) -> Vec<[u64; 2]> {
        let stream = connect(group, "127.0.0.1").unwrap();
        let wrong = |op| {
            let mut wire = Wire::new(op, 300_000, group, &stream);
            wire.touch();
            let before = wire.wrong();
            wire.perform().unwrap();
            [before, wire.wrong()]
        };
        OPS.map(wrong).to_vec()
    }

    #[test]
    fn all_bytes_arrive_and_it_is_seen_if_not() {
        let ranks: Vec<_> = thread::scope(|scope| {
            let ranks = threads(2).into_iter().map(|group| scope.spawn(move || wrong_on(&group)));
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (rank, wrong) in ranks.iter().enumerate() {
            for (op, [before, after]) in OPS.iter().zip(wrong) {
                let receives = rank == 1 || *op != Op::Broadcast;
                assert_eq!((*before > 0, *after), (receives, 0), "{op} on rank {rank}");
            }
        }
    }
}
