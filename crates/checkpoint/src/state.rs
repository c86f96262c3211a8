//! The state that one rank gives to a checkpoint.

use crate::{Error, Result, TensorInfo, value};
use phalanx::Element;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Gives the bytes of a range of a tensor's elements, in row-major order and the machine's byte order.
pub(crate) type Copy<'a> = dyn Fn(Range<usize>) -> Result<Vec<u8>> + 'a;

/// A tensor that all ranks have alike.
pub(crate) struct Whole<'a> {
    pub(crate) name: String,
    pub(crate) info: TensorInfo,
    pub(crate) copy: Box<Copy<'a>>,
}

/// A run of elements that only this rank has.
pub(crate) struct Piece<'a> {
    pub(crate) name: String,
    pub(crate) info: TensorInfo,
    pub(crate) elements: Range<usize>,
    pub(crate) copy: Box<Copy<'a>>,
}

/// The state that a rank gives to be saved: tensors by name, and small values.
///
/// Tensors that all ranks have alike, as the weights of data-parallel training, are given by each rank, and each writes its part of
/// them. Of a tensor that is dealt out, each rank gives the range of the flattened elements that it has. Nothing is copied before
/// [`Checkpoints::save`](crate::Checkpoints::save), and then only what this rank writes.
#[derive(Default)]
pub struct State<'a> {
    pub(crate) wholes: Vec<Whole<'a>>,
    /// Tensors that may differ between ranks; rank 0's are saved.
    pub(crate) of_rank_0: Vec<Whole<'a>>,
    pub(crate) pieces: Vec<Piece<'a>>,
    pub(crate) values: BTreeMap<String, Value>,
    pub(crate) rank_values: BTreeMap<String, Value>,
    /// Mistakes in these, in sentences. All ranks hear them when they are saved.
    pub(crate) wrong: Vec<String>,
}

impl<'a> State<'a> {
    /// Nothing, yet.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// checkpoints.save(7, State::new())?;
    /// assert_eq!(checkpoints.load(7)?.tensors().count(), 0);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor that is the same on all ranks. One that has not as many elements as `shape` says is refused when it is saved.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let weight = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    /// let mut state = State::new();
    /// state.slice("weight", &[2, 3], &weight);
    /// checkpoints.save(7, state)?;
    /// assert_eq!(checkpoints.load(7)?.read::<f32>("weight")?, weight);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn slice<T: Element>(&mut self, name: impl Into<String>, shape: &[usize], elements: &'a [T]) {
        let (name, info) = (name.into(), TensorInfo { dtype: T::DTYPE, shape: shape.to_vec() });
        if info.elements() != Some(elements.len()) {
            self.wrong.push(format!("tensor `{name}`, {info}, was given {} elements", elements.len()));
        }
        self.tensor(name, info, move |range| Ok(bytemuck::cast_slice(&elements[range]).to_vec()));
    }

    /// Adds a tensor that is the same on all ranks, and that `copy` copies: it is called with each range of its elements that this rank is
    /// to write, at most once for a save, and returns their bytes in row-major order.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// use phalanx::DType;
    /// use phalanx_checkpoint::TensorInfo;
    ///
    /// let bytes = [1u8, 2, 3, 4]; // or what a device has
    /// let mut state = State::new();
    /// let info = TensorInfo { dtype: DType::U8, shape: vec![2, 2] };
    /// state.tensor("bytes", info, |elements| Ok(bytes[elements].to_vec()));
    /// checkpoints.save(7, state)?;
    /// assert_eq!(checkpoints.load(7)?.read::<u8>("bytes")?, bytes);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        info: TensorInfo,
        copy: impl Fn(Range<usize>) -> Result<Vec<u8>> + 'a,
    ) {
        self.wholes.push(Whole { name: name.into(), info, copy: Box::new(copy) });
    }

    /// Adds a tensor as [`tensor`](Self::tensor), of which each rank may have another: all of it is rank 0's, which writes it. Such are the
    /// running statistics of batch normalisation, each rank's of its own samples: parts of several ranks' would be nobody's.
    ///
    /// # Examples
    /// ```
    /// use phalanx::{DType, on_threads};
    /// use phalanx_checkpoint::{Checkpoints, State, TensorInfo};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// on_threads(2, |group| {
    ///     let mean = [group.rank() as u8; 4]; // of this rank's samples
    ///     let mut state = State::new();
    ///     let info = TensorInfo { dtype: DType::U8, shape: vec![4] };
    ///     state.tensor_of_rank_0("running_mean", info, |elements| Ok(mean[elements].to_vec()));
    ///     let mut checkpoints = Checkpoints::open(folder, &group).unwrap();
    ///     checkpoints.save(7, state).unwrap();
    ///     assert_eq!(checkpoints.load(7).unwrap().read::<u8>("running_mean").unwrap(), [0; 4]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn tensor_of_rank_0(
        &mut self,
        name: impl Into<String>,
        info: TensorInfo,
        copy: impl Fn(Range<usize>) -> Result<Vec<u8>> + 'a,
    ) {
        self.of_rank_0.push(Whole { name: name.into(), info, copy: Box::new(copy) });
    }

    /// Adds this rank's part of a tensor that is dealt out over the ranks: `elements` are those from `start` of the flattened tensor.
    /// Together the parts of all ranks must make the whole, without overlap. Rows of a tensor that is split along its first
    /// dimension are such a part too.
    ///
    /// # Examples
    /// ```
    /// use phalanx::on_threads;
    /// use phalanx_checkpoint::{Checkpoints, State};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// on_threads(2, |group| {
    ///     let row = [group.rank() as f32; 3]; // one of the two rows of a matrix
    ///     let mut state = State::new();
    ///     state.piece("matrix", &[2, 3], 3 * group.rank(), &row);
    ///     let mut checkpoints = Checkpoints::open(folder, &group).unwrap();
    ///     checkpoints.save(7, state).unwrap();
    ///     let matrix = checkpoints.load(7).unwrap().read::<f32>("matrix").unwrap();
    ///     assert_eq!(matrix, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn piece<T: Element>(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        start: usize,
        elements: &'a [T],
    ) {
        let info = TensorInfo { dtype: T::DTYPE, shape: shape.to_vec() };
        let range = start..start.saturating_add(elements.len());
        self.part(name, info, range, || Ok(bytemuck::cast_slice(elements).to_vec()));
    }

    /// Adds this rank's part of a tensor that is dealt out, as [`piece`](Self::piece): the `elements` of the flattened tensor that `copy` copies. It is
    /// called at most once for a save, and returns their bytes in the machine's byte order.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// use phalanx::DType;
    /// use phalanx_checkpoint::TensorInfo;
    ///
    /// let (one, other) = ([1u8, 2, 3], [4u8]); // here one rank has both parts
    /// let mut state = State::new();
    /// let info = TensorInfo { dtype: DType::U8, shape: vec![4] };
    /// state.part("bytes", info.clone(), 0..3, || Ok(one.to_vec()));
    /// state.part("bytes", info, 3..4, || Ok(other.to_vec()));
    /// checkpoints.save(7, state)?;
    /// assert_eq!(checkpoints.load(7)?.read::<u8>("bytes")?, [1, 2, 3, 4]);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn part(
        &mut self,
        name: impl Into<String>,
        info: TensorInfo,
        elements: Range<usize>,
        copy: impl Fn() -> Result<Vec<u8>> + 'a,
    ) {
        // It is asked for as it was given: whole.
        self.pieces.push(Piece { name: name.into(), info, elements, copy: Box::new(move |_| copy()) });
    }

    /// Adds what `fill` adds, as rank `rank`'s own: tensors and values of which every rank has other ones under the same name, such as the
    /// moments of an optimizer that has seen only this rank's data. Each rank writes its own, tensors as `name@rank`, and
    /// finds them by [`Checkpoint::of_rank`](crate::Checkpoint::of_rank).
    ///
    /// # Errors
    /// Those of `fill`.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, Result};
    /// # fn on(group: &phalanx::ProcessGroup, folder: &std::path::Path) -> Result<()> {
    /// # let mut checkpoints = Checkpoints::open(folder, group)?;
    /// use phalanx_checkpoint::State;
    ///
    /// let (rank, velocity) = (group.rank(), [group.rank() as f32; 10]);
    /// let mut state = State::new();
    /// state.of_rank(rank, |own| Ok(own.slice("velocity", &[10], &velocity)))?;
    /// checkpoints.save(1, state)?;
    ///
    /// let found = checkpoints.latest_good()?.expect("it was saved");
    /// let own = found.of_rank(rank % found.world_size()); // some rank's, where there are more now
    /// assert_eq!(own.read::<f32>("velocity")?, velocity);
    /// # Ok(()) }
    /// # let folder = std::env::temp_dir().join(format!("phalanx-checkpoint-of-rank-{}", std::process::id()));
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { let folder = &folder; s.spawn(move || on(&group, folder).unwrap()); });
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// ```
    pub fn of_rank(&mut self, rank: usize, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut own = Self::new();
        fill(&mut own)?;
        self.pieces.extend(own.wholes.into_iter().chain(own.of_rank_0).map(|Whole { name, info, copy }| {
            // One that is larger than memory is refused when it is saved.
            let elements = 0..info.elements().unwrap_or_default();
            Piece { name: own_name(&name, rank), info, elements, copy }
        }));
        self.pieces.append(&mut own.pieces);
        self.rank_values.append(&mut own.values);
        self.rank_values.append(&mut own.rank_values);
        self.wrong.append(&mut own.wrong);
        Ok(())
    }

    /// Adds a value that is the same on all ranks, such as the place in the data set; rank 0's is written, as JSON. Every bit of it comes back, of
    /// infinities and NaN, too.
    ///
    /// # Errors
    /// [`Error::Value`] if serde cannot make JSON of it, or if it is nested more than 100 deep.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.value("loss", &f64::NAN)?;
    /// state.value("place", &(4, "digits"))?;
    /// checkpoints.save(7, state)?;
    /// let found = checkpoints.load(7)?;
    /// assert!(found.value::<f64>("loss")?.is_nan());
    /// assert_eq!(found.value::<(u64, String)>("place")?, (4, "digits".to_owned()));
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn value(&mut self, name: impl Into<String>, value: &impl Serialize) -> Result<()> {
        insert(&mut self.values, name.into(), value)
    }

    /// Adds a value that each rank has for itself, such as its random state.
    ///
    /// # Errors
    /// [`Error::Value`] if serde cannot make JSON of it.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.rank_value("random state", &[17u64, 23])?;
    /// checkpoints.save(7, state)?;
    /// assert_eq!(checkpoints.load(7)?.rank_value::<[u64; 2]>("random state", 0)?, Some([17, 23]));
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn rank_value(&mut self, name: impl Into<String>, value: &impl Serialize) -> Result<()> {
        insert(&mut self.rank_values, name.into(), value)
    }
}

/// The name of the tensor that rank `rank` calls `name`.
pub(crate) fn own_name(name: &str, rank: usize) -> String {
    format!("{name}@{rank}")
}

fn insert(values: &mut BTreeMap<String, Value>, name: String, value: &impl Serialize) -> Result<()> {
    match value::encode(value) {
        Ok(value) => {
            values.insert(name, value);
            Ok(())
        }
        Err(error) => Err(Error::Value { name, what: format!("it can't be made JSON: {error}") }),
    }
}

impl fmt::Debug for State<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wholes = self.wholes.iter().chain(&self.of_rank_0).map(|whole| (&whole.name, &whole.info));
        let pieces = self.pieces.iter().map(|piece| (&piece.name, &piece.elements));
        f.debug_struct("State")
            .field("tensors", &wholes.collect::<BTreeMap<_, _>>())
            .field("pieces", &pieces.collect::<Vec<_>>())
            .field("values", &self.values)
            .field("rank_values", &self.rank_values)
            .finish()
    }
}
