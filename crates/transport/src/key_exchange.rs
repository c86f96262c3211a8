//! The cryptography under [`keys`](crate::keys): all of it is ring's.
//!
//! snow has ring's cipher and hash, and for the exchange of keys its own choice of crates, which insists on ciphers and hashes in Rust
//! besides. ring has X25519 too, so nothing of that is built.

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use std::sync::{Mutex, PoisonError};

const LEN: usize = 32;

/// ring's random numbers, cipher and hash, as snow takes them, and its X25519.
pub(crate) struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        RingResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::<Ephemeral>::default()),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// A key pair for one exchange. The pattern NN has no others: its keys are made for one connection, and each is used once. The private
/// key never leaves ring.
#[derive(Default)]
struct Ephemeral {
    private: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; LEN],
}

impl Dh for Ephemeral {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        LEN
    }

    fn priv_len(&self) -> usize {
        LEN
    }

    fn set(&mut self, _: &[u8]) {
        unreachable!("the pattern NN has no keys that are kept")
    }

    fn generate(&mut self, _: &mut dyn Random) -> Result<(), Error> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(|_| Error::Rng)?;
        let public = private.compute_public_key().map_err(|_| Error::Dh)?;
        self.public.copy_from_slice(public.as_ref());
        self.private = Mutex::new(Some(private));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        unreachable!("the pattern NN has no keys that are kept")
    }

    /// Refuses a point of small order, with which the result would be the same for every key.
    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let private = self.private.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(Error::Dh)?;
        let theirs = theirs.get(..LEN).ok_or(Error::Dh)?;
        agree_ephemeral(private, &UnparsedPublicKey::new(&X25519, theirs), |shared| {
            out[..LEN].copy_from_slice(shared);
        })
        .map_err(|_| Error::Dh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated() -> Box<dyn Dh> {
        let mut key = Resolver.resolve_dh(&DHChoice::Curve25519).unwrap();
        key.generate(&mut *Resolver.resolve_rng().unwrap()).unwrap();
        key
    }

    #[test]
    fn both_ends_come_to_the_same_and_nobody_else_does() {
        let (here, there, stranger) = (generated(), generated(), generated());
        let publics = [&here, &there, &stranger].map(|key| key.pubkey().to_vec());
        let [mut a, mut b, mut c] = [[0; LEN]; 3];
        here.dh(&publics[1], &mut a).unwrap();
        there.dh(&publics[0], &mut b).unwrap();
        stranger.dh(&publics[0], &mut c).unwrap();
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert_ne!(a, [0; LEN]);
    }

    #[test]
    fn a_key_is_used_once() {
        let (here, there) = (generated(), generated());
        here.dh(there.pubkey(), &mut [0; LEN]).unwrap();
        assert!(here.dh(there.pubkey(), &mut [0; LEN]).is_err());
    }

    #[test]
    fn a_point_of_small_order_is_refused() {
        for point in [[0; LEN], std::array::from_fn(|i| u8::from(i == 0))] {
            assert!(generated().dh(&point, &mut [0; LEN]).is_err());
        }
    }
}
