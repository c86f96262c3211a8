//! Tensors in plain memory, for programs that have no library of tensors.

use crate::element::{convert, with_float};
use crate::{Error, Result, Tensor};
use half::{bf16, f16};
use phalanx::{DType, Element};

/// Numbers in a `Vec`, in row-major order, with dimensions.
///
/// A `Vec` becomes one, and one becomes a `Vec`, without copying: so gradients go into a [`Reducer`](crate::Reducer) and come out of it as
/// what a program computes with.
///
/// # Examples
/// ```
/// use phalanx_train::Array;
///
/// let mut matrix = Array::from(vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).shaped(&[2, 3])?;
/// matrix.as_mut_slice::<f32>().unwrap()[5] = 7.0;
/// assert_eq!(matrix.as_slice::<f64>(), None); // it is of f32
/// let numbers: Vec<f32> = matrix.try_into()?;
/// assert_eq!(numbers, [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    numbers: Numbers,
    dims: Vec<usize>,
}

impl Array {
    /// Gives the numbers other dimensions.
    ///
    /// # Errors
    /// [`Error::Tensors`] for dimensions of more or fewer numbers.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, Tensor};
    ///
    /// let matrix = Array::from(vec![0f32; 6]).shaped(&[2, 3])?;
    /// assert_eq!(matrix.dims(), [2, 3]);
    /// assert!(matrix.shaped(&[4]).is_err());
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn shaped(self, dims: &[usize]) -> Result<Self> {
        let len = self.numbers.bytes().len() / self.numbers.dtype().size();
        if dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim)) != Some(len) {
            return Err(Error::Tensors(format!("the shape {dims:?} does not hold {len} numbers").into()));
        }
        Ok(Self { dims: dims.to_vec(), ..self })
    }

    /// The numbers, if they are of this type.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::Array;
    ///
    /// let array = Array::from(vec![1f32, 2.0]);
    /// assert_eq!(array.as_slice::<f32>(), Some(&[1.0, 2.0][..]));
    /// assert_eq!(array.as_slice::<f64>(), None);
    /// ```
    pub fn as_slice<E: Element>(&self) -> Option<&[E]> {
        (self.dtype() == E::DTYPE).then(|| bytemuck::cast_slice(self.numbers.bytes()))
    }

    /// The numbers, to change them, if they are of this type.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::Array;
    ///
    /// let mut array = Array::from(vec![1f32, 2.0]);
    /// array.as_mut_slice::<f32>().expect("it is of f32")[1] = 3.0;
    /// assert_eq!(array, Array::from(vec![1f32, 3.0]));
    /// ```
    pub fn as_mut_slice<E: Element>(&mut self) -> Option<&mut [E]> {
        (self.dtype() == E::DTYPE).then(|| bytemuck::cast_slice_mut(self.numbers.bytes_mut()))
    }
}

macro_rules! numbers {
    ($($name:ident $type:ty),*) => {
        #[derive(Debug, Clone, PartialEq)]
        enum Numbers {
            $($name(Vec<$type>)),*
        }

        impl Numbers {
            fn zeros(dtype: DType, len: usize) -> Option<Self> {
                Some(match dtype {
                    $(DType::$name => Self::$name(vec![<$type>::default(); len]),)*
                    _ => return None,
                })
            }

            fn dtype(&self) -> DType {
                match self {
                    $(Self::$name(_) => DType::$name),*
                }
            }

            fn bytes(&self) -> &[u8] {
                match self {
                    $(Self::$name(numbers) => bytemuck::cast_slice(numbers)),*
                }
            }

            fn bytes_mut(&mut self) -> &mut [u8] {
                match self {
                    $(Self::$name(numbers) => bytemuck::cast_slice_mut(numbers)),*
                }
            }
        }

        $(
            impl From<Vec<$type>> for Array {
                fn from(numbers: Vec<$type>) -> Self {
                    let dims = vec![numbers.len()];
                    Self { numbers: Numbers::$name(numbers), dims }
                }
            }

            impl TryFrom<Array> for Vec<$type> {
                type Error = Error;

                fn try_from(array: Array) -> Result<Self> {
                    match array.numbers {
                        Numbers::$name(numbers) => Ok(numbers),
                        other => Err(Error::Tensors(format!("the array holds {}, not {}", other.dtype(), DType::$name).into())),
                    }
                }
            }
        )*
    };
}

numbers!(F32 f32, F64 f64, F16 f16, BF16 bf16, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64);

impl Tensor for Array {
    type Device = ();

    fn dtype(&self) -> DType {
        self.numbers.dtype()
    }

    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn device(&self) {}

    fn zeros(dtype: DType, dims: &[usize], (): &()) -> Result<Self> {
        let numbers = Numbers::zeros(dtype, dims.iter().product());
        let numbers =
            numbers.ok_or_else(|| Error::Tensors(format!("an Array cannot hold {dtype}").into()))?;
        Ok(Self { numbers, dims: dims.to_vec() })
    }

    fn to_dtype(self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype {
            return Ok(self);
        }
        let mut converted = Self::zeros(dtype, &self.dims, &())?;
        if !convert(self.dtype(), self.numbers.bytes(), dtype, converted.numbers.bytes_mut()) {
            let from = self.dtype();
            let what = format!("an Array cannot be converted from {from} to {dtype}; only floats are");
            return Err(Error::Tensors(what.into()));
        }
        Ok(converted)
    }

    fn add(mut self, other: Self) -> Result<Self> {
        if (self.dtype(), &self.dims) != (other.dtype(), &other.dims) {
            let what = format!(
                "cannot add arrays of {} {:?} and {} {:?}; they must be alike",
                self.dtype(),
                self.dims,
                other.dtype(),
                other.dims
            );
            return Err(Error::Tensors(what.into()));
        }
        with_float!(self.dtype(),
            T => {
                let more: &[T] = bytemuck::cast_slice(other.numbers.bytes());
                let sum: &mut [T] = bytemuck::cast_slice_mut(self.numbers.bytes_mut());
                sum.iter_mut().zip(more).for_each(|(sum, &more)| *sum += more);
            },
            dtype => return Err(Error::Tensors(format!("cannot add arrays of {dtype}; only floats are added").into())),
        );
        Ok(self)
    }

    fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(read(self.numbers.bytes()))
    }

    fn write<R>(&mut self, write: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Ok(write(self.numbers.bytes_mut()))
    }
}
