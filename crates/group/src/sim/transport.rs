//! The links of one simulated rank, as a transport.

use super::connections::SharedConnections;
use super::faults::{Falsehood, Lie};
use super::job::Seat;
use super::network::Net;
use super::stream::SimSockets;
use phalanx_core::{Deadline, GroupId};
use phalanx_transport::handshake::{Hello, Purpose};
use phalanx_transport::simulated::{self, Mailbox};
use phalanx_transport::{Dial, Direction, LinkFault, Transport, Wait};
use std::io::{ErrorKind, IoSlice};
use std::time::Duration;

/// Bytes of a frame's header.
const HEADER_LEN: usize = 40;

#[derive(Debug)]
enum Link {
    Unused,
    Dialling,
    Up(simulated::Link<SimSockets>),
    Down(LinkFault),
}

/// What goes out to one peer, for who counts frames.
#[derive(Debug, Default, Clone)]
struct Outgoing {
    /// Bytes of the frame handed over.
    done: usize,
    /// The frame's header as it is sent, and its length with all.
    header: Option<([u8; HEADER_LEN], usize)>,
}

/// The links of one group on one simulated rank. Which they are, its exchange decides.
#[derive(Debug)]
pub(super) struct SimTransport {
    net: Net,
    connections: SharedConnections,
    group: GroupId,
    seat: Seat,
    /// The ranks of the job that are in the group, in its order.
    members: Vec<usize>,
    link_timeout: Duration,
    mailbox: Mailbox<SimSockets>,
    links: Vec<Link>,
    lie: Option<Lie>,
    frames: usize,
    outgoing: Vec<Outgoing>,
}

impl SimTransport {
    pub(super) fn open(
        net: &Net,
        connections: &SharedConnections,
        (group, members): (GroupId, &[usize]),
        seat: &Seat,
        link_timeout: Duration,
        lie: Option<Lie>,
    ) -> Self {
        Self {
            net: net.clone(),
            connections: connections.clone(),
            group,
            seat: seat.clone(),
            members: members.to_vec(),
            link_timeout,
            mailbox: connections.lock().process.open(group),
            links: members.iter().map(|_| Link::Unused).collect(),
            lie,
            frames: 0,
            outgoing: vec![Outgoing::default(); members.len()],
        }
    }

    fn empty_mailbox(&mut self) {
        for (peer, link) in self.mailbox.empty() {
            let Some(index) = self.members.iter().position(|&member| member == peer) else { continue };
            self.links[index] = link.map_or_else(Link::Down, Link::Up);
        }
    }

    fn link(&mut self, peer: usize) -> Result<Option<&mut simulated::Link<SimSockets>>, LinkFault> {
        self.empty_mailbox();
        if matches!(self.links[peer], Link::Unused) {
            self.links[peer] = Link::Dialling;
            let called = self.members[peer];
            let hello = Hello {
                purpose: Purpose::Data,
                rank: self.seat.rank as u32,
                called: called as u32,
                world_size: self.seat.world_size() as u32,
                group: self.group,
            };
            let deadline = Deadline::after(self.net.lock().now, self.link_timeout);
            let dial = Dial { peer: called, addr: self.seat.address(called), hello, deadline };
            self.connections.lock().process.dial(dial);
        }
        match &mut self.links[peer] {
            Link::Up(link) => Ok(Some(link)),
            Link::Down(fault) => Err(fault.clone()),
            Link::Unused | Link::Dialling => Ok(None),
        }
    }

    /// What a liar sends instead of `bytes`.
    fn forge(&mut self, peer: usize, bytes: &mut [u8]) {
        let Some(lie) = self.lie else { return };
        let out = &mut self.outgoing[peer];
        if out.header.is_none()
            && let Some(head) = bytes.first_chunk::<HEADER_LEN>()
        {
            let mut header = *head;
            let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
            let signature = usize::from(u16::from_le_bytes([header[2], header[3]]));
            let len = HEADER_LEN + signature + u32_at(4) as usize;
            if self.frames == lie.frame {
                lie.how.apply(&mut header);
                self.net.lock().say(lie.frame as u64, || format!("{} lies: {:?}", lie.rank, lie.how));
            }
            self.frames += 1;
            out.header = Some((header, len));
        }
        if let Some((header, _)) = &out.header {
            let of_header = &header[out.done.min(HEADER_LEN)..];
            let n = of_header.len().min(bytes.len());
            bytes[..n].copy_from_slice(&of_header[..n]);
        }
    }

    fn sent(&mut self, peer: usize, n: usize) {
        let out = &mut self.outgoing[peer];
        out.done += n;
        if out.header.is_some_and(|(_, len)| out.done >= len) {
            *out = Outgoing::default();
        }
    }
}

impl Falsehood {
    fn apply(self, header: &mut [u8; HEADER_LEN]) {
        let id = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
        let set_id =
            |header: &mut [u8; HEADER_LEN], id: u64| header[8..16].copy_from_slice(&id.to_le_bytes());
        match self {
            Self::Kind => header[0] = 9,
            Self::Length => header[7] = 0xff,
            Self::Ordinal => header[16] ^= 1,
            Self::Fingerprint => header[32] ^= 1,
            Self::Earlier => set_id(header, id.wrapping_sub(1)),
            Self::Later => set_id(header, id + 1),
            Self::Reserved => header[1] = 1,
        }
    }
}

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn rank(&self) -> usize {
        self.members.iter().position(|&member| member == self.seat.rank).expect("it is a member")
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        if self.link(peer)?.is_none() {
            return Ok(0);
        }
        let mut whole: Vec<u8> = bytes.iter().flat_map(|part| part.iter().copied()).collect();
        self.forge(peer, &mut whole);
        let Some(link) = self.link(peer)? else { return Ok(0) };
        match link.write(&whole) {
            Ok(n) => {
                self.sent(peer, n);
                Ok(n)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
            // What the peer sent before it closed can still be read.
            Err(_) => Err(LinkFault::Closed),
        }
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let Some(link) = self.link(peer)? else { return Ok(0) };
        match link.read(buffer) {
            Ok(n) if n > 0 => Ok(n),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
            _ => {
                self.links[peer] = Link::Down(LinkFault::Closed);
                Err(LinkFault::Closed)
            }
        }
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        self.empty_mailbox();
        matches!(self.links[peer], Link::Up(_))
    }

    fn watch(&mut self, _peer: usize, _direction: Direction, _wait: &mut Wait) -> bool {
        unreachable!("nobody sleeps in a simulation")
    }
}

impl Drop for SimTransport {
    fn drop(&mut self) {
        self.connections.lock().process.close(self.group);
    }
}
