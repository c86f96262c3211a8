//! Models that are equal on all ranks.

use crate::Result;
use crate::names::{Named, Role, parameters, settle, with_ids, with_values};
use burn_core::module::Module;
use phalanx::ProcessGroup;
use phalanx::error::OpKind;

/// Gives all ranks the parameters of rank `root`, bit for bit: floats and integers, of any backend.
///
/// Collective. Names, types and shapes are compared first, so models that differ are told apart by name instead of being mixed up. Names are
/// paths: `layers.0.weight`. Parameters have the numbers of rank `root`'s afterwards, too, by which burn's optimizers know them: so do this before the first
/// step of an optimizer.
///
/// # Cost
/// Three small messages a rank, then one broadcast a parameter.
///
/// # Errors
/// [`Error::ModelMismatch`](crate::Error::ModelMismatch) on every rank when some rank has built another model; nothing was changed.
/// [`phalanx::Error::Unsupported`] for elements that cannot be sent.
///
/// # Examples
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
/// let mut model: Linear = LinearConfig::new(2, 3).init(&Device::default()); // at random: different on each rank
/// phalanx_burn::sync_model(&mut model, group, 1)?;
/// phalanx_burn::verify_parameters(&model, group)
/// # }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[track_caller]
pub fn sync_model<M: Module>(model: &mut M, group: &ProcessGroup, root: usize) -> Result<()> {
    settle(model);
    let mut found = parameters(model, OpKind::Broadcast)?;
    let all = found.iter_mut().map(|Named { name, values, .. }| (name.as_str(), values));
    phalanx_train::sync_model(all, group, root)?;
    let ids = (group.rank() == root).then(|| found.iter().map(|parameter| parameter.id).collect());
    let ids = group.broadcast_object::<Vec<u64>>(ids, root)?;
    let values = found.into_iter().map(|Named { values, .. }| Some(values)).collect();
    *model = with_ids(with_values(model.clone(), values)?, ids);
    Ok(())
}

/// Makes sure that all ranks hold the same parameters: names, types, shapes, and every bit of the values.
///
/// Collective. Running statistics, as of batch normalisation, differ unless [`sync_model`] or
/// [`sync_buffers`](crate::DistributedDataParallel::sync_buffers) has made them equal.
///
/// # Cost
/// One pass over the parameters, on the host, and one all_gather of 8 bytes a rank. Only where something differs, one object more a rank.
///
/// # Errors
/// [`Error::ParameterMismatch`](crate::Error::ParameterMismatch) on every rank, with who holds which version of the first parameter, by name, that
/// differs; the group is fine.
///
/// # Examples
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
/// use phalanx_burn::{Error, verify_parameters};
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
/// let model: Linear = LinearConfig::new(2, 3).init(&Device::default()); // at random
/// let error = verify_parameters(&model, group).unwrap_err(); // on both
/// assert!(matches!(error, Error::ParameterMismatch { name, .. } if name == "bias"));
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[track_caller]
pub fn verify_parameters(model: &impl Module, group: &ProcessGroup) -> Result<()> {
    settle(model);
    let found = parameters(model, OpKind::AllGather)?;
    phalanx_train::verify_parameters(
        found.iter().map(|Named { name, values, .. }| (name.as_str(), values)),
        group,
    )
}

/// Gives all ranks the buffers of rank `root`, in one operation.
#[track_caller]
pub(crate) fn sync_buffers<M: Module>(model: &M, group: &ProcessGroup, root: usize) -> Result<()> {
    settle(model);
    let mut found = parameters(model, OpKind::Broadcast)?;
    let buffers = found.iter_mut().filter(|parameter| parameter.role == Role::Still);
    phalanx_train::sync_buffers(buffers.map(|Named { values, .. }| values), group, root)?;
    let values = found.into_iter().map(|Named { values, role, .. }| (role == Role::Still).then_some(values));
    // Running statistics are shared by all clones of a module: they are set in this one. What else is set here, what is frozen, is equal already.
    with_values(model.clone(), values.collect()).map(drop)
}
