//! What communicators and the hub say to each other.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Kind {
    Join,
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    Split,
    Send,
    Recv,
    Connect,
    Gone,
}

/// A kind of collective, or [`Kind::Send`], and how, or between whom.
pub(crate) type Way = (u64, u64);

impl Kind {
    const ALL: [Self; 11] = [
        Self::Join,
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Split,
        Self::Send,
        Self::Recv,
        Self::Connect,
        Self::Gone,
    ];
}

/// One rank's part of one call.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// The same for the parts of one collective; with it comes the reply.
    pub(crate) seq: u64,
    /// Root or peer; the color of a split; the rank of who joins; the kind of what is connected for.
    pub(crate) who: u64,
    /// Elements, as the call counts them; the key of a split; how many will join; how, or whom, it connects.
    pub(crate) count: u64,
    /// The type; the communicator of who joins.
    pub(crate) dtype: u64,
    /// The operator, and its scalar; the device of who joins.
    pub(crate) operator: u64,
    pub(crate) scalar: f64,
    pub(crate) data: Vec<u8>,
}

/// What comes of it.
pub(crate) struct Reply {
    /// 0 for what was not asked for: that a rank is gone.
    pub(crate) seq: u64,
    /// An `ncclResult_t`.
    pub(crate) code: u64,
    pub(crate) data: Vec<u8>,
}

fn write(mut to: &UnixStream, head: &[u64], data: &[u8]) -> io::Result<()> {
    let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend((data.len() as u64).to_ne_bytes());
    bytes.extend(data);
    to.write_all(&bytes)
}

fn read<const N: usize>(mut from: &UnixStream) -> io::Result<([u64; N], Vec<u8>)> {
    let mut word = || {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes).map(|()| u64::from_ne_bytes(bytes))
    };
    let mut head = [0; N];
    for slot in &mut head {
        *slot = word()?;
    }
    let mut data = vec![0; word()? as usize];
    from.read_exact(&mut data)?;
    Ok((head, data))
}

impl Request {
    pub(crate) fn write(&self, to: &UnixStream) -> io::Result<()> {
        let Self { kind, seq, who, count, dtype, operator, scalar, data } = self;
        write(to, &[*kind as u64, *seq, *who, *count, *dtype, *operator, scalar.to_bits()], data)
    }

    pub(crate) fn read(from: &UnixStream) -> io::Result<Self> {
        let ([kind, seq, who, count, dtype, operator, scalar], data) = read(from)?;
        let kind = *Kind::ALL.get(kind as usize).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { kind, seq, who, count, dtype, operator, scalar: f64::from_bits(scalar), data })
    }
}

impl Reply {
    pub(crate) fn write(&self, to: &UnixStream) -> io::Result<()> {
        write(to, &[self.seq, self.code], &self.data)
    }

    pub(crate) fn read(from: &UnixStream) -> io::Result<Self> {
        let ([seq, code], data) = read(from)?;
        Ok(Self { seq, code, data })
    }
}
