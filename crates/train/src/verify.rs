//! Whether all ranks hold the same weights, and if not, who holds which.

use crate::{Error, Result, Tensor, Version};
use phalanx::ProcessGroup;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use twox_hash::XxHash3_64;

/// Makes sure that all ranks hold the same tensors under the same names: types, shapes, and every bit of the values.
///
/// Collective. What the forward pass itself changes, such as the running means of batch normalisation, differs unless
/// [`sync_model`](crate::sync_model) or [`sync_buffers`](crate::sync_buffers) has made it equal.
///
/// # Cost
/// One pass over the tensors (XXH3, about as fast as memory is read) and one all_gather of 8 bytes a rank. Only where
/// something differs, one object more a rank, of a line for each tensor.
///
/// # Errors
/// [`Error::ParameterMismatch`] on every rank, with who holds which version of the first parameter, by name, that differs;
/// the group is fine. Those of the library, before anything is sent, and of [`all_gather`](ProcessGroup::all_gather).
///
/// # Examples
/// ```
/// use phalanx_train::{Array, Error, verify_parameters};
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
/// let weight = Array::from(vec![1f32, 2.0]);
/// verify_parameters([("weight", &weight)], group)?;
///
/// let astray = Array::from(vec![1f32, group.rank() as f32]);
/// let error = verify_parameters([("weight", &astray)], group).unwrap_err();
/// assert!(matches!(error, Error::ParameterMismatch { name, .. } if name == "weight")); // on both
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[track_caller]
pub fn verify_parameters<'m, T: Tensor>(
    model: impl IntoIterator<Item = (&'m str, &'m T)>,
    group: &ProcessGroup,
) -> Result<()> {
    let mut mine = Vec::new();
    for (name, tensor) in model {
        let hash = tensor.read(XxHash3_64::oneshot)?;
        let kind = format!("{} {:?}", tensor.dtype(), tensor.dims());
        mine.push(Entry { name: name.to_owned(), kind, hash });
    }
    mine.sort_by(|a, b| a.name.cmp(&b.name));
    let mut digests = vec![0u64; group.world_size()];
    group.all_gather(&[digest(&mine)], &mut digests)?;
    // All ranks see the same digests, so all go on or none.
    if digests.iter().all(|digest| *digest == digests[0]) {
        tracing::debug!(parameters = mine.len(), digest = digests[0], "all ranks hold the same parameters");
        return Ok(());
    }
    match first_difference(&group.all_gather_object(&mine)?) {
        Some((name, versions)) => Err(Error::ParameterMismatch { name, versions }),
        None => Ok(()),
    }
}

/// One parameter on one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    name: String,
    kind: String,
    hash: u64,
}

/// The whole model in 64 bits. Lengths go first, so that no two models make the same text.
fn digest(entries: &[Entry]) -> u64 {
    let mut text = Vec::new();
    for Entry { name, kind, hash } in entries {
        for part in [name.as_bytes(), kind.as_bytes(), &hash.to_le_bytes()] {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part);
        }
    }
    XxHash3_64::oneshot(&text)
}

/// The first name of which not all ranks hold the same, and who holds what.
fn first_difference(ranks: &[Vec<Entry>]) -> Option<(String, Vec<Version>)> {
    let tables: Vec<BTreeMap<&str, &Entry>> = ranks
        .iter()
        .map(|entries| entries.iter().map(|entry| (entry.name.as_str(), entry)).collect())
        .collect();
    let names: BTreeSet<&str> = tables.iter().flat_map(|table| table.keys().copied()).collect();
    names.into_iter().find_map(|name| {
        let mut versions: Vec<Version> = Vec::new();
        for (rank, table) in tables.iter().enumerate() {
            let (kind, hash) = table.get(name).map_or((None, 0), |entry| (Some(&entry.kind), entry.hash));
            match versions.iter_mut().find(|v| v.kind.as_ref() == kind && v.hash == hash) {
                Some(version) => version.ranks.push(rank),
                None => versions.push(Version { kind: kind.cloned(), hash, ranks: vec![rank] }),
            }
        }
        (versions.len() > 1).then(|| (name.to_owned(), versions))
    })
}
