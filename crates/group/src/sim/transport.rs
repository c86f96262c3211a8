//! The links of one simulated rank, as a transport.

use super::faults::{Falsehood, Lie};
use super::network::{End, Net};
use phalanx_core::Deadline;
use phalanx_transport::handshake::Status;
use phalanx_transport::{Direction, LinkFault, Transport, Wait};
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a frame's header.
const HEADER_LEN: usize = 40;

#[derive(Debug, Clone)]
enum Link {
    Unused,
    /// To be dialled before this.
    Wanted(Deadline),
    Dialling,
    Up(End),
    Down(LinkFault),
}

/// Which links stand. Rules as in the exchange of a process.
#[derive(Debug)]
pub(super) struct Links {
    me: usize,
    links: Vec<Link>,
}

impl Links {
    pub(super) fn new(me: usize, world_size: usize) -> Self {
        Self { me, links: vec![Link::Unused; world_size] }
    }

    pub(super) fn of(shared: &Arc<Mutex<Self>>) -> MutexGuard<'_, Self> {
        shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to tell a peer that wants a link.
    pub(super) fn admit(&self, peer: usize) -> Status {
        match &self.links[peer] {
            Link::Up(_) => Status::Taken,
            Link::Wanted(_) | Link::Dialling if self.me > peer => Status::Crossed,
            _ => Status::Welcome,
        }
    }

    /// A link stands, whoever dialled; false if there is one already.
    pub(super) fn linked(&mut self, peer: usize, end: End) -> bool {
        let is_first = !matches!(self.links[peer], Link::Up(_));
        if is_first {
            self.links[peer] = Link::Up(end);
        }
        is_first
    }

    pub(super) fn unreachable(&mut self, peer: usize, fault: LinkFault) {
        if matches!(self.links[peer], Link::Dialling) {
            self.links[peer] = Link::Down(fault);
        }
    }

    /// The peers to dial now, and until when.
    pub(super) fn take_wanted(&mut self) -> Vec<(usize, Deadline)> {
        let mut dials = Vec::new();
        for (peer, link) in self.links.iter_mut().enumerate() {
            if let Link::Wanted(deadline) = *link {
                *link = Link::Dialling;
                dials.push((peer, deadline));
            }
        }
        dials
    }
}

/// What goes out to one peer, for who counts frames.
#[derive(Debug, Default, Clone)]
struct Outgoing {
    /// Bytes of the frame handed over.
    done: usize,
    /// The frame's header as it is sent, and its length with all.
    header: Option<([u8; HEADER_LEN], usize)>,
}

/// A link over the simulated network.
#[derive(Debug)]
pub(super) struct SimTransport {
    pub(super) net: Net,
    pub(super) me: usize,
    pub(super) links: Arc<Mutex<Links>>,
    pub(super) link_timeout: Duration,
    lie: Option<Lie>,
    frames: usize,
    outgoing: Vec<Outgoing>,
}

impl SimTransport {
    pub(super) fn new(
        net: Net,
        me: usize,
        links: Arc<Mutex<Links>>,
        link_timeout: Duration,
        lie: Option<Lie>,
    ) -> Self {
        let outgoing = vec![Outgoing::default(); Links::of(&links).links.len()];
        Self { net, me, links, link_timeout, lie, frames: 0, outgoing }
    }

    fn link(&self, peer: usize) -> Result<Option<End>, LinkFault> {
        let mut links = Links::of(&self.links);
        match &links.links[peer] {
            Link::Up(end) => Ok(Some(*end)),
            Link::Down(fault) => Err(fault.clone()),
            Link::Wanted(_) | Link::Dialling => Ok(None),
            Link::Unused => {
                let now = self.net.lock().now;
                links.links[peer] = Link::Wanted(Deadline::after(now, self.link_timeout));
                Ok(None)
            }
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
        self.me
    }

    fn world_size(&self) -> usize {
        self.outgoing.len()
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        let Some(end) = self.link(peer)? else { return Ok(0) };
        let mut whole: Vec<u8> = bytes.iter().flat_map(|part| part.iter().copied()).collect();
        self.forge(peer, &mut whole);
        let n = self.net.lock().write(end, &whole)?;
        self.sent(peer, n);
        Ok(n)
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let Some(end) = self.link(peer)? else { return Ok(0) };
        let read = self.net.lock().read(end, buffer);
        if let Err(fault) = &read {
            Links::of(&self.links).links[peer] = Link::Down(fault.clone());
        }
        read
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        matches!(Links::of(&self.links).links[peer], Link::Up(_))
    }

    fn watch(&mut self, _peer: usize, _direction: Direction, _wait: &mut Wait) -> bool {
        unreachable!("nobody sleeps in a simulation")
    }
}
