//! The same model everywhere: parameters by name, compared and then copied.

use crate::element::{bytes_mut, require_cpu};
use crate::{Error, Result, broadcast};
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use phalanx::{OpKind, ProcessGroup};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::sync::PoisonError;

/// A named variable.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) var: Var,
}

/// The variables of `varmap` in name order: candle keeps them in a hash map, whose order differs in each process.
pub(crate) fn parameters(varmap: &VarMap) -> Vec<Parameter> {
    let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<_> =
        data.iter().map(|(name, var)| Parameter { name: name.clone(), var: var.clone() }).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Copies the variables of rank `root` to all ranks, bit for bit.
///
/// Collective. Names, types and shapes are compared first, so models that differ are told apart by name instead of
/// being mixed up.
///
/// # Cost
/// Two small messages a rank for the comparison, then one broadcast a variable.
///
/// # Errors
/// [`Error::ModelMismatch`] on every rank when some rank has built another model; nothing was changed.
/// [`phalanx::Error::Unsupported`] for variables that are not on the CPU or of a type that cannot be sent.
#[track_caller]
pub fn sync_model(varmap: &VarMap, group: &ProcessGroup, root: usize) -> Result<()> {
    let parameters = parameters(varmap);
    for Parameter { var, .. } in &parameters {
        require_cpu(group, OpKind::Broadcast, var.device())?;
    }
    compare(parameters.iter().map(|p| entry(&p.name, &p.var)).collect(), group, root)?;
    for Parameter { var, .. } in &parameters {
        broadcast(group, var, root)?;
    }
    tracing::debug!(parameters = parameters.len(), root, "model synchronised");
    Ok(())
}

/// Whether the forward pass changes the variable of this name, as candle's batch normalisation does its running statistics.
pub(crate) fn is_buffer(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("running_mean" | "running_var"))
}

/// Copies the buffers of rank `root` to all ranks, in one operation.
#[track_caller]
pub(crate) fn sync_buffers(varmap: &VarMap, group: &ProcessGroup, root: usize) -> Result<()> {
    let mut parameters = parameters(varmap);
    parameters.retain(|p| is_buffer(&p.name));
    for Parameter { var, .. } in &parameters {
        require_cpu(group, OpKind::Broadcast, var.device())?;
    }
    let mut all = Vec::new();
    for Parameter { var, .. } in &parameters {
        bytes_mut(var, |bytes| all.extend_from_slice(bytes))?;
    }
    group.broadcast(&mut all, root)?;
    let mut rest = &all[..];
    for Parameter { var, .. } in &parameters {
        bytes_mut(var, |bytes| {
            let (mine, behind) = rest.split_at(bytes.len());
            bytes.copy_from_slice(mine);
            rest = behind;
        })?;
    }
    Ok(())
}

/// One line of a model's table of contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Type and shape, as text: `f32 [10, 128]`.
    kind: String,
}

pub(crate) fn entry(name: &str, tensor: &Tensor) -> Entry {
    Entry { name: name.to_owned(), kind: format!("{} {:?}", tensor.dtype().as_str(), tensor.dims()) }
}

/// Where two models differ first, in name order, and what each has there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Difference {
    name: String,
    expected: String,
    found: String,
}

/// Makes sure that all ranks have the model of `root`, or that all know which does not. `mine` is sorted by name.
#[track_caller]
pub(crate) fn compare(mine: Vec<Entry>, group: &ProcessGroup, root: usize) -> Result<()> {
    let theirs = group.broadcast_object((group.rank() == root).then(|| mine.clone()), root)?;
    let verdicts = group.all_gather_object(&first_difference(&theirs, &mine))?;
    match verdicts.into_iter().enumerate().find_map(|(rank, verdict)| Some((rank, verdict?))) {
        None => Ok(()),
        Some((rank, Difference { name, expected, found })) => {
            Err(Error::ModelMismatch { name, root, expected, rank, found })
        }
    }
}

/// Compares two lists that are sorted by name.
fn first_difference(expected: &[Entry], found: &[Entry]) -> Option<Difference> {
    let at = (0..expected.len().max(found.len())).find(|&i| expected.get(i) != found.get(i))?;
    let (expected, found) = (expected.get(at), found.get(at));
    // Of two different names the lesser is the one that the other side does not have at all.
    let order = match (expected, found) {
        (Some(e), Some(f)) => e.name.cmp(&f.name),
        (Some(_), None) => Ordering::Less,
        (None, _) => Ordering::Greater,
    };
    let name = if order.is_le() { expected } else { found }?.name.clone();
    let kind = |entry: Option<&Entry>, here: bool| match entry {
        Some(entry) if here => entry.kind.clone(),
        _ => "none".to_owned(),
    };
    Some(Difference { name, expected: kind(expected, order.is_le()), found: kind(found, order.is_ge()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(entries: &[(&str, &str)]) -> Vec<Entry> {
        entries.iter().map(|&(name, kind)| Entry { name: name.into(), kind: kind.into() }).collect()
    }

    #[test]
    fn the_first_difference_is_the_lesser_name() {
        let root = model(&[("a", "f32 [1]"), ("c", "f32 [2]")]);
        let told = |other: &[(&str, &str)]| {
            first_difference(&root, &model(other)).map(|d| (d.name, d.expected, d.found))
        };
        let answer =
            |name: &str, expected: &str, found: &str| Some((name.into(), expected.into(), found.into()));
        assert_eq!(told(&[("a", "f32 [1]"), ("c", "f32 [2]")]), None);
        assert_eq!(told(&[("a", "f32 [1]"), ("c", "f64 [2]")]), answer("c", "f32 [2]", "f64 [2]"));
        assert_eq!(told(&[("a", "f32 [1]"), ("b", "u8 []"), ("c", "f32 [2]")]), answer("b", "none", "u8 []"));
        assert_eq!(told(&[("a", "f32 [1]"), ("d", "u8 []")]), answer("c", "f32 [2]", "none"));
        assert_eq!(told(&[("a", "f32 [1]")]), answer("c", "f32 [2]", "none"));
        assert_eq!(told(&[("a", "f32 [1]"), ("c", "f32 [2]"), ("d", "u8 []")]), answer("d", "none", "u8 []"));
    }
}
