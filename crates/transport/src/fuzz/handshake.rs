//! Handshakes in the hands of somebody who has the network but not the secret: he records, delays, swaps, changes and
//! forges messages. Nobody may be taken for what he is not, and no rank for another.

use crate::Secret;
use crate::handshake::{Acceptor, AcceptorStep, Dialer, DialerStep, Hello, Nonce, Purpose, Refusal, Status};
use crate::keys::Keys;
use arbitrary::{Result, Unstructured};
use phalanx_core::GroupId;

/// Handshakes under way at once on each side, and messages in all: enough for every confusion, and quick.
const SIDES_MAX: usize = 4;
const MESSAGES_MAX: usize = 64;
/// Those who are called are ranks of this job.
const WORLD_SIZE: usize = 8;

/// One end of a handshake whose owner knows the secret, and what it has said and heard.
struct Side<M> {
    machine: Option<M>,
    said: Vec<Vec<u8>>,
    heard: Vec<Vec<u8>>,
}

struct Caller {
    side: Side<Dialer>,
    hello: Hello,
}

struct Called {
    side: Side<Acceptor>,
    rank: usize,
    /// The caller it believes to have, and what it told that.
    proved: Option<Hello>,
    verdict: Option<Status>,
    keys: Option<Keys>,
}

impl Called {
    /// As services object. The store is the same for all.
    fn objection(&self, hello: &Hello) -> Option<Status> {
        if hello.purpose == Purpose::Store { None } else { hello.objection(self.rank, WORLD_SIZE) }
    }
}

#[derive(Default)]
struct Network {
    encrypts: bool,
    callers: Vec<Caller>,
    called: Vec<Called>,
    /// All that was ever sent.
    messages: Vec<Vec<u8>>,
}

/// An attacker on the line between the two ends of a handshake. The first bit says whether the job encrypts.
pub fn handshake(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let encrypts = input.arbitrary::<u8>().unwrap_or(0) & 1 == 1;
    let mut network = Network { encrypts, ..Network::default() };
    while !input.is_empty() && network.messages.len() < MESSAGES_MAX {
        if network.step(&mut input).is_err() {
            return;
        }
    }
}

fn secret(byte: &str, encrypts: bool) -> Secret {
    let secret = Secret::from_hex(&byte.repeat(Secret::LEN)).expect("64 digits");
    if encrypts { secret.encrypting() } else { secret }
}

fn hello(input: &mut Unstructured<'_>) -> Result<Hello> {
    let byte: u8 = input.arbitrary()?;
    let purposes = [Purpose::Store, Purpose::Control, Purpose::Data, Purpose::Memory];
    let purpose = purposes[usize::from(byte & 3)];
    let (rank, world_size) = (u32::from(byte >> 2 & 7), if byte >> 5 == 7 { 7 } else { WORLD_SIZE as u32 });
    let byte: u8 = input.arbitrary()?;
    let (called, group) = (u32::from(byte >> 5), GroupId((byte & 31).into()));
    Ok(Hello { purpose, rank, called, world_size, group })
}

impl Network {
    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let what: u8 = input.arbitrary()?;
        match what % 8 {
            0 if self.callers.len() < SIDES_MAX => {
                let hello = hello(input)?;
                // Nobody's choice: fresh for each.
                let nonce = [0x40 + self.callers.len() as u8; 32];
                let (dialer, first) = Dialer::new(secret("5a", self.encrypts), hello, nonce);
                let side = Side { machine: Some(dialer), said: vec![first.clone()], heard: Vec::new() };
                self.callers.push(Caller { side, hello });
                self.messages.push(first);
            }
            1 if self.called.len() < SIDES_MAX => {
                let nonce = [0x80 + self.called.len() as u8; 32];
                let machine = Some(Acceptor::new(secret("5a", self.encrypts), nonce));
                let side = Side { machine, said: Vec::new(), heard: Vec::new() };
                let rank = usize::from(what >> 3) % WORLD_SIZE;
                self.called.push(Called { side, rank, proved: None, verdict: None, keys: None });
            }
            2 => {
                let forged = self.forge(input)?;
                self.messages.extend(forged);
            }
            3 => {
                let (place, byte) = (input.arbitrary::<u8>()?, input.arbitrary::<u8>()?);
                let status = [Status::Welcome, Status::Taken, Status::Crossed, Status::Unwanted];
                self.decide(place.into(), status[usize::from(byte & 3)]);
            }
            _ => {
                let message = self.message(input)?;
                let place = usize::from(input.arbitrary::<u8>()?);
                if place.is_multiple_of(2) {
                    self.tell_caller(place / 2, message);
                } else {
                    self.tell_called(place / 2, message);
                }
            }
        }
        Ok(())
    }

    /// One that was sent before: whole, changed, or the front of one and the end of another; or any bytes.
    fn message(&self, input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
        let (how, which) = (input.arbitrary::<u8>()?, usize::from(input.arbitrary::<u8>()?));
        let Some(old) = self.messages.get(which % self.messages.len().max(1)) else {
            let len = usize::from(how).min(input.len());
            return Ok(input.bytes(len)?.to_vec());
        };
        let mut message = old.clone();
        match how % 4 {
            0 | 1 => {}
            2 => {
                let at = usize::from(input.arbitrary::<u8>()?) % message.len().max(1);
                let change: u8 = input.arbitrary()?;
                message.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= change);
            }
            _ => {
                let other = &self.messages[usize::from(input.arbitrary::<u8>()?) % self.messages.len()];
                let at = usize::from(input.arbitrary::<u8>()?) % (message.len().min(other.len()) + 1);
                message.truncate(at);
                message.extend_from_slice(&other[at..]);
            }
        }
        Ok(message)
    }

    /// What the machines say for somebody with another secret, who takes nonces from wherever he likes.
    fn forge(&self, input: &mut Unstructured<'_>) -> Result<Vec<Vec<u8>>> {
        let (heard, nonce) = (self.message(input)?, self.message(input)?);
        let nonce: Nonce = nonce.get(8..40).and_then(|n| n.try_into().ok()).unwrap_or([0; 32]);
        let mut said = Vec::new();
        let forged: u8 = input.arbitrary()?;
        if forged & 2 == 0 {
            let (mut dialer, first) =
                Dialer::new(secret("a5", forged.is_multiple_of(2) == self.encrypts), hello(input)?, nonce);
            if let Ok(DialerStep::Send(proof)) = dialer.handle(&fitted(heard, dialer.wants())) {
                said.push(proof);
            }
            said.push(first);
        } else {
            let mut acceptor = Acceptor::new(secret("a5", forged.is_multiple_of(2) == self.encrypts), nonce);
            if let Ok(AcceptorStep::Send(challenge)) = acceptor.handle(&fitted(heard, acceptor.wants())) {
                said.push(challenge);
            }
            said.push(acceptor.verdict(Status::Welcome));
        }
        Ok(said)
    }

    fn tell_caller(&mut self, place: usize, message: Vec<u8>) {
        let len = self.callers.len().max(1);
        let Some(caller) = self.callers.get_mut(place % len) else { return };
        let Some(mut dialer) = caller.side.machine.take() else { return };
        let message = fitted(message, dialer.wants());
        caller.side.heard.push(message.clone());
        match dialer.handle(&message) {
            Ok(DialerStep::Send(bytes)) => {
                caller.side.said.push(bytes.clone());
                caller.side.machine = Some(dialer);
                self.messages.push(bytes);
            }
            Ok(DialerStep::Done) => {
                let called = self.has_told(place % len, Status::Welcome);
                let hello = called.proved.expect("it has proved itself");
                let right = hello.purpose == Purpose::Store || called.rank == hello.called as usize;
                assert!(right, "{hello:?} was welcomed by rank {}", called.rank);
                let is_sealed = self.encrypts && self.callers[place % len].hello.purpose != Purpose::Memory;
                match (dialer.take_keys(), &called.keys) {
                    (Some(ours), Some(theirs)) if is_sealed => understand(&ours, theirs),
                    (None, None) if !is_sealed => {}
                    other => panic!("keys, or none: {other:?}"),
                }
            }
            Err(Refusal::Status(status)) => drop(self.has_told(place % len, status)),
            Err(_) => {}
        }
    }

    /// The caller heard that from whom it called, and from nobody else.
    fn has_told(&self, caller: usize, status: Status) -> &Called {
        let Caller { side, hello } = &self.callers[caller];
        let told = |called: &&Called| {
            called.proved == Some(*hello)
                && called.verdict == Some(status)
                && called.side.heard == side.said
                && called.side.said == side.heard
        };
        let mut told = self.called.iter().filter(told);
        let called = told.next().unwrap_or_else(|| panic!("{hello:?} believes {status:?}"));
        assert!(told.next().is_none(), "one caller, and two who were called");
        called
    }

    fn tell_called(&mut self, place: usize, message: Vec<u8>) {
        let len = self.called.len().max(1);
        let Some(called) = self.called.get_mut(place % len) else { return };
        // It waits for its owner's verdict, and for nothing else.
        if called.proved.is_some() {
            return;
        }
        let Some(mut acceptor) = called.side.machine.take() else { return };
        let message = fitted(message, acceptor.wants());
        let is_hopeless = acceptor.is_hopeless(&message[..message.len() / 2]);
        called.side.heard.push(message.clone());
        let step = acceptor.handle(&message);
        assert!(!(is_hopeless && step.is_ok()), "what was hopeless was taken");
        match step {
            Ok(AcceptorStep::Send(bytes)) => {
                called.side.said.push(bytes.clone());
                called.side.machine = Some(acceptor);
                self.messages.push(bytes);
            }
            Ok(AcceptorStep::Proved(hello)) => {
                called.proved = Some(hello);
                called.side.machine = Some(acceptor);
                let heard = called.side.heard.clone();
                let challenge = called.side.said[0].clone();
                let genuine =
                    |c: &&Caller| c.hello == hello && c.side.said == heard && c.side.heard[0] == challenge;
                assert_eq!(self.callers.iter().filter(genuine).count(), 1, "{hello:?} was let in");
                let twice =
                    self.called.iter().filter(|c| c.proved.is_some() && c.side.heard == heard).count();
                assert_eq!(twice, 1, "{hello:?} was let in twice by one proof");
            }
            Err(_) => {}
        }
    }

    fn decide(&mut self, place: usize, status: Status) {
        let len = self.called.len().max(1);
        let Some(called) = self.called.get_mut(place % len) else { return };
        let Some(hello) = called.proved else { return };
        let status = called.objection(&hello).unwrap_or(status);
        if let Some(mut acceptor) = called.side.machine.take() {
            let verdict = acceptor.verdict(status);
            called.keys = acceptor.take_keys();
            called.verdict = Some(status);
            called.side.said.push(verdict.clone());
            self.messages.push(verdict);
        }
    }
}

/// What one end seals the other opens.
fn understand(ours: &Keys, theirs: &Keys) {
    let (mut sealed, mut plain) = ([0; 20], [0; 20]);
    ours.seal(0, b"word", &mut sealed).expect("there are keys");
    assert_eq!(theirs.open(0, &sealed, &mut plain).ok(), Some(4), "they have other keys");
    assert_eq!(&plain[..4], b"word");
}

/// A machine reads exactly what it wants.
fn fitted(mut message: Vec<u8>, wants: usize) -> Vec<u8> {
    message.resize(wants, 0);
    message
}
