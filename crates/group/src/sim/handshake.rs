//! The handshake of one connection: the real state machines, fed by the simulated network.

use super::network::{End, Network};
use phalanx_transport::handshake::{Acceptor, AcceptorStep, Dialer, DialerStep, Hello, Refusal, Status};
use std::time::Instant;

#[derive(Debug)]
enum Role {
    Acceptor(Box<Acceptor>),
    Dialer(Dialer),
    /// The last bytes are on their way out.
    Finished,
}

/// A connection that is not trusted yet.
#[derive(Debug)]
pub(super) struct Handshaking {
    pub(super) end: End,
    /// When to give up on it.
    pub(super) until: Instant,
    role: Role,
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Where a handshake stands.
#[derive(Debug)]
pub(super) enum Progress {
    Pending,
    /// The caller proved itself: [`answer`](Handshaking::answer) it.
    Proved(Hello),
    Done,
    Refused(Refusal),
    Closed,
}

impl Handshaking {
    pub(super) fn accepted(end: End, acceptor: Acceptor, until: Instant) -> Self {
        let role = Role::Acceptor(Box::new(acceptor));
        Self { end, until, role, input: Vec::new(), output: Vec::new() }
    }

    pub(super) fn dialled(end: End, (dialer, first): (Dialer, Vec<u8>), until: Instant) -> Self {
        Self { end, until, role: Role::Dialer(dialer), input: Vec::new(), output: first }
    }

    /// As in the endpoint.
    pub(super) fn has_proved(&self) -> bool {
        matches!(&self.role, Role::Dialer(dialer) if dialer.has_proved()) && self.output.is_empty()
    }

    pub(super) fn answer(&mut self, status: Status) {
        if let Role::Acceptor(mut acceptor) = std::mem::replace(&mut self.role, Role::Finished) {
            self.output.extend(acceptor.verdict(status));
        }
    }

    pub(super) fn advance(&mut self, network: &mut Network) -> Progress {
        loop {
            while !self.output.is_empty() {
                match network.write(self.end, &self.output) {
                    Ok(0) => return Progress::Pending,
                    Ok(n) => drop(self.output.drain(..n)),
                    Err(_) => return Progress::Closed,
                }
            }
            let wants = match &self.role {
                Role::Acceptor(acceptor) => acceptor.wants(),
                Role::Dialer(dialer) => dialer.wants(),
                Role::Finished => return Progress::Done,
            };
            // Never a byte more: what follows belongs to the next reader.
            while self.input.len() < wants {
                let mut part = vec![0; wants - self.input.len()];
                match network.read(self.end, &mut part) {
                    Ok(0) => return Progress::Pending,
                    Ok(n) => self.input.extend(&part[..n]),
                    Err(_) => return Progress::Closed,
                }
            }
            let message = std::mem::take(&mut self.input);
            match &mut self.role {
                Role::Acceptor(acceptor) => match acceptor.handle(&message) {
                    Ok(AcceptorStep::Send(bytes)) => self.output = bytes,
                    Ok(AcceptorStep::Proved(hello)) => return Progress::Proved(hello),
                    Err(refusal) => return Progress::Refused(refusal),
                },
                Role::Dialer(dialer) => match dialer.handle(&message) {
                    Ok(DialerStep::Send(bytes)) => self.output = bytes,
                    Ok(DialerStep::Done) => self.role = Role::Finished,
                    Err(refusal) => return Progress::Refused(refusal),
                },
                Role::Finished => return Progress::Done,
            }
        }
    }
}
