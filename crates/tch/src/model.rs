//! Models that are equal on all ranks.

use crate::Result;
use crate::variables::{named, variables};
use phalanx::ProcessGroup;
use phalanx::error::OpKind;
use tch::nn::VarStore;

/// Gives all ranks the variables of rank `root`, bit for bit, in place: layers that were built with them see it.
///
/// Collective. Names, types and shapes are compared first, so models that differ are told apart by name instead of being mixed up.
///
/// # Cost
/// Three small messages a rank, then one broadcast a variable.
///
/// # Errors
/// [`Error::ModelMismatch`](crate::Error::ModelMismatch) on every rank when some rank has built another model; nothing was changed.
/// [`phalanx::Error::Unsupported`] for variables that are not on the CPU, or of a type that cannot be sent.
///
/// # Examples
/// ```
/// use tch::{Device, nn};
///
/// let equal = phalanx::on_threads(2, |group| {
///     let store = nn::VarStore::new(Device::Cpu);
///     let layer = nn::linear(store.root(), 3, 2, Default::default()); // at random: different on each rank
///     phalanx_tch::sync_model(&store, &group, 1).unwrap();
///     Ok(f64::try_from(layer.ws.sum(None)).unwrap())
/// })?;
/// assert_eq!(equal[0], equal[1]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn sync_model(store: &VarStore, group: &ProcessGroup, root: usize) -> Result<()> {
    let all = variables(store);
    let mut all = named(&all, OpKind::Broadcast)?;
    phalanx_train::sync_model(all.iter_mut().map(|(name, tensor)| (*name, tensor)), group, root)
}

/// Makes sure that all ranks hold the same variables: names, types, shapes, and every bit of the values.
///
/// Collective. Running statistics, as of batch normalisation, differ unless [`sync_model`] or
/// [`sync_buffers`](crate::DistributedDataParallel::sync_buffers) has made them equal.
///
/// # Cost
/// One pass over the variables, and one all_gather of 8 bytes a rank. Only where something differs, one object more a rank.
///
/// # Errors
/// [`Error::ParameterMismatch`](crate::Error::ParameterMismatch) on every rank, with who holds which version of the first variable, by name, that
/// differs; the group is fine.
///
/// # Examples
/// ```
/// use phalanx_tch::{Error, verify_parameters};
/// use tch::{Device, nn};
///
/// let errors = phalanx::on_threads(2, |group| {
///     let store = nn::VarStore::new(Device::Cpu);
///     store.root().var("x", &[2], nn::Init::Const(group.rank() as f64));
///     Ok(verify_parameters(&store, &group).unwrap_err())
/// })?;
/// assert!(errors.iter().all(|error| matches!(error, Error::ParameterMismatch { name, .. } if name == "x")));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn verify_parameters(store: &VarStore, group: &ProcessGroup) -> Result<()> {
    let all = variables(store);
    let all = named(&all, OpKind::AllGather)?;
    phalanx_train::verify_parameters(all.iter().map(|(name, tensor)| (*name, tensor)), group)
}
