//! What is dealt out, and how it is sent.

use crate::{MissingGradients, Overlap};

/// The part of training of which each rank keeps one slice only: the stages of ZeRO (Rajbhandari et al., 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The optimizer's state: ZeRO-1.
    #[doc(alias = "ZeRO-1")]
    Optimizer,
    /// The gradients, too: they are reduced as soon as they are complete, and only a part of each is kept. ZeRO-2.
    #[doc(alias = "ZeRO-2")]
    Gradients,
    /// The weights, too: those of a unit, such as a layer, are whole only while it works. ZeRO-3, or FSDP.
    #[doc(alias = "ZeRO-3")]
    #[doc(alias = "FSDP")]
    Weights,
}

/// What is dealt out, and how it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardConfig {
    /// The stage: what is dealt out. Default: [`Stage::Gradients`].
    pub stage: Stage,
    /// Most bytes of weights that are laid together and sent as one operation; a larger one is sent alone. The weights of a
    /// unit are always sent together. Default: 4 MiB.
    pub bucket_cap_bytes: usize,
    /// Whether weights and gradients are sent while the library computes: the next unit's weights during this one's work, gradients during the
    /// backward pass. Default: [`Overlap::Auto`]. The bits of the result are the same.
    pub overlap: Overlap,
    /// What a step does about weights for which no rank has a gradient. Default: [`MissingGradients::Warn`].
    pub missing_gradients: MissingGradients,
}

impl ShardConfig {
    /// Deals this out.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{ShardConfig, Stage};
    ///
    /// assert_eq!(ShardConfig::default().stage, Stage::Gradients);
    /// assert_eq!(ShardConfig::default().stage(Stage::Weights).stage, Stage::Weights);
    /// ```
    #[must_use]
    pub fn stage(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }

    /// Sends at most `bytes` of weights as one operation.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::ShardConfig;
    ///
    /// assert_eq!(ShardConfig::default().bucket_cap_bytes(25 << 20).bucket_cap_bytes, 25 << 20);
    /// ```
    #[must_use]
    pub fn bucket_cap_bytes(self, bytes: usize) -> Self {
        Self { bucket_cap_bytes: bytes, ..self }
    }

    /// Sends while the library computes, or in between.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Overlap, ShardConfig};
    ///
    /// assert_eq!(ShardConfig::default().overlap(Overlap::Off).overlap, Overlap::Off);
    /// ```
    #[must_use]
    pub fn overlap(self, overlap: Overlap) -> Self {
        Self { overlap, ..self }
    }

    /// Warns of weights for which no rank has a gradient, refuses them, or allows them.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{MissingGradients, ShardConfig};
    ///
    /// let config = ShardConfig::default().missing_gradients(MissingGradients::Error);
    /// assert_eq!(config.missing_gradients, MissingGradients::Error);
    /// ```
    #[must_use]
    pub fn missing_gradients(self, choice: MissingGradients) -> Self {
        Self { missing_gradients: choice, ..self }
    }
}

impl Default for ShardConfig {
    fn default() -> Self {
        Self {
            stage: Stage::Gradients,
            bucket_cap_bytes: 4 << 20,
            overlap: Overlap::Auto,
            missing_gradients: MissingGradients::Warn,
        }
    }
}
