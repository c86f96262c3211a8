//! Where a training is kept.

use std::path::PathBuf;

/// Where to keep what a training needs to go on after it was stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct Saving {
    /// Save checkpoints in this folder, and go on from the last one that is there, with any number of ranks.
    #[arg(long, value_name = "DIR", conflicts_with = "elastic")]
    pub(crate) checkpoint: Option<PathBuf>,

    /// Steps from one checkpoint to the next; the last two are kept.
    #[arg(long, value_name = "STEPS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) checkpoint_every: u64,
}
