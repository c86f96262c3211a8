//! A part of the model that is averaged at one time: what all ranks agree on, and the step that brings it on.

use super::DiLoCoConfig;
use crate::Result;
use crate::element::{bytes_mut, on_host};
use crate::model::Parameter;
use candle_core::{DType, Device, Tensor};
use std::collections::BTreeMap;

/// Variables that are averaged together.
#[derive(Debug)]
pub(super) struct Fragment {
    pub(super) members: Vec<Member>,
    /// The step after which they were last sent.
    pub(super) sent_at: u64,
}

/// A variable, which is this rank's own, and what all ranks hold alike.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) parameter: Parameter,
    /// The outer weights.
    pub(super) anchor: Tensor,
    /// The momentum of the outer step.
    pub(super) momentum: Tensor,
}

impl Fragment {
    /// Around the variables as they are now, with numbers of type `dtype`.
    pub(super) fn new(parameters: Vec<Parameter>, dtype: DType) -> Result<Self> {
        let member = |parameter: Parameter| {
            // A copy: the variable changes in its own memory.
            let anchor = parameter.var.as_detached_tensor().to_dtype(dtype)?.copy()?;
            let momentum = anchor.zeros_like()?;
            Ok(Member { parameter, anchor, momentum })
        };
        Ok(Self { members: parameters.into_iter().map(member).collect::<Result<_>>()?, sent_at: 0 })
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = |member: &Member| member.anchor.elem_count() * member.anchor.dtype().size_in_bytes();
        self.members.iter().map(bytes).sum()
    }

    pub(super) fn shapes(&self) -> Vec<Vec<usize>> {
        self.members.iter().map(|member| member.anchor.dims().to_vec()).collect()
    }

    /// The outer weights minus the rank's own: one tensor a member.
    pub(super) fn pseudo_gradients(&self) -> Result<Vec<Tensor>> {
        self.members.iter().map(|member| Ok((&member.anchor - member.local()?)?)).collect()
    }

    /// Lays tensors like the members end to end.
    pub(super) fn pack(tensors: &[Tensor], place: &mut [u8]) -> Result<()> {
        let mut rest = place;
        for tensor in tensors {
            bytes_mut(&on_host(tensor)?, |bytes| {
                let (place, behind) = std::mem::take(&mut rest).split_at_mut(bytes.len());
                place.copy_from_slice(bytes);
                rest = behind;
            })?;
        }
        Ok(())
    }

    /// Tensors like the members, of what lies end to end.
    pub(super) fn unpack(&self, mut rest: &[u8]) -> Result<Vec<Tensor>> {
        let tensor = |member: &Member| {
            let tensor = Tensor::zeros(member.anchor.shape(), member.anchor.dtype(), &Device::Cpu)?;
            bytes_mut(&tensor, |bytes| {
                let (place, behind) = rest.split_at(bytes.len());
                bytes.copy_from_slice(place);
                rest = behind;
            })?;
            Ok(tensor.to_device(member.anchor.device())?)
        };
        self.members.iter().map(tensor).collect()
    }

    /// The outer step, by the mean of all ranks' pseudo-gradients: gradient descent with Nesterov momentum, as PyTorch's SGD does it.
    pub(super) fn step(&mut self, means: &[Tensor], config: &DiLoCoConfig) -> Result<()> {
        for (member, mean) in self.members.iter_mut().zip(means) {
            member.momentum = ((&member.momentum * config.outer_momentum)? + mean)?;
            let change = ((&member.momentum * config.outer_momentum)? + mean)?;
            member.anchor = (&member.anchor - (change * config.outer_learning_rate)?)?;
        }
        Ok(())
    }

    /// Leaves so much of the rank's own weights, and makes the rest the outer ones.
    pub(super) fn adopt(&self, mix: f64) -> Result<()> {
        for member in &self.members {
            // Not by the formula, which would leave the sign of the rank's own on a zero.
            let weights = if mix == 0.0 {
                member.anchor.clone()
            } else {
                ((member.local()? * mix)? + (&member.anchor * (1.0 - mix))?)?
            };
            let var = &member.parameter.var;
            var.set(&weights.to_dtype(var.dtype())?)?;
        }
        Ok(())
    }
}

impl Member {
    /// The rank's own weights.
    fn local(&self) -> Result<Tensor> {
        Ok(self.parameter.var.as_detached_tensor().to_dtype(self.anchor.dtype())?)
    }
}

/// Deals parameters out to `fragments`, layer by layer: those whose names differ after the last dot alone stay together. The largest layer goes
/// first, each to the lightest fragment, so that fragments weigh about the same; and layers of one size, as those of a
/// transformer, are dealt by turns, as the paper has it. `None` if there are fewer layers than fragments.
pub(super) fn deal(parameters: Vec<Parameter>, fragments: usize) -> Option<Vec<Vec<Parameter>>> {
    let mut layers: BTreeMap<String, Vec<Parameter>> = BTreeMap::new();
    for parameter in parameters {
        let layer = parameter.name.rsplit_once('.').map_or(&*parameter.name, |(layer, _)| layer).to_owned();
        layers.entry(layer).or_default().push(parameter);
    }
    let weight = |layer: &[Parameter]| layer.iter().map(|p| p.var.elem_count()).sum::<usize>();
    let mut layers: Vec<_> = layers.into_values().collect();
    layers.sort_by_key(|layer| std::cmp::Reverse(weight(layer)));
    let mut dealt: Vec<Vec<Parameter>> = (0..fragments).map(|_| Vec::new()).collect();
    for layer in layers {
        dealt.iter_mut().min_by_key(|fragment| weight(fragment))?.extend(layer);
    }
    dealt.iter().all(|fragment| !fragment.is_empty()).then_some(dealt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Var;

    fn dealt(names: &[(&str, usize)], fragments: usize) -> Option<Vec<Vec<String>>> {
        let parameter = |&(name, elements): &(&str, usize)| Parameter {
            name: name.to_owned(),
            var: Var::zeros(elements, DType::F32, &Device::Cpu).unwrap(),
        };
        let dealt = deal(names.iter().map(parameter).collect(), fragments)?;
        Some(dealt.into_iter().map(|f| f.into_iter().map(|p| p.name).collect()).collect())
    }

    #[test]
    fn equal_layers_are_dealt_by_turns_and_stay_whole() {
        let names =
            [("b.0.bias", 1), ("b.0.weight", 9), ("b.1.bias", 1), ("b.1.weight", 9), ("b.2.weight", 10)];
        let expected = [vec!["b.0.bias", "b.0.weight", "b.2.weight"], vec!["b.1.bias", "b.1.weight"]];
        assert_eq!(dealt(&names, 2).unwrap(), expected);
    }

    #[test]
    fn a_large_layer_is_made_up_for_by_small_ones() {
        let names = [("a.w", 3), ("b.w", 9), ("c.w", 3), ("d", 3)];
        assert_eq!(dealt(&names, 2).unwrap(), [vec!["b.w"], vec!["a.w", "c.w", "d"]]);
    }

    #[test]
    fn fragments_without_a_layer_are_refused() {
        assert_eq!(dealt(&[("a.weight", 3), ("a.bias", 3)], 2), None);
        assert_eq!(dealt(&[], 1), None);
    }
}
