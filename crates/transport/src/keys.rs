//! The keys of one sealed connection, as Noise agrees on them.
//!
//! `NNpsk0`: both ends make a key pair for this connection and forget it afterwards, so a secret that leaks later opens no
//! recording. The pre-shared key comes from the job's secret; who they are and what for, both ends' nonces included, is
//! bound in as the prologue. The two messages travel in the third and fourth of the [handshake](crate::handshake).

use crate::key_exchange::Resolver;
use snow::{Builder, HandshakeState, StatelessTransportState};
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Bytes of either message: a public key and a tag.
pub(crate) const MESSAGE: usize = 48;
/// Records under one key: at most 64 GiB or 2³² blocks, far from where AES-GCM wears out. Then both ends go on to the next key.
const RECORDS_PER_KEY: u64 = if cfg!(test) { 16 } else { 1 << 20 };

pub(crate) type Message = [u8; MESSAGE];

/// Nothing came of an agreement: no randomness, or a broken build.
#[derive(Debug)]
pub(crate) struct NoKeys;

/// The dialer's half of an agreement that waits for the acceptor's.
pub(crate) struct Agreement(Box<HandshakeState>);

impl Agreement {
    pub(crate) fn begin(psk: &[u8; 32], prologue: &[u8]) -> Result<(Self, Message), NoKeys> {
        let begin = || {
            let mut noise = builder(psk, prologue)?.build_initiator()?;
            let mut message = [0; MESSAGE];
            noise.write_message(&[], &mut message)?;
            Ok((Self(Box::new(noise)), message))
        };
        begin().map_err(no_keys)
    }

    pub(crate) fn finish(mut self, answer: &[u8]) -> Result<Keys, NoKeys> {
        let finish = || {
            self.0.read_message(answer, &mut [])?;
            Keys::new(*self.0)
        };
        finish().map_err(no_keys)
    }
}

/// The acceptor's half.
pub(crate) fn agree(psk: &[u8; 32], prologue: &[u8], first: &[u8]) -> Result<(Keys, Message), NoKeys> {
    let agree = || {
        let mut noise = builder(psk, prologue)?.build_responder()?;
        noise.read_message(first, &mut [])?;
        let mut message = [0; MESSAGE];
        noise.write_message(&[], &mut message)?;
        Ok((Keys::new(noise)?, message))
    };
    agree().map_err(no_keys)
}

fn builder<'a>(psk: &'a [u8; 32], prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    Builder::with_resolver(PATTERN.parse()?, Box::new(Resolver)).psk(0, psk)?.prologue(prologue)
}

fn no_keys(error: snow::Error) -> NoKeys {
    // Says what went wrong with what it was given, and nothing of that.
    tracing::debug!(%error, "no keys were agreed on");
    NoKeys
}

/// The keys of a connection, one for each direction. Clones are the same keys: a nonce is for one record of one of them.
#[derive(Clone)]
pub(crate) struct Keys(Arc<Mutex<StatelessTransportState>>);

impl Keys {
    fn new(noise: HandshakeState) -> Result<Self, snow::Error> {
        Ok(Self(Arc::new(Mutex::new(noise.into_stateless_transport_mode()?))))
    }

    /// Encrypts record `nonce` of this end: each once, in order. `out` has 16 bytes more than `plain`.
    pub(crate) fn seal(&self, nonce: u64, plain: &[u8], out: &mut [u8]) -> io::Result<()> {
        let mut noise = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ends_a_key(nonce) {
            noise.rekey_outgoing();
        }
        noise.write_message(nonce, plain, out).map(drop).map_err(io::Error::other)
    }

    /// Decrypts record `nonce` of the other end: each once, in order. `out` is as long as `record` at least.
    pub(crate) fn open(&self, nonce: u64, record: &[u8], out: &mut [u8]) -> io::Result<usize> {
        let mut noise = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ends_a_key(nonce) {
            noise.rekey_incoming();
        }
        noise.read_message(nonce, record, out).map_err(|_| not_authentic())
    }
}

/// The error of a record that does not open.
pub(crate) fn not_authentic() -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        "its data did not authenticate: it was changed, repeated or left out on the way",
    )
}

/// Whether record `nonce` is the first under a new key.
fn ends_a_key(nonce: u64) -> bool {
    nonce > 0 && nonce.is_multiple_of(RECORDS_PER_KEY)
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(hidden)")
    }
}

impl fmt::Debug for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Agreement(hidden)")
    }
}
