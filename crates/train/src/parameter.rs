//! Tensors and parameters: the parameter of a weight, and which tensors can be its gradient.

use crate::{Parameter, Plan, Result, Tensor};
use phalanx::Error;
use phalanx::error::OpKind;

impl<D> Parameter<D> {
    /// A weight of `tensor`'s type, shape and place.
    ///
    /// # Examples
    /// ```
    /// use phalanx::DType;
    /// use phalanx_train::{Array, Parameter};
    ///
    /// let weight = Array::from(vec![0f32; 6]).shaped(&[2, 3])?;
    /// let parameter = Parameter::of("layer.weight", &weight);
    /// assert_eq!((parameter.dtype, &parameter.dims[..]), (DType::F32, &[2, 3][..]));
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn of<T: Tensor<Device = D>>(name: impl Into<String>, tensor: &T) -> Self {
        let (dtype, dims, device) = (tensor.dtype(), tensor.dims().to_vec(), tensor.device());
        Self { name: name.into(), dtype, dims, device, wire: dtype, optional: false }
    }

    /// Refuses what is no gradient of this.
    pub(crate) fn check<T: Tensor<Device = D>>(&self, grad: &T) -> Result<()> {
        let (dtype, dims) = (grad.dtype(), grad.dims());
        if dims == self.dims && (dtype == self.dtype || dtype == self.wire) {
            return Ok(());
        }
        let what = format!(
            "the gradient of `{}` is {dtype:?} {dims:?}, but the variable is {:?} {:?}",
            self.name, self.dtype, self.dims
        );
        Err(Error::misuse(OpKind::AllReduce, what).into())
    }
}

impl<D> Plan<D> {
    /// The gradients of a parameter, as zeros, as they travel.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If there is no such parameter.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Parameter, Plan};
    ///
    /// let parameters = [Parameter::of("weight", &Array::from(vec![1f32; 2]))];
    /// let plan = Plan::new(&parameters.into(), &[0], 4 << 20);
    /// assert_eq!(plan.zeros::<Array>(0)?, Array::from(vec![0f32; 2]));
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn zeros<T: Tensor<Device = D>>(&self, parameter: usize) -> Result<T> {
        let Parameter { wire, dims, device, .. } = &self.parameters()[parameter];
        T::zeros(*wire, dims, device)
    }
}
