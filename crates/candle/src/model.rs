//! The variables of a model, by name.

use crate::sendable::Candle;
use crate::{Group, Result, broadcast};
use candle_core::Var;
use candle_nn::VarMap;
use phalanx::ProcessGroup;
use phalanx::error::OpKind;
use phalanx_train::Tensor;
use phalanx_train::model::{Entry, compare};
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

/// The parameters that an optimizer changes: those that `Sharded` deals out, too, so that an optimizer of the one loads what the other's has saved.
pub(crate) fn weights(varmap: &VarMap) -> Vec<Parameter> {
    let mut weights = parameters(varmap);
    weights.retain(|p| p.var.dtype().is_float() && !is_buffer(&p.name));
    weights
}

/// As what can be sent, with an error of `op` for what can't.
fn sendable(
    parameters: Vec<Parameter>,
    group: &impl Group,
    op: OpKind,
) -> phalanx::Result<Vec<(String, Candle)>> {
    parameters.into_iter().map(|p| Ok((p.name, Candle::new(group, op, &p.var)?))).collect()
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
/// [`Error::ModelMismatch`](crate::Error::ModelMismatch) on every rank when some rank has built another model; nothing was changed.
/// [`phalanx::Error::Unsupported`] for variables that the group does not reach or of a type that cannot be sent.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device};
/// # use candle_nn::VarMap;
/// use phalanx_candle::sync_model;
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
/// let varmap = VarMap::new();
/// let ranks = candle_nn::Init::Const(group.rank() as f64);
/// let bias = varmap.get(2, "bias", ranks, DType::F32, &Device::Cpu)?; // different on each rank
/// sync_model(&varmap, group, 1)?;
/// assert_eq!(bias.to_vec1::<f32>()?, [1.0, 1.0]);
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[track_caller]
pub fn sync_model(varmap: &VarMap, group: &impl Group, root: usize) -> Result<()> {
    let model = sendable(parameters(varmap), group, OpKind::Broadcast)?;
    let entries = model.iter().map(|(name, var)| Entry::new(name, var.dtype(), var.dims()));
    compare(entries.collect(), group.host(), root)?;
    for (_, var) in &model {
        broadcast(group, var.tensor(), root)?;
    }
    tracing::debug!(parameters = model.len(), root, "model synchronised");
    Ok(())
}

/// Whether the forward pass changes the variable of this name, as candle's batch normalisation does its running statistics.
pub(crate) fn is_buffer(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("running_mean" | "running_var"))
}

/// Copies the buffers of rank `root` to all ranks, in one operation on the host: those on a device are copied there and back.
#[track_caller]
pub(crate) fn sync_buffers(varmap: &VarMap, group: &ProcessGroup, root: usize) -> Result<()> {
    let mut parameters = parameters(varmap);
    parameters.retain(|p| is_buffer(&p.name));
    let mut buffers = Candle::all_local(parameters.iter().map(|p| &p.var))?;
    Ok(phalanx_train::sync_buffers(&mut buffers, group, root)?)
}

/// Makes sure that all ranks hold the same parameters in `varmap`: names, types, shapes, and every bit of the values.
///
/// Collective. What the forward pass itself changes, such as the running means of batch normalisation, is among the
/// parameters of a `VarMap` too, and differs unless [`sync_model`](crate::sync_model) has made it equal.
///
/// # Cost
/// One pass over the parameters (XXH3, about as fast as memory is read) and one all_gather of 8 bytes a rank. Only where
/// something differs, one object more a rank, of a line for each parameter. Parameters on a GPU are copied to the host for it.
///
/// # Errors
/// [`Error::ParameterMismatch`](crate::Error::ParameterMismatch) on every rank, with who holds which version of the first parameter, by
/// name, that differs; the group is fine. [`phalanx::Error::Unsupported`] for variables that the group does not reach or of a type that cannot be
/// sent; nothing was sent. Those of [`all_gather`](ProcessGroup::all_gather).
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device};
/// # use candle_nn::VarMap;
/// use phalanx_candle::{Error, verify_parameters};
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
/// # let varmap = VarMap::new();
/// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
/// verify_parameters(&varmap, group)?;
/// if group.rank() == 1 {
///     varmap.all_vars()[0].set(&x.zeros_like()?)?; // a bug, or a flipped bit
/// }
/// let error = verify_parameters(&varmap, group).unwrap_err(); // on both
/// assert!(matches!(error, Error::ParameterMismatch { name, .. } if name == "x"));
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[track_caller]
pub fn verify_parameters(varmap: &VarMap, group: &impl Group) -> Result<()> {
    let model = sendable(parameters(varmap), group, OpKind::AllGather)?;
    let model = model.iter().map(|(name, var)| (name.as_str(), var));
    Ok(phalanx_train::verify_parameters(model, group.host())?)
}
