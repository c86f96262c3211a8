//! Processes that do not belong to the job: some arrive, one answers in the place of a rank.

use super::faults::{Manner, Stranger};
use super::network::{End, FIRST_PORT, Line, Net};
use super::random::Random;
use phalanx_core::{GroupId, WORLD};
use phalanx_transport::Secret;
use phalanx_transport::handshake::{Acceptor, AcceptorStep, Dialer, DialerStep, Hello, Purpose};

/// A stranger's connection to one rank.
#[derive(Debug)]
pub(super) struct Caller {
    end: End,
    manner: Manner,
    /// The bytes that it sends now, and those that it will send when it is answered.
    says: Vec<u8>,
    then: Vec<u8>,
    dialer: Option<Dialer>,
    heard: Vec<u8>,
}

impl Caller {
    pub(super) fn arrive(
        (me, world_size): (usize, usize),
        stranger: Stranger,
        secret: &Secret,
        net: &Net,
        random: &mut Random,
    ) -> Self {
        let mut network = net.lock();
        let end = network.connect(me, (stranger.target, FIRST_PORT), 1000);
        let hello = Hello {
            purpose: *random.pick(&[Purpose::Control, Purpose::Data]),
            rank: random.below(8) as u32,
            called: stranger.target as u32,
            world_size: if random.chance(3, 4) { world_size as u32 } else { 2 + random.below(7) as u32 },
            // One that exists, or one that may come to exist, as far as the rank knows.
            group: *random.pick(&[WORLD, GroupId(7)]),
        };
        let other = Secret::from_hex(&"5a".repeat(32)).expect("it is one");
        let (secret, speaks) = match stranger.manner {
            Manner::OtherSecret => (&other, true),
            Manner::OtherVersion => (secret, true),
            _ => (secret, false),
        };
        let (dialer, mut says) = Dialer::new(secret.clone(), hello, random.array());
        let mut then = Vec::new();
        match stranger.manner {
            Manner::Silent => says.clear(),
            Manner::Garbage => says = (0..random.below(300)).map(|_| random.bits() as u8).collect(),
            Manner::OtherVersion => says[4] ^= 1,
            Manner::OtherSecret => {}
            Manner::Replay => {
                let tapped = network.tapped(stranger.target);
                let opening = says.len().min(tapped.len());
                says = tapped[..opening].to_vec();
                then = tapped[opening..].to_vec();
            }
        }
        Self { end, manner: stranger.manner, says, then, dialer: speaks.then_some(dialer), heard: Vec::new() }
    }

    pub(super) fn look(&mut self, net: &Net) {
        let mut network = net.lock();
        if network.line(self.end) != Line::Open {
            return;
        }
        loop {
            while !self.says.is_empty() {
                match network.write(self.end, &self.says) {
                    Ok(n) if n > 0 => drop(self.says.drain(..n)),
                    _ => return,
                }
            }
            let mut part = [0; 64];
            let n = match network.read(self.end, &mut part) {
                Ok(n) if n > 0 => n,
                _ => return,
            };
            self.heard.extend(&part[..n]);
            self.says = std::mem::take(&mut self.then);
            if let Some(dialer) = &mut self.dialer
                && self.heard.len() == dialer.wants()
            {
                match dialer.handle(&std::mem::take(&mut self.heard)) {
                    Ok(DialerStep::Send(bytes)) => self.says = bytes,
                    Ok(DialerStep::Done) => {
                        network.violations.push(format!("{:?} was made welcome", self.manner));
                    }
                    Err(_) => self.dialer = None,
                }
            }
        }
    }
}

/// An impostor that answers in the place of a rank: it knows the protocol and not the secret.
#[derive(Debug)]
pub(super) struct Impostor {
    me: usize,
    calls: Vec<(End, Option<Acceptor>, Vec<u8>)>,
}

impl Impostor {
    pub(super) fn new(me: usize, net: &Net) -> Self {
        net.lock().listen(me, FIRST_PORT);
        Self { me, calls: Vec::new() }
    }

    pub(super) fn look(&mut self, net: &Net, random: &mut Random) {
        let mut network = net.lock();
        let other = Secret::from_hex(&"a5".repeat(32)).expect("it is one");
        while let Some(end) = network.accept(self.me, FIRST_PORT) {
            self.calls.push((end, Some(Acceptor::new(other.clone(), random.array())), Vec::new()));
        }
        for (end, acceptor, heard) in &mut self.calls {
            let mut part = [0; 64];
            while let Ok(n) = network.read(*end, &mut part)
                && n > 0
            {
                heard.extend(&part[..n]);
            }
            let Some(speaks) = acceptor else { continue };
            if heard.len() < speaks.wants() {
                continue;
            }
            let message: Vec<u8> = heard.drain(..speaks.wants()).collect();
            let answer = match speaks.handle(&message) {
                Ok(AcceptorStep::Send(bytes)) => bytes,
                // It believes whatever proof it gets, and welcomes the caller with that same proof: a reflection.
                _ => {
                    *acceptor = None;
                    let mut verdict = vec![0; 8];
                    verdict.extend(&message[message.len() - 32..]);
                    verdict
                }
            };
            let _ = network.write(*end, &answer);
        }
    }
}
