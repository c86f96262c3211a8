//! How gradients are sent.

use crate::MissingGradients;
use phalanx::{ProcessGroup, ReduceOp, Result};

/// How gradients are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DdpConfig {
    /// Most bytes of gradients that are laid together and sent as one operation; a larger one is sent alone. The first such
    /// bucket, and the last, have 1 MiB at most. Default: 4 MiB, large enough for the bandwidth of a fast network, and small enough
    /// for several of them to be on their way during the backward pass of a model of some size.
    pub bucket_cap_bytes: usize,
    /// Whether gradients are sent while the backward pass still runs. Default: [`Overlap::Auto`].
    pub overlap: Overlap,
    /// Whether each step ends with a broadcast of rank 0's buffers, as of [`sync_buffers`](crate::sync_buffers), by whoever knows the model: a
    /// [`Reducer`](crate::Reducer) has gradients only. Default: no.
    pub broadcast_buffers: bool,
    /// What a step does about parameters for which no rank has a gradient. Default: [`MissingGradients::Warn`].
    pub missing_gradients: MissingGradients,
}

/// Whether gradients are sent while the backward pass still runs. The bits of the result are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Off where the job has one host with no core to spare, on elsewhere. Ranks that share memory and fill the cores with their
    /// work only take time from each other: sending then is work of the cores, too.
    #[default]
    Auto,
    /// Gradients are sent as soon as they are ready.
    On,
    /// Gradients are sent after the backward pass.
    Off,
}

impl DdpConfig {
    /// Sends at most `bytes` of gradients as one operation.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DdpConfig;
    ///
    /// assert_eq!(DdpConfig::default().bucket_cap_bytes, 4 << 20);
    /// assert_eq!(DdpConfig::default().bucket_cap_bytes(25 << 20).bucket_cap_bytes, 25 << 20);
    /// ```
    #[must_use]
    pub fn bucket_cap_bytes(self, bytes: usize) -> Self {
        Self { bucket_cap_bytes: bytes, ..self }
    }

    /// Sends gradients during the backward pass, or after it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{DdpConfig, Overlap};
    ///
    /// assert_eq!(DdpConfig::default().overlap, Overlap::Auto);
    /// assert_eq!(DdpConfig::default().overlap(Overlap::Off).overlap, Overlap::Off);
    /// ```
    #[must_use]
    pub fn overlap(self, overlap: Overlap) -> Self {
        Self { overlap, ..self }
    }

    /// Broadcasts rank 0's buffers at the end of each step.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::DdpConfig;
    ///
    /// assert!(!DdpConfig::default().broadcast_buffers);
    /// assert!(DdpConfig::default().broadcast_buffers(true).broadcast_buffers);
    /// ```
    #[must_use]
    pub fn broadcast_buffers(self, broadcast: bool) -> Self {
        Self { broadcast_buffers: broadcast, ..self }
    }

    /// Warns of parameters for which no rank has a gradient, refuses them, or allows them.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{DdpConfig, MissingGradients};
    ///
    /// let config = DdpConfig::default().missing_gradients(MissingGradients::Error);
    /// assert_eq!(config.missing_gradients, MissingGradients::Error);
    /// ```
    #[must_use]
    pub fn missing_gradients(self, choice: MissingGradients) -> Self {
        Self { missing_gradients: choice, ..self }
    }
}

impl Default for DdpConfig {
    fn default() -> Self {
        Self {
            bucket_cap_bytes: 4 << 20,
            overlap: Overlap::Auto,
            broadcast_buffers: false,
            missing_gradients: MissingGradients::Warn,
        }
    }
}

impl Overlap {
    /// The choice for `group`. Collective: all ranks choose alike, and overlap if one of them wants to.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce).
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::Overlap;
    ///
    /// let choices = phalanx::on_threads(2, |group| {
    ///     let wanted = [Overlap::Off, Overlap::On][group.rank()];
    ///     wanted.choose(&group)
    /// })?;
    /// assert_eq!(choices, [true, true]); // one of them wants to
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn choose(self, group: &ProcessGroup) -> Result<bool> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = match self {
            Self::Auto => group.backend_name() != "shm" || group.local_world_size() < cores,
            Self::On => true,
            Self::Off => false,
        };
        let mut wanted = [u8::from(wanted && group.world_size() > 1)];
        group.all_reduce(&mut wanted, ReduceOp::Max)?;
        Ok(wanted[0] != 0)
    }
}
