//! Batch normalisation over the samples of all ranks.

use crate::element::{read, require_cpu, with_element};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, Var, WithDType, bail};
use candle_nn::{BatchNorm, BatchNormConfig, ModuleT, VarBuilder};
use phalanx::error::OpKind;
use phalanx::{CallSite, ProcessGroup};
use phalanx_train::{BatchMoments, Standardise};

/// Batch normalisation (Ioffe and Szegedy 2015) with the statistics of the global batch: [`candle_nn::BatchNorm`], as if one process had the
/// samples of all ranks. For ranks whose own batches are too small for statistics.
///
/// Its variables have the names of candle's: a file of one is a file of the other. In evaluation it does what candle's does, and sends nothing.
///
/// In training `forward_t`, and the backward pass through it, are collective: each rank goes through its layers in the same order. Ranks may
/// have different numbers of samples. One without any passes a tensor of zero rows, and needs no backward pass. What all ranks optimise is the *sum* of their losses,
/// for each one's output depends on everybody's samples. So its backward pass gives the gradient of that, and a rank whose batch is smaller than
/// others' must say so in the loss: see [`Share::weigh`](crate::Share::weigh).
///
/// # Shape
/// `[n, features, …]` in and out, as candle's; n is this rank's, what follows is the same on all.
///
/// # Cost
/// Forward one all_gather of 16 bytes a feature and rank, backward one all_reduce of 16 bytes a feature. Where some rank has no samples, the others
/// [split](ProcessGroup::split) off a group for the backward pass. Three passes over the input, two over its gradient.
///
/// # Determinism
/// The running statistics have the same bits on all ranks. Sums are formed in f64: means first, then the squares around them, and the ranks' are put
/// together by the formula of Chan et al. (1979), so a mean that is large beside the deviation takes nothing from the variance.
///
/// # Errors
/// Those of candle's, and of the group, as candle's `Wrapped` error. Fewer than two values a feature, of all ranks together, are refused: they have no
/// variance.
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{ModuleT, VarBuilder, VarMap};
/// use phalanx::ProcessGroup;
/// use phalanx_candle::SyncBatchNorm;
///
/// fn on(group: &ProcessGroup) -> phalanx_candle::Result<()> {
///     let varmap = VarMap::new();
///     let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
///     // A group of its own, for all layers: their calls must not meet those of `DistributedDataParallel`.
///     let norms = group.split(Some(0), 0)?.expect("all ranks gave one colour");
///     let norm = SyncBatchNorm::new(1, 1e-5, vb.pp("norm"), &norms)?;
///
///     let mine = [vec![0f32, 2.0], vec![4.0]][group.rank()].clone(); // two samples here, one there
///     let y = norm.forward_t(&Tensor::new(mine, &Device::Cpu)?.unsqueeze(1)?, true)?;
///     // Of all three the mean is 2 and the deviation √(8/3).
///     let expected = [vec![-1.2247, 0.0], vec![1.2247]][group.rank()].clone();
///     for (y, expected) in y.flatten_all()?.to_vec1::<f32>()?.into_iter().zip(expected) {
///         assert!((y - expected).abs() < 1e-4);
///     }
///     assert_eq!(norm.running_mean().to_vec1::<f32>()?, [0.2]); // a tenth of the way to 2
///     Ok(())
/// }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[derive(Debug, Clone)]
pub struct SyncBatchNorm {
    norm: BatchNorm,
    remove_mean: bool,
    /// The group of the statistics. Its calls count as made where the layer was made.
    group: ProcessGroup,
}

impl SyncBatchNorm {
    /// As [`batch_norm`](candle_nn::batch_norm()), over the ranks of `group`. Not collective.
    ///
    /// Layers of one model share a group, which nothing else uses: gradients that are sent during the backward pass would meet their calls
    /// in an order that need not be the same on all ranks.
    ///
    /// # Errors
    /// Those of candle; [`phalanx::Error::Unsupported`], wrapped, if the variables are not on the CPU.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_nn::VarBuilder;
    /// use phalanx_candle::SyncBatchNorm;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let norms = group.split(Some(0), 0)?.expect("all ranks gave one colour");
    /// let layers = [0, 1].map(|i| SyncBatchNorm::new(8, 1e-5, vb.pp(i), &norms)); // one group for both
    /// assert!(layers.iter().all(Result::is_ok));
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn new(
        num_features: usize,
        config: impl Into<BatchNormConfig>,
        vb: VarBuilder<'_>,
        group: &ProcessGroup,
    ) -> Result<Self> {
        require_cpu(group, OpKind::AllGather, vb.device()).map_err(candle_core::Error::wrap)?;
        let config = config.into();
        let norm = candle_nn::batch_norm(num_features, config, vb)?;
        let group = group.with_call_site(CallSite::caller());
        Ok(Self { norm, remove_mean: config.remove_mean, group })
    }

    /// The running mean of each feature.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{ModuleT, VarBuilder, VarMap};
    /// # use phalanx_candle::SyncBatchNorm;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let norm = SyncBatchNorm::new(1, 1e-5, vb, group)?;
    /// norm.forward_t(&Tensor::full(1.0 + 2.0 * group.rank() as f32, (2, 1), &Device::Cpu)?, true)?; // 1 and 3
    /// assert_eq!(norm.running_mean().to_vec1::<f32>()?, [0.2]); // a tenth of the way from 0 to 2
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn running_mean(&self) -> &Tensor {
        self.norm.running_mean()
    }

    /// The running variance of each feature.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{ModuleT, VarBuilder, VarMap};
    /// # use phalanx_candle::SyncBatchNorm;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let norm = SyncBatchNorm::new(1, 1e-5, vb, group)?;
    /// norm.forward_t(&Tensor::full(1.0 + 2.0 * group.rank() as f32, (2, 1), &Device::Cpu)?, true)?; // 1 and 3
    /// let var = norm.running_var().to_vec1::<f32>()?[0];
    /// assert!((var - (1.0 + 1.0 / 30.0)).abs() < 1e-6); // a tenth of the way from 1 to 4/3
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn running_var(&self) -> &Tensor {
        self.norm.running_var()
    }

    fn forward_train(&self, x: &Tensor) -> Result<Tensor> {
        let features = self.running_mean().dim(0)?;
        if x.rank() < 2 || x.dim(1)? != features {
            bail!(
                "batch normalisation of {features} features was given {:?}, not [n, {features}, …]",
                x.dims()
            )
        }
        let x = x.contiguous()?;
        let moments = self.moments(&x, features)?;
        if moments.count() < 2.0 {
            bail!(
                "batch normalisation over {} values a feature on all ranks: they have no variance",
                moments.count()
            )
        }
        self.follow(&moments)?;
        let standardise = Standardised(moments.standardise(self.norm.eps()));
        let x = x.apply_op1(standardise)?;
        let Some((weight, bias)) = self.norm.weight_and_bias() else { return Ok(x) };
        let mut shape = vec![1; x.rank()];
        shape[1] = features;
        x.broadcast_mul(&weight.reshape(shape.as_slice())?)?.broadcast_add(&bias.reshape(shape)?)
    }

    /// The moments of the samples of all ranks.
    ///
    /// candle leaves operations on empty tensors out of its graph: who has no samples may have no backward pass.
    fn moments(&self, x: &Tensor, features: usize) -> Result<BatchMoments> {
        let mine = with_element!(x.dtype(),
            T => read::<T, _>(x, |values| BatchMoments::of(values, features, inner(x.dims()), self.remove_mean))?,
            other => return Err(unsupported(other)),
        );
        mine.and_then(|mine| mine.over(&self.group)).map_err(candle_core::Error::wrap)
    }

    /// Brings the running statistics on, that of the variance without the bias of a sample.
    fn follow(&self, moments: &BatchMoments) -> Result<()> {
        let mut statistics = vec![(self.running_var(), moments.unbiased_variance())];
        if self.remove_mean {
            statistics.push((self.running_mean(), moments.mean().to_vec()));
        }
        for (running, now) in statistics {
            let now = Tensor::from_vec(now, running.shape(), running.device())?;
            let (kept, momentum) = (running.detach().to_dtype(DType::F64)?, self.norm.momentum());
            let next = ((kept * (1.0 - momentum))? + (now * momentum)?)?;
            Var::from_tensor(running)?.set(&next.to_dtype(running.dtype())?)?;
        }
        Ok(())
    }
}

impl ModuleT for SyncBatchNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train { self.forward_train(x) } else { self.norm.forward_t(x, false) }
    }
}

/// Elements of one sample that belong to one feature.
fn inner(dims: &[usize]) -> usize {
    dims[2..].iter().product()
}

fn unsupported(dtype: DType) -> candle_core::Error {
    candle_core::Error::msg(format!("batch normalisation of {}; convert with `to_dtype`", dtype.as_str()))
}

/// Takes the mean away and divides by the deviation, in candle's graph.
struct Standardised(Standardise);

impl CustomOp1 for Standardised {
    fn name(&self) -> &'static str {
        "phalanx-standardise"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (start, end) = layout.contiguous_offsets().expect("it was made contiguous");
        let out = with_element!(storage.dtype(),
            T => {
                let values = &T::cpu_storage_as_slice(storage)?[start..end];
                let out = self.0.forward(values, inner(layout.dims())).map_err(candle_core::Error::wrap)?;
                T::to_cpu_storage_owned(out)
            },
            other => return Err(unsupported(other)),
        );
        Ok((out, layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, out: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        with_element!(x.dtype(),
            T => {
                let backward = |grads: &[T]| read(out, |outs| self.0.backward::<T>(grads, outs, inner(x.dims())));
                let found = read(grad, backward)??.map_err(candle_core::Error::wrap)?;
                Ok(Some(Tensor::from_vec(found, x.shape(), x.device())?))
            },
            other => Err(unsupported(other)),
        )
    }
}
