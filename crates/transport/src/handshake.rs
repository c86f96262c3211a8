//! The handshake with which every socket begins: both ends prove that they know the job's secret.
//!
//! ```text
//! dialer                                      acceptor
//!   | Opening    magic, version, purpose, encrypts, nonce_d
//!   |-------------------------------------------->|
//!   |     Challenge  magic, version, encrypts, nonce_a
//!   |<--------------------------------------------|
//!   | Proof      identity, [Noise 1], HMAC("dialer", all so far)
//!   |-------------------------------------------->|   verified before anything else is believed
//!   |  Verdict   status, [Noise 2], HMAC("acceptor", all so far)
//!   |<--------------------------------------------|
//! ```
//!
//! Fresh nonces on both sides make replay useless, the labels make reflection useless, and each MAC covers everything
//! said before it, identity and status included. The dialer proves itself first, so a stranger learns nothing that is
//! derived from the secret. All messages have fixed lengths: nothing is allocated for a stranger.
//!
//! The identity is who calls and who is called. The acceptor lets nobody in who called somebody else: packets that are sent elsewhere on
//! their way, and addresses that have another owner by now, lead to other ranks of the same job, who know the secret as well.
//!
//! Whether the job encrypts is part of the secret, so both ends know what the other must say; who says otherwise is refused, and
//! nobody on the way can talk them out of it. In a job that encrypts, and on the line of an [agent](Purpose::Agent), messages three and four carry those of a
//! Noise handshake, and all that follows on the connection is sealed with its keys. In one that does not, who
//! can rewrite packets between two ranks can still hijack an authenticated connection.
//! [Memory](Purpose::Memory) is passed inside one host and never sealed. See `docs/reference/security.md` for the reasons.
//!
//! State machines: bytes in, bytes out; nonces are arguments. Only Noise makes its key pairs itself.

use crate::Secret;
use crate::keys::{self, Agreement, Keys, NoKeys};
use crate::sabotage::{Mechanism, breaks};
pub use crate::status::Status;
use hmac::{Hmac, Mac};
use phalanx_core::GroupId;
use sha2::Sha256;
use std::fmt;
use zeroize::Zeroizing;

const MAGIC: [u8; 4] = *b"PHLX";
/// Changes whenever anything on the wire does; both ends must have the same.
pub const VERSION: u16 = 8;
const NONCE: usize = 32;
const MAC: usize = 32;
const OPENING: usize = 8 + NONCE;
const CHALLENGE: usize = 8 + NONCE;
const IDENTITY: usize = 20;
const PROOF: usize = IDENTITY + MAC;
const VERDICT: usize = 8 + MAC;

/// Bytes nobody could have foreseen, made anew for each handshake.
pub type Nonce = [u8; NONCE];

/// Where a process takes its nonces from: the system, or in a simulation its seed.
pub(crate) type Nonces<'n> = &'n mut dyn FnMut() -> Result<Nonce, phalanx_core::Error>;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A client of the rendezvous store.
    Store = 1,
    /// A rank's line to the arbiter on rank 0.
    Control = 2,
    /// A link that carries the data of one group.
    Data = 3,
    /// Memory of one group, passed between two processes of one host.
    Memory = 4,
    /// A rank's lifeline to the launcher that started it.
    Lifeline = 5,
    /// A sign of life: a rank whose line to the arbiter is silent asks whether it can be reached by another connection.
    Heartbeat = 6,
    /// The line of a launcher's agent on another host to the launcher that leads the job. Sealed also in a job that does not encrypt.
    Agent = 7,
}

/// The caller, the rank that it calls, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The caller's rank in the job; 0 for store clients, which have no rank yet.
    pub rank: u32,
    /// The rank that is called; 0 for the store and the launcher, which have none.
    pub called: u32,
    /// Ranks in the caller's job.
    pub world_size: u32,
    /// The group of a data link, or of memory.
    pub group: GroupId,
}

impl Hello {
    /// A client of the rendezvous store.
    pub fn store() -> Self {
        Self { purpose: Purpose::Store, rank: 0, called: 0, world_size: 0, group: phalanx_core::WORLD }
    }

    /// A rank of a job of `world_size`, to the launcher that started it.
    pub fn lifeline(rank: usize, world_size: usize) -> Self {
        let (rank, world_size) = (rank as u32, world_size as u32);
        Self { purpose: Purpose::Lifeline, rank, called: 0, world_size, group: phalanx_core::WORLD }
    }

    /// The agent of host number `node` among the `nodes` hosts of a job, to the launcher that leads it.
    pub fn agent(node: usize, nodes: usize) -> Self {
        let (rank, world_size) = (node as u32, nodes as u32);
        Self { purpose: Purpose::Agent, rank, called: 0, world_size, group: phalanx_core::WORLD }
    }

    /// The reason to refuse such a caller at rank `rank` of a job of `world_size`, if there is one.
    pub fn objection(&self, rank: usize, world_size: usize) -> Option<Status> {
        let (caller, called) = (self.rank as usize, self.called as usize);
        // Rank 0 is a client of its own arbiter, but nobody links with itself.
        let itself = caller == rank && !matches!(self.purpose, Purpose::Control | Purpose::Heartbeat);
        if self.world_size as usize != world_size {
            return Some(Status::OtherSize(world_size as u32));
        }
        if caller >= world_size || itself {
            return Some(Status::Unwanted);
        }
        (called != rank).then_some(Status::Misled)
    }
}

/// Why a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The other side does not speak this protocol at all.
    NotPhalanx,
    /// Another version of it.
    Version(u16),
    /// The other side does not know the job's secret.
    WrongSecret,
    /// The peer knows the secret but sent values outside their range.
    Malformed,
    /// The peer encrypts and we don't, or the other way round.
    Encryption {
        /// Whether the other side does.
        theirs: bool,
    },
    /// Both know the secret, but no keys came of it: no randomness, or a broken build.
    NoKeys,
    /// The acceptor said no.
    Status(Status),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPhalanx => f.write_str("it does not speak phalanx"),
            Self::Version(v) => write!(f, "it speaks wire version {v}, this build speaks {VERSION}"),
            Self::WrongSecret => f.write_str("it does not know this job's secret"),
            Self::Malformed => f.write_str("it sent values out of range"),
            Self::Encryption { theirs } => {
                let says = |on| if on { "encrypts" } else { "does not encrypt" };
                let (they, we) = (says(*theirs), says(!theirs));
                write!(f, "it {they} and this process {we}: PHALANX_ENCRYPT must be the same for all ranks")
            }
            Self::NoKeys => f.write_str("no keys for encryption could be agreed on with it"),
            Self::Status(status) => status.fmt(f),
        }
    }
}

impl From<NoKeys> for Refusal {
    fn from(_: NoKeys) -> Self {
        Self::NoKeys
    }
}

type Transcript = Vec<u8>;

fn mac(secret: &Secret, label: &str, transcript: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).expect("HMAC takes keys of any length");
    mac.update(b"phalanx handshake 1 ");
    mac.update(label.as_bytes());
    mac.update(transcript);
    mac
}

/// The pre-shared key of one connection: another for each, and of no use for the proofs.
fn psk(secret: &Secret, transcript: &[u8]) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(mac(secret, "noise", transcript).finalize().into_bytes().into())
}

/// Whether connections of this job for this purpose are sealed. Who could put words into an agent's line could have it start processes: that is
/// sealed in every job.
fn is_sealed(secret: &Secret, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Agent => true,
        Purpose::Memory => false,
        _ => secret.encrypts(),
    }
}

fn opening(purpose: u8, encrypts: bool, nonce: &Nonce) -> [u8; OPENING] {
    let mut bytes = [0; OPENING];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[6] = purpose;
    bytes[7] = u8::from(encrypts);
    bytes[8..].copy_from_slice(nonce);
    bytes
}

fn check_opening(bytes: &[u8], encrypts: bool) -> Result<(), Refusal> {
    if bytes[..4] != MAGIC {
        return Err(Refusal::NotPhalanx);
    }
    match (u16::from_le_bytes([bytes[4], bytes[5]]), bytes[7]) {
        (VERSION, theirs) if theirs == u8::from(encrypts) => Ok(()),
        (VERSION, theirs) => Err(Refusal::Encryption { theirs: theirs != 0 }),
        (other, _) => Err(Refusal::Version(other)),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The calling side.
#[derive(Debug)]
pub struct Dialer {
    secret: Secret,
    hello: Hello,
    transcript: Transcript,
    proved: bool,
    agreement: Option<Agreement>,
    keys: Option<Keys>,
}

/// The dialer's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum DialerStep {
    /// Send these bytes, then read on.
    Send(Vec<u8>),
    /// The other side is genuine and welcomes us.
    Done,
}

impl Dialer {
    /// Begins; the bytes are the first to send.
    pub fn new(secret: Secret, hello: Hello, nonce: Nonce) -> (Self, Vec<u8>) {
        let transcript = opening(hello.purpose as u8, secret.encrypts(), &nonce).to_vec();
        let first = transcript.clone();
        (Self { secret, hello, transcript, proved: false, agreement: None, keys: None }, first)
    }

    /// How many bytes [`handle`](Self::handle) wants next.
    pub fn wants(&self) -> usize {
        match (self.proved, &self.agreement) {
            (false, _) => CHALLENGE,
            (true, None) => VERDICT,
            (true, Some(_)) => VERDICT + keys::MESSAGE,
        }
    }

    /// Takes exactly [`wants`](Self::wants) bytes.
    ///
    /// # Errors
    /// The handshake has failed; close the connection.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<DialerStep, Refusal> {
        assert_eq!(bytes.len(), self.wants(), "the caller reads exactly what is wanted");
        if !self.proved {
            check_opening(bytes, self.secret.encrypts())?;
            self.transcript.extend_from_slice(bytes);
            self.transcript.extend_from_slice(&self.hello.rank.to_le_bytes());
            self.transcript.extend_from_slice(&self.hello.world_size.to_le_bytes());
            self.transcript.extend_from_slice(&self.hello.called.to_le_bytes());
            self.transcript.extend_from_slice(&self.hello.group.0.to_le_bytes());
            if is_sealed(&self.secret, self.hello.purpose) {
                let psk = psk(&self.secret, &self.transcript);
                let (agreement, message) = Agreement::begin(&psk, &self.transcript)?;
                self.agreement = Some(agreement);
                self.transcript.extend_from_slice(&message);
            }
            let mut proof = self.transcript[OPENING + CHALLENGE..].to_vec();
            proof.extend_from_slice(&mac(&self.secret, "dialer", &self.transcript).finalize().into_bytes());
            self.proved = true;
            return Ok(DialerStep::Send(proof));
        }
        let (said, proof) = bytes.split_at(bytes.len() - MAC);
        self.transcript.extend_from_slice(said);
        mac(&self.secret, "acceptor", &self.transcript)
            .verify_slice(proof)
            .map_err(|_| Refusal::WrongSecret)?;
        if let Some(agreement) = self.agreement.take() {
            self.keys = Some(agreement.finish(&said[8..])?);
        }
        match Status::decode(&said[..8]) {
            Some(Status::Welcome) => Ok(DialerStep::Done),
            Some(status) => Err(Refusal::Status(status)),
            None => Err(Refusal::Malformed),
        }
    }

    /// Whether the proof was made: once the acceptor has that, it may take the connection for one that stands.
    pub fn has_proved(&self) -> bool {
        self.proved
    }

    /// The keys of the connection after [`DialerStep::Done`]; none if it is not sealed.
    pub(crate) fn take_keys(&mut self) -> Option<Keys> {
        self.keys.take()
    }
}

/// The called side.
#[derive(Debug)]
pub struct Acceptor {
    secret: Secret,
    nonce: Nonce,
    transcript: Transcript,
    purpose: Option<Purpose>,
    agreed: Option<(Keys, keys::Message)>,
}

/// The acceptor's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum AcceptorStep {
    /// Send these bytes, then read on.
    Send(Vec<u8>),
    /// The caller knows the secret and says who it is: decide, and send the [`verdict`](Acceptor::verdict).
    Proved(Hello),
}

impl Acceptor {
    /// Whether what has come of the first message can't become one: a stranger need not be waited for.
    pub fn is_hopeless(&self, so_far: &[u8]) -> bool {
        let len = so_far.len().min(MAGIC.len());
        self.purpose.is_none() && so_far[..len] != MAGIC[..len]
    }

    /// The wire version that the caller says it speaks, if it is another than ours. It hears of ours, and goes.
    pub fn other_version(&self) -> Option<u16> {
        let said = self.transcript.get(4..6)?;
        Some(u16::from_le_bytes([said[0], said[1]])).filter(|version| *version != VERSION)
    }

    /// Waits for a caller.
    pub fn new(secret: Secret, nonce: Nonce) -> Self {
        Self { secret, nonce, transcript: Vec::new(), purpose: None, agreed: None }
    }

    /// How many bytes [`handle`](Self::handle) wants next.
    pub fn wants(&self) -> usize {
        match self.purpose {
            None => OPENING,
            Some(purpose) if is_sealed(&self.secret, purpose) => PROOF + keys::MESSAGE,
            Some(_) => PROOF,
        }
    }

    /// Takes exactly [`wants`](Self::wants) bytes.
    ///
    /// # Errors
    /// The caller is a stranger; close the connection without a word.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<AcceptorStep, Refusal> {
        assert_eq!(bytes.len(), self.wants(), "the caller reads exactly what is wanted");
        let Some(purpose) = self.purpose else {
            // Who differs in version or encryption gets our own opening as an answer, so that its error can name both.
            if let Err(Refusal::NotPhalanx) = check_opening(bytes, self.secret.encrypts()) {
                return Err(Refusal::NotPhalanx);
            }
            self.purpose = Some(match bytes[6] {
                1 => Purpose::Store,
                2 => Purpose::Control,
                3 => Purpose::Data,
                4 => Purpose::Memory,
                5 => Purpose::Lifeline,
                6 => Purpose::Heartbeat,
                7 => Purpose::Agent,
                _ => return Err(Refusal::Malformed),
            });
            self.transcript.extend_from_slice(bytes);
            let challenge = opening(0, self.secret.encrypts(), &self.nonce);
            self.transcript.extend_from_slice(&challenge);
            return Ok(AcceptorStep::Send(challenge.to_vec()));
        };
        check_opening(&self.transcript, self.secret.encrypts())?;
        let (said, proof) = bytes.split_at(bytes.len() - MAC);
        let (identity, noise) = said.split_at(IDENTITY);
        let agreed_on = self.transcript.len() + IDENTITY;
        self.transcript.extend_from_slice(said);
        let verified = mac(&self.secret, "dialer", &self.transcript).verify_slice(proof);
        if verified.is_err() && !breaks(Mechanism::Handshake) {
            return Err(Refusal::WrongSecret);
        }
        if !noise.is_empty() {
            let prologue = &self.transcript[..agreed_on];
            self.agreed = Some(keys::agree(&psk(&self.secret, prologue), prologue, noise)?);
        }
        let group = u64::from_le_bytes(identity[12..].try_into().expect("eight bytes"));
        Ok(AcceptorStep::Proved(Hello {
            purpose,
            rank: u32_at(identity, 0),
            world_size: u32_at(identity, 4),
            called: u32_at(identity, 8),
            group: GroupId(group),
        }))
    }

    /// The last message, after [`AcceptorStep::Proved`].
    pub fn verdict(&mut self, status: Status) -> Vec<u8> {
        let mut bytes = status.encode().to_vec();
        if let Some((_, message)) = &self.agreed {
            bytes.extend_from_slice(message);
        }
        self.transcript.extend_from_slice(&bytes);
        bytes.extend_from_slice(&mac(&self.secret, "acceptor", &self.transcript).finalize().into_bytes());
        bytes
    }

    /// The keys of the connection after [`AcceptorStep::Proved`]; none if it is not sealed.
    pub(crate) fn take_keys(&mut self) -> Option<Keys> {
        Some(self.agreed.take()?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let group = GroupId(0x0102_0304_0506_0708);
        Hello { purpose: Purpose::Data, rank: 3, called: 5, world_size: 8, group }
    }

    fn secret() -> Secret {
        Secret::from_hex(&"5a".repeat(32)).unwrap()
    }

    /// Runs a handshake; `tamper` may change each message: 0 opening, 1 challenge, 2 proof, 3 verdict.
    fn run(
        ours: &Secret,
        theirs: &Secret,
        mut tamper: impl FnMut(usize, &mut Vec<u8>),
    ) -> (Result<Hello, Refusal>, Result<(), Refusal>) {
        let (mut dialer, mut message) = Dialer::new(ours.clone(), hello(), [1; 32]);
        let mut acceptor = Acceptor::new(theirs.clone(), [2; 32]);
        let closed = Err(Refusal::WrongSecret);
        tamper(0, &mut message);
        let mut message = match acceptor.handle(&message) {
            Ok(AcceptorStep::Send(m)) => m,
            Ok(AcceptorStep::Proved(_)) => unreachable!("nothing is proved by an opening"),
            Err(refusal) => return (Err(refusal), closed),
        };
        tamper(1, &mut message);
        let mut message = match dialer.handle(&message) {
            Ok(DialerStep::Send(m)) => m,
            Ok(DialerStep::Done) => unreachable!("nothing is proved by a challenge"),
            Err(refusal) => return (Err(Refusal::WrongSecret), Err(refusal)),
        };
        tamper(2, &mut message);
        if message.len() != acceptor.wants() {
            // A changed purpose can change what is to be sealed: each end waits for the other until its time is over.
            return (Err(Refusal::WrongSecret), closed);
        }
        let proved = match acceptor.handle(&message) {
            Ok(AcceptorStep::Proved(hello)) => hello,
            Ok(AcceptorStep::Send(_)) => unreachable!("the proof is the last message"),
            Err(refusal) => return (Err(refusal), closed),
        };
        let mut message = acceptor.verdict(Status::Welcome);
        tamper(3, &mut message);
        (Ok(proved), dialer.handle(&message).map(|step| assert_eq!(step, DialerStep::Done)))
    }

    #[test]
    fn both_sides_agree_when_they_share_a_secret() {
        assert_eq!(run(&secret(), &secret(), |_, _| ()), (Ok(hello()), Ok(())));
    }

    #[test]
    fn another_secret_is_refused_before_anything_is_believed() {
        let other = Secret::from_hex(&"a5".repeat(32)).unwrap();
        assert_eq!(run(&other, &secret(), |_, _| ()).0, Err(Refusal::WrongSecret));
    }

    #[test]
    fn every_flipped_bit_of_every_message_is_noticed() {
        let plain = [OPENING, CHALLENGE, PROOF, VERDICT];
        let sealed = [OPENING, CHALLENGE, PROOF + keys::MESSAGE, VERDICT + keys::MESSAGE];
        for (secret, lens) in [(secret(), plain), (secret().encrypting(), sealed)] {
            for (message, len) in lens.into_iter().enumerate() {
                for bit in 0..len * 8 {
                    let (acceptor, dialer) = run(&secret, &secret, |i, bytes| {
                        if i == message {
                            assert_eq!(bytes.len(), len);
                            bytes[bit / 8] ^= 1 << (bit % 8);
                        }
                    });
                    assert!(acceptor.is_err() || dialer.is_err(), "message {message}, bit {bit}");
                    if message < 3 {
                        assert!(acceptor.is_err(), "message {message}, bit {bit}: the acceptor let it in");
                    }
                }
            }
        }
    }

    #[test]
    fn encryption_is_agreed_on_or_nothing_is() {
        let (plain, sealed) = (secret(), secret().encrypting());
        assert_eq!(run(&sealed, &sealed, |_, _| ()), (Ok(hello()), Ok(())));
        for (ours, theirs) in [(&plain, &sealed), (&sealed, &plain)] {
            let refusal = Refusal::Encryption { theirs: theirs.encrypts() };
            assert_eq!(run(ours, theirs, |_, _| ()).1, Err(refusal.clone()));
            assert!(refusal.to_string().contains("PHALANX_ENCRYPT must be the same"), "{refusal}");
            // Somebody on the way who tells each side what it wants to hear.
            let flag = |i, bytes: &mut Vec<u8>| {
                if i < 2 {
                    bytes[7] ^= 1;
                }
            };
            let (mut dialer, mut opening) = Dialer::new(ours.clone(), hello(), [1; 32]);
            let mut acceptor = Acceptor::new(theirs.clone(), [2; 32]);
            flag(0, &mut opening);
            let Ok(AcceptorStep::Send(mut challenge)) = acceptor.handle(&opening) else {
                panic!("challenge")
            };
            flag(1, &mut challenge);
            let Ok(DialerStep::Send(mut proof)) = dialer.handle(&challenge) else { panic!("proof") };
            proof.resize(acceptor.wants(), 0);
            assert_eq!(acceptor.handle(&proof), Err(Refusal::WrongSecret));
        }
    }

    #[test]
    fn memory_passed_inside_a_host_is_not_sealed_and_the_line_of_an_agent_always_is() {
        let (clear, encrypts) = (secret(), secret().encrypting());
        for (secret, purpose, is_sealed) in [
            (&encrypts, Purpose::Data, true),
            (&encrypts, Purpose::Control, true),
            (&encrypts, Purpose::Memory, false),
            (&encrypts, Purpose::Agent, true),
            (&clear, Purpose::Data, false),
            (&clear, Purpose::Agent, true),
        ] {
            let secret = secret.clone();
            let hello = Hello { purpose, ..hello() };
            let (mut dialer, opening) = Dialer::new(secret.clone(), hello, [1; 32]);
            let mut acceptor = Acceptor::new(secret, [2; 32]);
            let Ok(AcceptorStep::Send(challenge)) = acceptor.handle(&opening) else { panic!("challenge") };
            let Ok(DialerStep::Send(proof)) = dialer.handle(&challenge) else { panic!("proof") };
            assert_eq!(acceptor.handle(&proof), Ok(AcceptorStep::Proved(hello)));
            assert_eq!(dialer.handle(&acceptor.verdict(Status::Welcome)), Ok(DialerStep::Done));
            assert_eq!(
                (dialer.take_keys().is_some(), acceptor.take_keys().is_some()),
                (is_sealed, is_sealed)
            );
        }
    }

    #[test]
    fn only_who_was_called_has_nothing_to_object() {
        let objects = |hello: Hello| [3, 5, 6].map(|rank| hello.objection(rank, 8));
        let (misled, unwanted) = (Some(Status::Misled), Some(Status::Unwanted));
        assert_eq!(objects(hello()), [unwanted, None, misled], "itself, the one, another");
        assert_eq!(objects(Hello { world_size: 9, ..hello() }), [Some(Status::OtherSize(8)); 3]);
        assert_eq!(objects(Hello { rank: 8, ..hello() }), [unwanted; 3]);
        let control = Hello { purpose: Purpose::Control, rank: 5, ..hello() };
        assert_eq!(objects(control), [misled, None, misled], "rank 5 has the arbiter");
    }

    #[test]
    fn a_reflected_or_replayed_proof_is_refused() {
        for secret in [secret(), secret().encrypting()] {
            reflect_and_replay(&secret);
        }
    }

    fn reflect_and_replay(secret: &Secret) {
        // Replay: a recorded proof against a fresh challenge.
        let (mut dialer, first) = Dialer::new(secret.clone(), hello(), [1; 32]);
        let mut old = Acceptor::new(secret.clone(), [2; 32]);
        let Ok(AcceptorStep::Send(challenge)) = old.handle(&first) else { panic!("challenge expected") };
        let Ok(DialerStep::Send(proof)) = dialer.handle(&challenge) else { panic!("proof expected") };
        let mut fresh = Acceptor::new(secret.clone(), [3; 32]);
        fresh.handle(&first).unwrap();
        assert_eq!(fresh.handle(&proof), Err(Refusal::WrongSecret));
        // Reflection: the dialer's own MAC (and Noise) as the acceptor's verdict.
        let mut verdict = vec![0; 8];
        verdict.extend_from_slice(&proof[IDENTITY..]);
        assert_eq!(dialer.handle(&verdict), Err(Refusal::WrongSecret));
    }

    #[test]
    fn strangers_and_other_versions_are_named() {
        let mut acceptor = Acceptor::new(secret(), [2; 32]);
        let http = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n.....";
        assert!(
            acceptor.is_hopeless(&http[..1]) && !acceptor.is_hopeless(b"PH") && !acceptor.is_hopeless(b"")
        );
        assert_eq!(acceptor.handle(&http[..OPENING]), Err(Refusal::NotPhalanx));
        let (_, dialer) = run(&secret(), &secret(), |i, bytes| {
            if i == 1 {
                bytes[4] = 9;
            }
        });
        assert_eq!(dialer, Err(Refusal::Version(9)));
    }

    #[test]
    fn the_status_reaches_the_dialer() {
        let (mut dialer, first) = Dialer::new(secret(), hello(), [1; 32]);
        let mut acceptor = Acceptor::new(secret(), [2; 32]);
        let Ok(AcceptorStep::Send(challenge)) = acceptor.handle(&first) else { panic!("challenge expected") };
        let Ok(DialerStep::Send(proof)) = dialer.handle(&challenge) else { panic!("proof expected") };
        acceptor.handle(&proof).unwrap();
        let status = Status::OtherSize(7);
        assert_eq!(dialer.handle(&acceptor.verdict(status)), Err(Refusal::Status(status)));
    }
}
