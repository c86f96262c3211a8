//! Making models equal on all ranks: tensors are compared by name, and then copied.

use crate::{Error, Result, Tensor, element};
use phalanx::ProcessGroup;
use phalanx::backend::copy_slice;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// Copies the tensors of rank `root` to all ranks, bit for bit, in place.
///
/// Collective. Names, types and shapes are compared first, so models that differ are told apart by name instead of
/// being mixed up. The order in which a rank passes them does not matter.
///
/// # Cost
/// Two small messages a rank for the comparison, then one broadcast a tensor.
///
/// # Errors
/// [`Error::ModelMismatch`] on every rank when some rank has built another model; nothing was changed. Those of the library, and of
/// [`broadcast`](ProcessGroup::broadcast).
///
/// # Examples
/// ```
/// use phalanx_train::{Array, sync_model};
///
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || -> phalanx_train::Result<()> {
/// let mut weight = Array::from(vec![group.rank() as f32; 3]);
/// sync_model([("layer.weight", &mut weight)], &group, 1)?;
/// assert_eq!(weight, Array::from(vec![1f32; 3]));
/// # Ok(()) }); });
/// ```
#[track_caller]
pub fn sync_model<'m, T: Tensor>(
    model: impl IntoIterator<Item = (&'m str, &'m mut T)>,
    group: &ProcessGroup,
    root: usize,
) -> Result<()> {
    // Closures pass no call site on.
    let group = &group.with_call_site(group.site());
    let mut model: Vec<_> = model.into_iter().collect();
    model.sort_by_key(|(name, _)| *name);
    let entries = model.iter().map(|(name, tensor)| Entry::new(*name, tensor.dtype(), tensor.dims()));
    compare(entries.collect(), group, root)?;
    let tensors = model.len();
    for (_, tensor) in model {
        let dtype = tensor.dtype();
        tensor.write(|bytes| element::broadcast(group, dtype, bytes, root))??;
    }
    tracing::debug!(tensors, root, "model synchronised");
    Ok(())
}

/// Copies tensors of rank `root` to all ranks, in one operation: buffers, which are what the forward pass itself changes. Collective; all ranks
/// pass the same ones in the same order.
///
/// # Errors
/// Those of the library, and of [`broadcast`](ProcessGroup::broadcast).
///
/// # Examples
/// ```
/// use phalanx_train::{Array, sync_buffers};
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
/// let mut mean = Array::from(vec![group.rank() as f32; 3]); // of this rank's samples
/// sync_buffers([&mut mean], group, 1)?;
/// assert_eq!(mean, Array::from(vec![1f32; 3]));
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[track_caller]
pub fn sync_buffers<'m, T: Tensor>(
    buffers: impl IntoIterator<Item = &'m mut T>,
    group: &ProcessGroup,
    root: usize,
) -> Result<()> {
    let mut buffers: Vec<_> = buffers.into_iter().collect();
    let mut all = Vec::new();
    for buffer in &buffers {
        buffer.read(|bytes| all.extend_from_slice(bytes))?;
    }
    group.broadcast(&mut all, root)?;
    let mut rest = &all[..];
    for buffer in &mut buffers {
        buffer.write(|bytes| {
            let (mine, behind) = rest.split_at(bytes.len());
            copy_slice(bytes, mine);
            rest = behind;
        })?;
    }
    Ok(())
}

/// One line of a model's table of contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    name: String,
    /// Type and shape, as text: `f32 [10, 128]`.
    kind: String,
}

impl Entry {
    /// The entry of a tensor of this type and shape.
    pub fn new(name: impl Into<String>, dtype: impl fmt::Display, dims: &[usize]) -> Self {
        Self { name: name.into(), kind: format!("{dtype} {dims:?}") }
    }
}

/// The first entry, in name order, in which two models differ, and what each has there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Difference {
    name: String,
    expected: String,
    found: String,
}

/// Makes sure that all ranks have the model of `root`, or that all know which does not. Collective.
///
/// # Errors
/// As of [`sync_model`].
#[track_caller]
pub fn compare(mut mine: Vec<Entry>, group: &ProcessGroup, root: usize) -> Result<()> {
    mine.sort_by(|a, b| a.name.cmp(&b.name));
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
