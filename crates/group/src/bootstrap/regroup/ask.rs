//! Requests to the job's store, as values: a state machine asks, and whoever drives it performs that.

use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::Store;
use std::time::{Duration, Instant};

/// A request to the job's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Answered by `Value`, at once.
    TryGet(String),
    /// Answered by `Value`: as soon as there is one, and without one after so long.
    Get(String, Duration),
    /// Answered by `Done`.
    Set(String, Vec<u8>),
    /// Sets the key to the last if its value is the second. Answered by `Changed`.
    CompareSet(String, Option<Vec<u8>>, Vec<u8>),
}

/// What the store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Value(Option<Vec<u8>>),
    Changed(bool),
    Done,
}

impl Ask {
    /// Asks `store`, and waits for the answer.
    ///
    /// # Errors
    /// Those of the store; that nobody has set a key is none.
    pub(crate) fn perform(&self, store: &(impl Store + ?Sized)) -> Result<Answer> {
        Ok(match self {
            Self::TryGet(key) => Answer::Value(store.try_get(key)?),
            Self::Get(key, limit) => match store.get(key, &Deadline::after(Instant::now(), *limit)) {
                Ok(value) => Answer::Value(Some(value)),
                Err(Error::Rendezvous { .. }) => Answer::Value(None),
                Err(error) => return Err(error),
            },
            Self::Set(key, value) => store.set(key, value).map(|()| Answer::Done)?,
            Self::CompareSet(key, expected, new) => {
                Answer::Changed(store.compare_set(key, expected.as_deref(), new)?)
            }
        })
    }
}

impl Answer {
    /// The value of a key that was asked for.
    ///
    /// # Errors
    /// [`Error::Internal`]: another question was answered.
    pub(crate) fn value(self) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Value(value) => Ok(value),
            other => {
                Err(Error::Internal { what: format!("a key was asked for, and the answer is {other:?}") })
            }
        }
    }
}
