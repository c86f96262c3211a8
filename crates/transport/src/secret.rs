//! The job's secret: who knows it belongs to the job.

use phalanx_core::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// 32 random bytes that the launcher makes for one job and every rank of it knows.
///
/// It never travels: both ends of a socket prove that they know it (see [`handshake`](crate::handshake)). Its
/// `Debug` output hides it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8; Self::LEN]>);

impl Secret {
    /// Bytes in a secret.
    pub const LEN: usize = 32;

    /// A fresh secret from the operating system's random source.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system has no randomness to give.
    pub fn generate() -> Result<Self> {
        Ok(Self(Arc::new(random()?)))
    }

    /// Reads 64 hexadecimal digits; surrounding white space is ignored.
    ///
    /// # Errors
    /// [`Error::Config`] for anything else. The message does not repeat the text.
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
        let mut bytes = [0; Self::LEN];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self(Arc::new(bytes)))
    }

    /// 64 hexadecimal digits, for the environment of a rank. Treat them like a password.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    pub(crate) fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
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
    fn refuses_what_is_not_a_secret_without_repeating_it() {
        for text in ["", "abc", &"g".repeat(64), &"ä".repeat(32), &"+1".repeat(32)[..63]] {
            let error = Secret::from_hex(text).unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
        assert!(Secret::from_hex(&"+1".repeat(32)).is_err(), "signs are not digits");
    }
}
