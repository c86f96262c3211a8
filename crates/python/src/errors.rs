//! phalanx's errors as Python's exceptions: the classes of `phalanx.errors`, one for each variant.

use phalanx::Error;
use phalanx::error::{Cause, Context, Peer};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception of `error`.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    raised(py, error).unwrap_or_else(|broken| broken)
}

fn raised(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = py.import("phalanx.errors")?.getattr(class(error))?;
    let fields = PyDict::new(py);
    fill(error, &fields)?;
    Ok(PyErr::from_value(class.call((error.to_string(),), Some(&fields))?))
}

/// An error of training: the models, or the shares, of the ranks do not fit together.
pub(crate) fn training(py: Python<'_>, words: &str) -> PyErr {
    let made =
        py.import("phalanx.errors").and_then(|errors| errors.getattr("TrainingError")?.call1((words,)));
    made.map_or_else(|broken| broken, PyErr::from_value)
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Misuse { .. } => "MisuseError",
        Error::Unsupported { .. } => "UnsupportedError",
        Error::NoMessage { .. } => "NoMessageError",
        Error::PeerLost { .. } => "PeerLostError",
        Error::Timeout { .. } => "TimeoutError",
        Error::Deadlock { .. } => "DeadlockError",
        Error::Mismatch { .. } => "MismatchError",
        Error::Protocol { .. } => "ProtocolError",
        Error::Aborted { .. } => "AbortedError",
        Error::Poisoned { .. } => "PoisonedError",
        Error::Rendezvous { .. } => "RendezvousError",
        Error::WrongSum { .. } => "WrongSumError",
        Error::Config { .. } => "ConfigError",
        Error::Unavailable { .. } => "UnavailableError",
        Error::Library { .. } => "LibraryError",
        Error::Io { .. } => "IoError",
        Error::Object { .. } => "ObjectError",
        _ => "InternalError",
    }
}

/// What a program may want to know, beside the words.
fn fill(error: &Error, fields: &Bound<'_, PyDict>) -> PyResult<()> {
    let context = |at: &Context| {
        fields.set_item("op", at.op.name())?;
        fields.set_item("rank", at.rank)?;
        fields.set_item("site", at.site.as_ref().map(ToString::to_string))
    };
    let peer = |peer: &Peer| {
        fields.set_item("peer", peer.rank)?;
        fields.set_item("host", &*peer.host)
    };
    let ranks = |peers: &[Peer]| peers.iter().map(|peer| peer.rank).collect::<Vec<_>>();
    match error {
        Error::Misuse { op, .. } | Error::Unsupported { op, .. } | Error::Object { op, .. } => {
            fields.set_item("op", op.name())
        }
        Error::NoMessage { from, at, .. } => {
            fields.set_item("peers", ranks(from))?;
            context(at)
        }
        Error::PeerLost { peer: lost, how, at } => {
            peer(lost)?;
            fields.set_item("how", how.to_string())?;
            context(at)
        }
        Error::Timeout { missing, at, .. } => {
            fields.set_item("missing", ranks(missing))?;
            context(at)
        }
        Error::Deadlock { at, .. } => context(at),
        Error::Mismatch { left, right, at, .. } => {
            fields.set_item("peers", [left.0.rank, right.0.rank])?;
            fields.set_item("sites", [left.1.site.to_string(), right.1.site.to_string()])?;
            context(at)
        }
        Error::Protocol { peer: culprit, at, .. } => {
            peer(culprit)?;
            context(at)
        }
        Error::Aborted { peer: who, reason, at } => {
            peer(who)?;
            fields.set_item("reason", reason)?;
            context(at)
        }
        Error::Poisoned { op, cause } => {
            fields.set_item("op", op.name())?;
            match &**cause {
                Cause::Lost { peer: culprit, .. }
                | Cause::Protocol { peer: culprit, .. }
                | Cause::Aborted { peer: culprit, .. } => peer(culprit),
                Cause::TimedOut { missing, .. } => fields.set_item("missing", ranks(missing)),
                _ => Ok(()),
            }
        }
        Error::Rendezvous { rank, .. } | Error::WrongSum { rank, .. } => fields.set_item("rank", *rank),
        _ => Ok(()),
    }
}
