//! Data-parallel training by phalanx's own reducer: its buckets, its steps, and so together with ranks that train with another library, as candle.

use crate::errors::{exception, training};
use crate::group::{Group, waiting};
use crate::memory::Region;
use crate::site::{Site, caller};
use phalanx::backend::copy_slice;
use phalanx::{CallSite, DType, ProcessGroup};
use phalanx_train::{Array, Error, Parameter, Result, Share, Tensor};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// A tensor of Python's, or one that was made here for a rank that has none.
enum Gradient {
    Lent { region: Region, dims: Vec<usize> },
    Own(Array),
}

impl Gradient {
    fn of(region: Region, dims: Vec<usize>) -> Self {
        Self::Lent { region, dims }
    }

    fn into_array(self) -> Result<Array> {
        match self {
            Self::Own(array) => Ok(array),
            Self::Lent { .. } => {
                let mut array = Array::zeros(self.dtype(), self.dims(), &())?;
                self.read(|from| array.write(|to| copy_slice(to, from)))??;
                Ok(array)
            }
        }
    }
}

impl Tensor for Gradient {
    type Device = ();

    const NO_GRADIENT_HINT: &'static str = "Either the loss does not depend on them, or they are detached from the graph. If they are to stay as they are, set requires_grad to False";

    fn dtype(&self) -> DType {
        match self {
            Self::Lent { region, .. } => region.elements.dtype(),
            Self::Own(array) => array.dtype(),
        }
    }

    fn dims(&self) -> &[usize] {
        match self {
            Self::Lent { dims, .. } => dims,
            Self::Own(array) => array.dims(),
        }
    }

    fn device(&self) {}

    fn zeros(dtype: DType, dims: &[usize], (): &()) -> Result<Self> {
        Array::zeros(dtype, dims, &()).map(Self::Own)
    }

    fn to_dtype(self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype { Ok(self) } else { self.into_array()?.to_dtype(dtype).map(Self::Own) }
    }

    fn add(self, other: Self) -> Result<Self> {
        self.into_array()?.add(other.into_array()?).map(Self::Own)
    }

    fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        match self {
            // SAFETY: Python's programs leave gradients alone while a step has them.
            Self::Lent { region, .. } => Ok(read(unsafe { region.read() })),
            Self::Own(array) => array.read(read),
        }
    }

    fn write<R>(&mut self, write: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        match self {
            // SAFETY: as above, and this one has the region alone.
            Self::Lent { region, .. } => Ok(write(unsafe { region.write() })),
            Self::Own(array) => array.write(write),
        }
    }
}

fn raised(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Group(error) => exception(py, error),
        other => training(py, &other.to_string()),
    }
}

/// Runs a step, which waits in `group`. What the group has to say about Ctrl-C it says here, too.
fn step<R: Send>(
    py: Python<'_>,
    group: &ProcessGroup,
    run: impl FnOnce(&ProcessGroup) -> Result<R> + Send,
) -> PyResult<R> {
    waiting(py, group, |group| Ok(run(group)))?.map_err(|error| {
        let interrupted = py.check_signals().err();
        interrupted.unwrap_or_else(|| raised(py, &error))
    })
}

/// A buffer of so many dimensions as it has numbers.
fn tensor(name: &str, buffer: &Bound<'_, PyAny>, dims: &[usize]) -> PyResult<Region> {
    let region = Region::of(buffer)?.writable(name)?;
    let expected = dims.iter().try_fold(region.elements.parts(), |product, &dim| product.checked_mul(dim));
    if expected != Some(region.count()) {
        let count = region.count() / region.elements.parts();
        return Err(PyValueError::new_err(format!(
            "{name} has {count} elements, which the shape {dims:?} does not hold"
        )));
    }
    Ok(region)
}

/// Averages the gradients of a model over the ranks of a group, in buckets: the reducer that phalanx's training in Rust has. All ranks must have
/// parameters of the same names, types and shapes, whichever library and language they are in.
#[pyclass(frozen, module = "phalanx")]
pub(crate) struct Reducer {
    group: ProcessGroup,
    dims: Vec<Vec<usize>>,
    reducer: Mutex<phalanx_train::Reducer<Gradient>>,
}

#[pymethods]
impl Reducer {
    /// ``parameters``: name, element type (``"f32"``) and shape of each, in the order of their names.
    #[new]
    #[pyo3(signature = (group, parameters, bucket_cap_bytes=4 << 20))]
    fn new(
        py: Python<'_>,
        group: &Bound<'_, Group>,
        parameters: Vec<(String, String, Vec<usize>)>,
        bucket_cap_bytes: usize,
    ) -> PyResult<Self> {
        let group = group.get().held()?.clone();
        let dims = parameters.iter().map(|(_, _, dims)| dims.clone()).collect();
        let described = parameters.iter().map(|(name, dtype, dims)| described(name, dtype, dims));
        let parameters = described.collect::<PyResult<Vec<_>>>()?;
        let reducer = phalanx_train::Reducer::new(parameters, &group, bucket_cap_bytes, false);
        let reducer = reducer.map_err(|error| raised(py, &error))?;
        Ok(Self { group, dims, reducer: Mutex::new(reducer) })
    }

    /// A step: every gradient becomes the average over the ranks, where it lies. Collective.
    ///
    /// ``gradients``: for each parameter a buffer, and whether it holds a gradient of this rank; one that does not counts as zeros. ``share``: how many samples
    /// of the global batch this rank has, and how many there are; ``None``: an equal share. Returns for each parameter whether any rank has a gradient; the
    /// buffer of one for which none has is left as it is.
    #[pyo3(signature = (gradients, share=None, *, site=None))]
    fn reduce(
        &self,
        py: Python<'_>,
        gradients: Vec<(Bound<'_, PyAny>, bool)>,
        share: Option<(usize, usize)>,
        site: Option<Bound<'_, Site>>,
    ) -> PyResult<Vec<bool>> {
        let site: CallSite = site.map_or_else(|| caller(py), |site| site.get().0.clone());
        let mut places = Vec::with_capacity(gradients.len());
        let mut lent = Vec::with_capacity(gradients.len());
        for ((buffer, is_there), dims) in gradients.iter().zip(&self.dims) {
            places.push(tensor("a gradient", buffer, dims)?);
            lent.push(if *is_there {
                Some(Gradient::of(tensor("a gradient", buffer, dims)?, dims.clone()))
            } else {
                None
            });
        }
        if gradients.len() != self.dims.len() {
            let (got, expected) = (gradients.len(), self.dims.len());
            return Err(PyValueError::new_err(format!(
                "got {got} gradients, expected {expected}: one for each parameter"
            )));
        }
        let share = share.map_or(Share::EQUAL, |(samples, global)| Share::new(samples, global));
        let reduced = step(py, &self.group, |_| {
            let mut reducer = self.reducer.lock().unwrap_or_else(PoisonError::into_inner);
            reducer.call_site(site);
            let reduced = reducer.reduce(lent, share)?;
            for (place, gradient) in places.iter_mut().zip(&reduced) {
                if let Some(gradient @ Gradient::Own(_)) = gradient {
                    // SAFETY: as in `Gradient::write`.
                    gradient.read(|from| copy_slice(unsafe { place.write() }, from))?;
                }
            }
            Ok(reduced.iter().map(Option::is_some).collect())
        });
        places.into_iter().for_each(|place| place.release(py));
        reduced
    }

    /// Tells the ranks that wait in this step that it fails here.
    fn give_up(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.reducer.lock().unwrap_or_else(PoisonError::into_inner).give_up(reason));
    }
}

impl std::fmt::Debug for Reducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reducer").field("group", &self.group).finish_non_exhaustive()
    }
}

fn described(name: &str, dtype: &str, dims: &[usize]) -> PyResult<Parameter<()>> {
    let known = DType::ALL.into_iter().find(|known| known.name() == dtype && known.is_float());
    let Some(dtype) = known else {
        return Err(PyValueError::new_err(format!(
            "`{name}` is of {dtype}, and gradients are f32, f64, f16 or bf16"
        )));
    };
    let mut parameter = Parameter::of(name, &Array::from(Vec::<f32>::new()));
    (parameter.dtype, parameter.wire, parameter.dims) = (dtype, dtype, dims.to_vec());
    Ok(parameter)
}

/// Gives every rank the model of rank ``root``, in place. Ranks whose models differ in a name, a type or a shape all get an error that says where. Collective.
///
/// ``tensors``: name, buffer and shape of each.
#[pyfunction]
#[pyo3(signature = (group, tensors, root=0, *, site=None))]
pub(crate) fn sync_model(
    py: Python<'_>,
    group: &Bound<'_, Group>,
    tensors: Vec<(String, Bound<'_, PyAny>, Vec<usize>)>,
    root: usize,
    site: Option<Bound<'_, Site>>,
) -> PyResult<()> {
    let site = site.map_or_else(|| caller(py), |site| site.get().0.clone());
    let mut model = Vec::with_capacity(tensors.len());
    for (name, buffer, dims) in tensors {
        let region = tensor(&name, &buffer, &dims)?;
        model.push((name, Gradient::of(region, dims)));
    }
    let group = group.get().held()?;
    let at = group.with_call_site(site);
    step(py, &group, |_| {
        phalanx_train::sync_model(model.iter_mut().map(|(name, tensor)| (name.as_str(), tensor)), &at, root)
    })
}
