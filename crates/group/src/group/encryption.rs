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
    ///
    /// # Examples
    /// ```
    /// /// How a library connects in a job that may encrypt.
    /// fn scheme(group: &phalanx_group::ProcessGroup) -> &'static str {
    ///     match group.encryption() {
    ///         Some(encryption) if encryption.is_required() => "sealed, or not at all",
    ///         Some(_) => "sealed where possible",
    ///         None => "clear",
    ///     }
    /// }
    /// # assert_eq!(scheme(&phalanx_group::threads(1)[0]), "clear");
    /// ```
    pub fn is_required(&self) -> bool {
        self.secret.refuses_clear()
    }

    /// 64 hexadecimal digits that the processes of the job have in common for `purpose`, as long as it lasts, and nobody else. Treat them like a password.
    ///
    /// # Examples
    /// ```
    /// /// The key of a library's own connections, the same on all ranks.
    /// fn key(group: &phalanx_group::ProcessGroup) -> Option<String> {
    ///     group.encryption().map(|encryption| encryption.key_for("my library's connections"))
    /// }
    /// # assert_eq!(key(&phalanx_group::threads(1)[0]), None);
    /// ```
    pub fn key_for(&self, purpose: &str) -> String {
        self.secret.key_for(purpose)
    }
}
