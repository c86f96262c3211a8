//! The error of this crate: what went wrong with a checkpoint, and what a person reading the log needs.

use crate::TensorInfo;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the group, of the file system, or of what is in a checkpoint.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The group could not do it; see [`phalanx::Error`] for whose trouble it is and whether the group is usable.
    #[error(transparent)]
    Group(#[from] phalanx::Error),
    /// The file system could not do it.
    #[error("{doing}: {source}")]
    Io {
        /// The attempt that failed, with its path.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// Rank 0, which keeps the folder in order, could not do it. Every rank gets this same error, and the group is fine.
    #[error("rank 0: {what}")]
    Refused {
        /// The attempt that failed, with its path and the system's error.
        what: String,
    },
    /// The states that the ranks gave do not fit together. Every rank gets this same error, nothing was written, and the group is fine.
    #[error("step {step} was not saved: {what}")]
    State {
        /// The step that was to be saved.
        step: u64,
        /// How they do not fit together.
        what: String,
    },
    /// Some ranks could not write their part. Every rank gets this same error; older checkpoints are as they were, and the
    /// group is fine.
    #[error("step {step} was not saved: {}", by_rank(causes))]
    NotSaved {
        /// The step that was to be saved.
        step: u64,
        /// Which ranks could not, and why.
        causes: Vec<(usize, String)>,
    },
    /// Files of a checkpoint are missing, torn, or not what was written. Every rank gets this same error, and the group is fine.
    #[error("checkpoint {} is damaged: {}", path.display(), findings.join("; "))]
    Damaged {
        /// The checkpoint's folder.
        path: PathBuf,
        /// One sentence for each file: what was expected, and what was found.
        findings: Vec<String>,
    },
    /// Files of a checkpoint are there, and some rank can't read them: it has no permission, or the disk fails. They may be as good as ever, so no older
    /// checkpoint takes the place of this one. Every rank gets this same error, and the group is fine.
    #[error("checkpoint {} can't be read, which does not mean that it is damaged: {}", path.display(), by_rank(causes))]
    Unreadable {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Which ranks can't read which file, and what the system said.
        causes: Vec<(usize, String)>,
    },
    /// A checkpoint is of a format that this version of the library does not know: a newer one has written it. No older checkpoint takes its place.
    /// Every rank gets this same error, and the group is fine.
    #[error(
        "checkpoint {} is of format {found}, and this program reads formats 1 to {known}: build it with the version of phalanx that has written \
         the checkpoint, or a newer one",
        path.display()
    )]
    OtherFormat {
        /// The checkpoint's folder.
        path: PathBuf,
        /// The format of the checkpoint.
        found: u32,
        /// The newest that this program knows.
        known: u32,
    },
    /// Another job saves into this folder. Every rank gets this same error; nothing was written, and the group is fine.
    #[error(
        "step {step} was not saved: folder {} is in use by {holder}; give each job a folder of its own, or end that one",
        folder.display()
    )]
    FolderTaken {
        /// The step that was to be saved.
        step: u64,
        /// The folder of all checkpoints.
        folder: PathBuf,
        /// Job, process, host, and since when: as far as it is known.
        holder: String,
    },
    /// Every checkpoint of the folder is damaged. To begin from scratch, give a new folder. Every rank gets this same error, and
    /// the group is fine.
    #[error("no checkpoint in {} is whole; {}", folder.display(), damaged.join("; "))]
    NoneGood {
        /// The folder of all checkpoints.
        folder: PathBuf,
        /// The damage of each, newest first.
        damaged: Vec<String>,
    },
    /// The checkpoint does not have what it was asked for.
    #[error("{what} is not in checkpoint {}", path.display())]
    Missing {
        /// Which tensor or value.
        what: String,
        /// The checkpoint's folder.
        path: PathBuf,
    },
    /// The checkpoint has a tensor of this name, but of another type or shape.
    #[error("tensor `{name}` is {found} in the checkpoint, and was expected to be {expected}")]
    OtherTensor {
        /// Its name.
        name: String,
        /// The program's type and shape.
        expected: TensorInfo,
        /// The checkpoint's type and shape.
        found: TensorInfo,
    },
    /// A value could not be made JSON, or what the checkpoint has of this name is not of the type that was asked for.
    #[error("value `{name}`: {what}")]
    Value {
        /// Its name.
        name: String,
        /// The error of serde.
        what: String,
    },
    /// Two tensors would have the same name: see [`Checkpoint::renamed`](crate::Checkpoint::renamed).
    #[error("two tensors would be called `{name}`; give each saved name one of its own")]
    SameName {
        /// That name.
        name: String,
    },
    /// The library that holds the tensors could not do it.
    #[error(transparent)]
    Tensors(#[from] Box<dyn std::error::Error + Send + Sync>),
}

/// The same words as `Display`: what `fn main() -> phalanx_checkpoint::Result<()>` and `unwrap` print is what a person wants to read.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

fn by_rank(causes: &[(usize, String)]) -> String {
    causes.iter().map(|(rank, cause)| format!("rank {rank}: {cause}")).collect::<Vec<_>>().join("; ")
}
