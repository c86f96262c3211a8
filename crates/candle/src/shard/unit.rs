//! Parts of a model whose weights come and go together.

use crate::shard::engine::{Border, EngineHandle, Side};
use candle_core::Tensor;
use candle_nn::Module;
use std::fmt;
use std::sync::Arc;

/// A part of a sharded model, such as a layer, whose weights come and go together: with [`Stage::Weights`](crate::Stage::Weights) they
/// are whole while it works, forward and backward, and dealt out otherwise. [`Units::unit`](crate::Units::unit) makes it.
///
/// With the other stages it is the part itself and nothing more.
pub struct Unit<M> {
    part: M,
    /// The unit's weights; `None` if they stay.
    weights: Option<UnitWeights>,
}

/// The flat that holds a unit's weights, in the engine that moves them.
#[derive(Debug)]
pub(crate) struct UnitWeights {
    pub(crate) handle: Arc<EngineHandle>,
    pub(crate) flat: usize,
}

impl<M> fmt::Debug for Unit<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit")
            .field("flat", &self.weights.as_ref().map(|weights| weights.flat))
            .finish_non_exhaustive()
    }
}

impl<M> Unit<M> {
    pub(crate) fn new(part: M, weights: Option<UnitWeights>) -> Self {
        Self { part, weights }
    }

    /// Has `work` done with the part, whose weights are whole meanwhile: it makes the unit's output of its input. All ranks let the same
    /// units work in the same order, forward and backward. A unit may work inside another's work, and several times in a pass.
    ///
    /// Besides numbers, nothing that depends on weights should go in but `x`, or come out but what `work` returns. A weight that was cloned
    /// out of it can't be computed with later: candle returns an error that complains of the type F4.
    ///
    /// # Cost
    /// An all_gather of the weights, one more in the backward pass, and copies of input and output, so that the backward pass is
    /// seen to come by.
    ///
    /// # Errors
    /// Those of `work`; those of [`all_gather`](phalanx::ProcessGroup::all_gather), and
    /// [`Error::UnitMismatch`](crate::Error::UnitMismatch) if ranks let different units work.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::DType;
    /// # use candle_core::{Device, Tensor};
    /// use candle_nn::ModuleT;
    /// use phalanx_candle::{ShardConfig, Sharded, Stage};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let config = ShardConfig::default().stage(Stage::Weights);
    /// let zero = Sharded::build(DType::F32, group, config, |units, vb| {
    ///     units.unit(vb.pp("norm"), |vb| candle_nn::batch_norm(2, 1e-5, vb))
    /// })?;
    /// let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu)?;
    /// let y = zero.forward(|unit| unit.run(&x, |norm, x| norm.forward_t(x, false)))?;
    /// assert_eq!(y.dims(), [4, 2]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn run(
        &self,
        x: &Tensor,
        work: impl FnOnce(&M, &Tensor) -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Tensor> {
        let Some(UnitWeights { handle, flat }) = &self.weights else { return work(&self.part, x) };
        let border = |side| Border { handle: Arc::downgrade(handle), flat: *flat, side };
        let has_in = x.track_op();
        let x = if has_in { x.apply_op1(border(Side::In))? } else { x.clone() };
        handle.enter(*flat)?;
        let y = work(&self.part, &x);
        handle.leave(*flat)?;
        let y = y?;
        if y.track_op() { y.apply_op1(border(Side::Out { has_in })) } else { Ok(y) }
    }
}

/// The part's own forward pass, with weights that are whole meanwhile: see [`run`](Unit::run).
impl<M: Module> Module for Unit<M> {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.run(x, M::forward)
    }
}
