//! The job's secret: who knows it belongs to the job.

use hmac::{Hmac, Mac};
use phalanx_core::{Error, Result};
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// 32 random bytes that the launcher makes for one job and every rank of it knows; and whether those who know it encrypt.
///
/// It never travels: both ends of a socket prove that they know it (see [`handshake`](crate::handshake)). Its
/// `Debug` output hides it, there is no `Display`, and its memory is overwritten when the last clone goes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    bytes: Arc<Zeroizing<[u8; Self::LEN]>>,
    encrypts: bool,
    refuses_clear: bool,
}

impl Secret {
    /// Bytes in a secret.
    pub const LEN: usize = 32;

    /// A fresh secret from the operating system's random source.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system has no randomness to give.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::Secret;
    ///
    /// assert_ne!(Secret::generate()?, Secret::generate()?);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn generate() -> Result<Self> {
        Ok(Self::clear(Zeroizing::new(random()?)))
    }

    fn clear(bytes: Zeroizing<[u8; Self::LEN]>) -> Self {
        Self { bytes: Arc::new(bytes), encrypts: false, refuses_clear: false }
    }

    /// Makes it the secret of a job that encrypts all it says over the network. A process whose secret encrypts and one whose secret
    /// does not refuse each other.
    ///
    /// # Examples
    /// ```
    /// let secret = phalanx_transport::Secret::generate()?;
    /// assert!(!secret.encrypts());
    /// assert!(secret.encrypting().encrypts());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[must_use]
    pub fn encrypting(self) -> Self {
        Self { encrypts: true, ..self }
    }

    /// Whether what is said over the network is encrypted.
    ///
    /// # Examples
    /// ```
    /// let secret = phalanx_transport::Secret::generate()?.encrypting();
    /// if secret.encrypts() {
    ///     let key = secret.key_for("my links"); // of which whoever makes links makes use
    ///     # assert_eq!(key.len(), 64);
    /// }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn encrypts(&self) -> bool {
        self.encrypts
    }

    /// As [`encrypting`](Self::encrypting), for a process that won't have it that others send for it in the clear, as a library with connections
    /// of its own may.
    ///
    /// # Examples
    /// ```
    /// let secret = phalanx_transport::Secret::generate()?.refusing_clear();
    /// assert!(secret.encrypts() && secret.refuses_clear());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[must_use]
    pub fn refusing_clear(self) -> Self {
        Self { encrypts: true, refuses_clear: true, ..self }
    }

    /// Whether what can't be encrypted is to be refused.
    ///
    /// # Examples
    /// ```
    /// let secret = phalanx_transport::Secret::generate()?;
    /// assert!(!secret.refuses_clear());
    /// assert!(!secret.encrypting().refuses_clear());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn refuses_clear(&self) -> bool {
        self.refuses_clear
    }

    /// A key for a library with connections of its own, as 64 hexadecimal digits. Of `purpose` and this secret, which can't be found from it.
    ///
    /// # Examples
    /// ```
    /// let secret = phalanx_transport::Secret::generate()?;
    /// let key = secret.key_for("my links");
    /// assert_eq!(key, secret.clone().key_for("my links")); // on each rank
    /// assert_ne!(key, secret.key_for("other links"));
    /// assert_ne!(key, secret.to_hex());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn key_for(&self, purpose: &str) -> String {
        self.derived(b"phalanx key ", purpose.as_bytes()).to_hex()
    }

    /// The same key as [`key_for`](Self::key_for) has in digits, as bytes.
    ///
    /// # Examples
    /// ```
    /// let secret = phalanx_transport::Secret::generate()?;
    /// let key: [u8; 32] = secret.key_bytes_for("my links");
    /// let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    /// assert_eq!(digits, secret.key_for("my links"));
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn key_bytes_for(&self, purpose: &str) -> [u8; Self::LEN] {
        **self.derived(b"phalanx key ", purpose.as_bytes()).bytes
    }

    /// The secret of one generation of the job, made of this one. Who is left of another generation does not know it, so no line or link
    /// joins two of them: their ranks have the same numbers, and may by and by have the same addresses.
    #[must_use]
    #[doc(hidden)]
    pub fn of_generation(&self, generation: u64) -> Self {
        self.derived(b"phalanx generation ", &generation.to_le_bytes())
    }

    /// The secret of one start of the job, made of this one. A process that was told of another start, which has ended and left its address
    /// in the store, does not know it: whoever answers at that address by now is not taken for its rank 0.
    #[must_use]
    #[doc(hidden)]
    pub fn of_start(&self, start: u64) -> Self {
        self.derived(b"phalanx start ", &start.to_le_bytes())
    }

    fn derived(&self, label: &[u8], which: &[u8]) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.bytes()).expect("HMAC takes keys of any length");
        mac.update(label);
        mac.update(which);
        let bytes = Zeroizing::new(mac.finalize().into_bytes().into());
        Self { bytes: Arc::new(bytes), ..*self }
    }

    /// Reads 64 hexadecimal digits; surrounding white space is ignored.
    ///
    /// # Errors
    /// [`Error::Config`] for anything else. The message does not repeat the text.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::Secret;
    ///
    /// let secret = Secret::from_hex(&"0f".repeat(32))?;
    /// assert_eq!(secret.to_hex(), "0f".repeat(32));
    /// let error = Secret::from_hex("swordfish").unwrap_err().to_string();
    /// assert!(error.contains("64 hexadecimal digits") && !error.contains("swordfish"), "{error}");
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_hex(text: &str) -> Result<Self> {
        let text = text.trim();
        let bad = || {
            Error::config(format!(
                "the job secret must be {} hexadecimal digits (make one with: openssl rand -hex {}); got {} characters",
                2 * Self::LEN,
                Self::LEN,
                text.len()
            ))
        };
        if text.len() != 2 * Self::LEN || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = Zeroizing::new([0; Self::LEN]);
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self::clear(bytes))
    }

    /// 64 hexadecimal digits, for the environment of a rank. Treat them like a password.
    ///
    /// # Examples
    /// ```
    /// use phalanx_transport::Secret;
    ///
    /// let secret = Secret::generate()?;
    /// assert_eq!(Secret::from_hex(&secret.to_hex())?, secret);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn to_hex(&self) -> String {
        self.bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// Random bytes for secrets and nonces.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Unavailable {
        what: "a source of randomness".into(),
        tried: format!("the operating system's ({error})"),
    })?;
    Ok(bytes)
}

/// 64 bits that nobody could have foreseen: they tell one process, or one start of a job, from all others.
///
/// # Errors
/// [`Error::Unavailable`] if the system has no randomness to give.
pub fn random_number() -> Result<u64> {
    random().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trip_and_hidden_debug() {
        let secret = Secret::generate().unwrap();
        let hex = secret.to_hex();
        assert_eq!(Secret::from_hex(&format!(" {hex}\n")).unwrap(), secret);
        assert_ne!(Secret::generate().unwrap(), secret);
        assert!(!format!("{secret:?}").contains(&hex[..8]));
    }

    #[test]
    fn generations_have_secrets_of_their_own() {
        let secret = Secret::generate().unwrap().encrypting();
        let of = |generation| secret.of_generation(generation);
        assert!(of(1) == of(1) && of(1).encrypts());
        assert!(of(0) != secret && of(0) != of(1) && of(1) != of(2));
        let of_start = |start| secret.of_start(start);
        assert!(of_start(1) == of_start(1) && of_start(1).encrypts());
        assert!(of_start(1) != of(1) && of_start(1) != of_start(2));
        assert!(!of(1).refuses_clear() && secret.refusing_clear().of_generation(1).refuses_clear());
    }

    #[test]
    fn libraries_have_keys_of_their_own() {
        let secret = Secret::generate().unwrap();
        let key = secret.key_for("nccl");
        assert_eq!(key, secret.clone().encrypting().key_for("nccl"));
        assert!(key.len() == 64 && key != secret.to_hex() && key != secret.key_for("other"));
        assert_ne!(key, Secret::generate().unwrap().key_for("nccl"));
    }

    #[test]
    fn refuses_what_is_not_a_secret_without_repeating_it() {
        for text in ["", "abc", &"g".repeat(64), &"ä".repeat(32), &"+1".repeat(32)[..63]] {
            let error = Secret::from_hex(text).unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
        assert!(Secret::from_hex(&"+1".repeat(32)).is_err(), "signs are not digits");
    }
}
