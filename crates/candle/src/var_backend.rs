//! Variables as a model gets them, so that the backward pass says when the gradient of each is complete, or so that the
//! model computes in another type than the one that its weights are kept in.

use crate::backward::BackwardGradients;
use crate::element::{assign, bytes_mut, read, with_element};
use crate::model::is_buffer;
use crate::uses::{self, Receiver, Source, Uses};
use crate::{Error, Result};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Device, Layout, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A copy of a variable: the model has it, the optimizer has the variable.
pub(crate) struct Copy {
    pub(crate) var: Var,
    pub(crate) tensor: Tensor,
}

impl Copy {
    /// Makes the copy what the variable is.
    pub(crate) fn refresh(&self) -> Result<()> {
        let fresh = self.var.as_detached_tensor().to_dtype(self.tensor.dtype())?;
        if !fresh.device().is_cpu() {
            return Ok(assign(&self.tensor, &fresh)?);
        }
        let dtype = fresh.dtype();
        Ok(bytes_mut(&self.tensor, |bytes| {
            with_element!(dtype,
                T => read::<T, _>(&fresh, |values| bytes.copy_from_slice(bytemuck::cast_slice(values))),
                _ => unreachable!("only variables of types that can be sent are copied"),
            )
        })??)
    }
}

/// Takes gradients from the backward pass. The model's variables have it while the model is built, and what it passes them to comes last.
#[derive(Default)]
pub(crate) struct GradientListener {
    gradients: OnceLock<Mutex<BackwardGradients>>,
    /// The error of the backward pass that ran: candle passes no error of ours on.
    error: Mutex<Option<Error>>,
    pub(crate) uses: Arc<Uses>,
}

impl GradientListener {
    /// Sets where gradients go. A model does so once.
    pub(crate) fn set(&self, gradients: BackwardGradients) {
        let _ = self.gradients.set(Mutex::new(gradients));
    }

    pub(crate) fn get(&self) -> Option<MutexGuard<'_, BackwardGradients>> {
        Some(self.gradients.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Receiver for GradientListener {
    fn arrived(&self, var: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        match self.get().map_or(Ok(false), |mut gradients| gradients.arrive(var.id(), grad)) {
            Ok(true) => Ok(None),
            Ok(false) => Ok(Some(grad.to_dtype(var.dtype())?)),
            Err(error) => {
                let what = error.to_string();
                *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                candle_core::bail!("{what}")
            }
        }
    }
}

/// Hands out variables of a `VarMap`, as copies where that is needed.
pub(crate) struct VarBackend {
    pub(crate) varmap: VarMap,
    /// Whether each variable tells the listener of its gradient.
    pub(crate) overlap: bool,
    pub(crate) listener: Arc<GradientListener>,
    pub(crate) copies: Arc<Mutex<BTreeMap<String, Copy>>>,
}

impl VarBackend {
    pub(crate) fn var_builder(self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self), dtype, device.clone())
    }
}

impl SimpleBackend for VarBackend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        if is_buffer(name) {
            // The forward pass changes it: of a copy that would be lost.
            return self.varmap.get(shape, name, init, dtype, device);
        }
        // What an update adds to a weight is often too little for 16 bits.
        let kept = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        let var = self.varmap.get(shape, name, init, kept, device)?;
        let is_listened_to = self.overlap && var.dtype().is_float();
        if device.is_cpu() && [var.dtype(), dtype] == [DType::F32; 2] && uses::is_asked() {
            uses::answer(Source::new(self.listener.clone(), self.listener.uses.clone()));
            return Ok(var);
        }
        if device.is_metal() || (var.dtype() == dtype && !is_listened_to) {
            return Ok(var);
        }
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        // Two layers with one variable have one copy: its gradient is complete when both are done.
        if let Some(copy) = copies.get(name) {
            if copy.tensor.dtype() != dtype {
                candle_core::bail!(
                    "`{name}` is used as {dtype:?} here and as {:?} elsewhere; take it once and convert it in the forward pass",
                    copy.tensor.dtype()
                )
            }
            return Ok(copy.tensor.clone());
        }
        let tensor = var.apply_op1(Identity { dtype, listener: self.listener.clone() })?;
        self.listener.uses.add(tensor.id(), var.id());
        copies.insert(name.to_owned(), Copy { var: Var::from_tensor(&var)?, tensor: tensor.clone() });
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        SimpleBackend::get_unchecked(&self.varmap, name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.varmap.contains_tensor(name)
    }
}

/// Copies a variable. When candle asks for its gradient, all that depends on the copy has been dealt with.
struct Identity {
    dtype: DType,
    listener: Arc<GradientListener>,
}

impl CustomOp1 for Identity {
    fn name(&self) -> &'static str {
        "phalanx-variable"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((storage.to_dtype(layout, self.dtype)?, layout.shape().clone()))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        Ok((storage.to_dtype(layout, self.dtype)?, layout.shape().clone()))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad_res: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.listener.arrived(arg, grad_res)
    }
}
