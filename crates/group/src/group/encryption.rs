//! What a job that encrypts asks of libraries with connections of their own.

use phalanx_transport::Secret;

/// That the job encrypts all that it says over the network (`PHALANX_ENCRYPT`). What a library sends for its ranks, over connections that are not the job's,
/// is to be encrypted as well, with a [key](Self::key_for) of its own.
#[derive(Debug, Clone)]
pub struct Encryption {
    secret: Secret,
}

impl Encryption {
    pub(crate) fn of(secret: &Secret) -> Option<Self> {
        secret.encrypts().then(|| Self { secret: secret.clone() })
    }

    /// Whether this process refuses what can't be encrypted, as `PHALANX_ENCRYPT=require` says; else it is warned.
    pub fn is_required(&self) -> bool {
        self.secret.refuses_clear()
    }

    /// 64 hexadecimal digits that the processes of the job have in common for `purpose`, as long as it lasts, and nobody else. Treat them like a password.
    pub fn key_for(&self, purpose: &str) -> String {
        self.secret.key_for(purpose)
    }
}
