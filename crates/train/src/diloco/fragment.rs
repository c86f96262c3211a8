//! A part of the model that is averaged at one time: what all ranks agree on, and the step that brings it on.

use super::DiLoCoConfig;
use crate::element::{Float, convert, with_float};
use crate::{Array, Result, Tensor, Weights};
use bytemuck::{cast_slice, cast_slice_mut};
use phalanx::DType;
use std::collections::BTreeMap;
use std::ops::Range;

/// A weight of the model, which is a rank's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Weight {
    pub(super) name: String,
    pub(super) dims: Vec<usize>,
    /// The place among the program's weights.
    pub(super) index: usize,
}

impl Weight {
    fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// Weights that are averaged together, and what all ranks hold alike: numbers of one type, end to end, in the host's memory.
#[derive(Debug)]
pub(super) struct Fragment {
    /// The members, and the place of each among the numbers.
    pub(super) members: Vec<(Weight, Range<usize>)>,
    /// The outer weights.
    pub(super) anchor: Array,
    /// The momentum of the outer step.
    pub(super) momentum: Array,
    /// The step after which they were last sent.
    pub(super) sent_at: u64,
}

impl Fragment {
    /// With numbers of type `dtype`, as zeros.
    pub(super) fn new(weights: Vec<Weight>, dtype: DType) -> Result<Self> {
        let mut end = 0;
        let members = weights.into_iter().map(|weight| {
            let start = end;
            end += weight.elements();
            (weight, start..end)
        });
        let members = members.collect();
        let zeros = || Array::zeros(dtype, &[end], &());
        Ok(Self { members, anchor: zeros()?, momentum: zeros()?, sent_at: 0 })
    }

    pub(super) fn bytes(&self) -> usize {
        self.anchor.dims()[0] * self.anchor.dtype().size()
    }

    /// The place of a member among the bytes.
    pub(super) fn place(&self, elements: &Range<usize>) -> Range<usize> {
        let size = self.anchor.dtype().size();
        elements.start * size..elements.end * size
    }

    pub(super) fn shapes(&self) -> Vec<Vec<usize>> {
        self.members.iter().map(|(weight, _)| weight.dims.clone()).collect()
    }

    /// Makes a weight the outer one.
    pub(super) fn begin(&mut self, member: usize, weight: &impl Tensor) -> Result<()> {
        let (dtype, place) = (self.anchor.dtype(), self.place(&self.members[member].1));
        self.anchor.write(|anchor| {
            weight.read(|weight_bytes| convert(weight.dtype(), weight_bytes, dtype, &mut anchor[place]))
        })??;
        Ok(())
    }

    /// Lays the outer weights minus the rank's own end to end.
    pub(super) fn pseudo_gradients<T: Tensor>(
        &self,
        weights: &mut (impl Weights<T> + ?Sized),
        into: &mut [u8],
    ) -> Result<()> {
        let dtype = self.anchor.dtype();
        for (weight, elements) in &self.members {
            let into = &mut into[self.place(elements)];
            weights.with(weight.index, |weight| {
                weight.read(|own| convert(weight.dtype(), own, dtype, into)).map(drop)
            })?;
        }
        self.anchor.read(|anchor| {
            with_float!(dtype,
                E => subtract::<E>(cast_slice(anchor), cast_slice_mut(&mut into[..anchor.len()])),
                _ => unreachable!("weights are floats"),
            );
        })
    }

    /// The outer step, by the mean of all ranks' pseudo-gradients: gradient descent with Nesterov momentum, as PyTorch's SGD does it.
    pub(super) fn step(&mut self, mean: &[u8], config: &DiLoCoConfig) -> Result<()> {
        let Self { anchor, momentum, .. } = self;
        let dtype = anchor.dtype();
        anchor.write(|anchor| {
            momentum.write(|momentum| {
                let mean = &mean[..anchor.len()];
                with_float!(dtype,
                    E => outer_step::<E>(cast_slice_mut(anchor), cast_slice_mut(momentum), cast_slice(mean), config),
                    _ => unreachable!("weights are floats"),
                );
            })
        })?
    }

    /// Leaves so much of the rank's own weights, and makes the rest the outer ones.
    pub(super) fn adopt<T: Tensor>(&self, weights: &mut (impl Weights<T> + ?Sized), mix: f64) -> Result<()> {
        let dtype = self.anchor.dtype();
        for (weight, elements) in &self.members {
            let (place, len) = (self.place(elements), elements.len());
            weights.with(weight.index, |weight| {
                let own = weight.dtype();
                let mut mixed = Array::zeros(dtype, &[len], &())?;
                // Not by the formula without a mix, which would leave the sign of the rank's own on a zero.
                if mix != 0.0 {
                    mixed.write(|mixed| weight.read(|weight| convert(own, weight, dtype, mixed)))??;
                }
                self.anchor.read(|anchor| {
                    let anchor = &anchor[place];
                    mixed.write(|mixed| {
                        with_float!(dtype,
                            E => blend::<E>(cast_slice_mut(mixed), cast_slice(anchor), mix),
                            _ => unreachable!("weights are floats"),
                        );
                    })
                })??;
                mixed.read(|mixed| weight.write(|weight| convert(dtype, mixed, own, weight)))??;
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// A product is `x * a + 0`, as candle's is, which makes zeros positive.
fn outer_step<E: Float>(anchor: &mut [E], momentum: &mut [E], mean: &[E], config: &DiLoCoConfig) {
    let (keep, rate) = (E::from_f64(config.outer_momentum), E::from_f64(config.outer_learning_rate));
    let zero = E::from_f64(0.0);
    for ((anchor, momentum), &mean) in anchor.iter_mut().zip(momentum).zip(mean) {
        *momentum = (*momentum * keep + zero) + mean;
        let change = (*momentum * keep + zero) + mean;
        *anchor = *anchor - (change * rate + zero);
    }
}

fn subtract<E: Float>(anchor: &[E], own: &mut [E]) {
    own.iter_mut().zip(anchor).for_each(|(own, &anchor)| *own = anchor - *own);
}

fn blend<E: Float>(own: &mut [E], anchor: &[E], mix: f64) {
    if mix == 0.0 {
        return own.copy_from_slice(anchor);
    }
    let (zero, mine, theirs) = (E::from_f64(0.0), E::from_f64(mix), E::from_f64(1.0 - mix));
    for (own, &anchor) in own.iter_mut().zip(anchor) {
        *own = (*own * mine + zero) + (anchor * theirs + zero);
    }
}

/// Deals weights out to `fragments`, layer by layer: those whose names differ after the last dot alone stay together. The largest layer goes
/// first, each to the lightest fragment, so that fragments weigh about the same; and layers of one size, as those of a
/// transformer, are dealt by turns, as the paper has it. `None` if there are fewer layers than fragments.
pub(super) fn deal(weights: Vec<Weight>, fragments: usize) -> Option<Vec<Vec<Weight>>> {
    let mut layers: BTreeMap<String, Vec<Weight>> = BTreeMap::new();
    for weight in weights {
        let layer = weight.name.rsplit_once('.').map_or(&*weight.name, |(layer, _)| layer).to_owned();
        layers.entry(layer).or_default().push(weight);
    }
    let size = |layer: &[Weight]| layer.iter().map(Weight::elements).sum::<usize>();
    let mut layers: Vec<_> = layers.into_values().collect();
    layers.sort_by_key(|layer| std::cmp::Reverse(size(layer)));
    let mut dealt: Vec<Vec<Weight>> = (0..fragments).map(|_| Vec::new()).collect();
    for layer in layers {
        dealt.iter_mut().min_by_key(|fragment| size(fragment))?.extend(layer);
    }
    dealt.iter().all(|fragment| !fragment.is_empty()).then_some(dealt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(names: &[(&str, usize)], fragments: usize) -> Option<Vec<Vec<String>>> {
        let weight = |&(name, elements): &(&str, usize)| Weight {
            name: name.to_owned(),
            dims: vec![elements],
            index: 0,
        };
        let dealt = deal(names.iter().map(weight).collect(), fragments)?;
        Some(dealt.into_iter().map(|f| f.into_iter().map(|w| w.name).collect()).collect())
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

    #[test]
    fn without_a_mix_even_the_sign_of_a_zero_is_the_outer_ones() {
        let mut fragment =
            Fragment::new(vec![Weight { name: "w".into(), dims: vec![2], index: 0 }], DType::F32).unwrap();
        fragment.begin(0, &Array::from(vec![0f32, -0.0])).unwrap();
        let mut weights = [Array::from(vec![-0f32, 5.0])];
        fragment.adopt(&mut weights, 0.0).unwrap();
        let bits =
            |array: &Array| array.as_slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&weights[0]), [0f32.to_bits(), (-0f32).to_bits()]);
    }
}
