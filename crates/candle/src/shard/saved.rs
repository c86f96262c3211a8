//! The weights of all ranks together: into a `VarMap`, into a checkpoint, and back.

use crate::Result;
use crate::checkpoint::{copied, fits, info, load_vars, read_part, save_vars};
use crate::element::{bytes_mut, read, with_element};
use crate::shard::flat::{Flat, kept, pieces};
use crate::shard::sharded::Sharded;
use candle_core::{Device, Shape, Tensor, Var, WithDType};
use candle_nn::VarMap;
use phalanx_checkpoint::{Checkpoint, State, Stateful, TensorInfo};
use std::ops::Range;
use std::sync::PoisonError;

/// Elements of a named tensor of the model, and where they lie in this rank's slice of a flat.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    pub(crate) name: String,
    shape: Shape,
    elements: Range<usize>,
    in_slice: Range<usize>,
}

impl Flat {
    /// The ranges of all members that are in this rank's slice; empty for members that are others'.
    pub(crate) fn extents(&self) -> Vec<Extent> {
        let extent = |member: &crate::shard::flat::Member| {
            let own = pieces(&member.place, self.slice).find(|piece| piece.rank == self.rank);
            let (elements, in_slice) = own.map_or((0..0, 0..0), |own| (own.in_member, own.in_slice));
            Extent { name: member.name.clone(), shape: member.tensor.shape().clone(), elements, in_slice }
        };
        self.members.iter().map(extent).collect()
    }
}

impl Extent {
    fn info(&self, slice: &Tensor) -> phalanx_checkpoint::Result<TensorInfo> {
        Ok(TensorInfo { shape: self.shape.dims().to_vec(), ..info(slice)? })
    }

    /// Adds what this rank has of the tensor in `slice` to a state, under `prefix`, a dot, and its name.
    pub(crate) fn save(
        &self,
        prefix: &str,
        slice: &Tensor,
        state: &mut State<'_>,
    ) -> phalanx_checkpoint::Result<()> {
        let (copy, range) = (copied(slice), self.in_slice.clone());
        state.part(format!("{prefix}.{}", self.name), self.info(slice)?, self.elements.clone(), move || {
            copy(range.clone())
        });
        Ok(())
    }

    /// Whether a checkpoint has such a tensor.
    pub(crate) fn fits(
        &self,
        prefix: &str,
        slice: &Tensor,
        from: &Checkpoint,
    ) -> phalanx_checkpoint::Result<()> {
        fits(&format!("{prefix}.{}", self.name), self.info(slice)?, from)
    }

    /// Reads what this rank has of it into `slice`.
    pub(crate) fn load(
        &self,
        prefix: &str,
        slice: &Tensor,
        from: &Checkpoint,
    ) -> phalanx_checkpoint::Result<()> {
        let name = format!("{prefix}.{}", self.name);
        read_part(&name, self.elements.clone(), slice, self.in_slice.start, from)
    }
}

impl<M> Sharded<M> {
    /// Gathers all weights and buffers, by name, on rank `root`; `None` elsewhere. For a file that candle reads, or for a model that is not dealt out.
    /// Collective.
    ///
    /// # Cost
    /// Rank `root` gets all weights, in the type in which they are kept.
    ///
    /// # Errors
    /// Those of [`gather`](phalanx::ProcessGroup::gather).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::DType;
    /// # use phalanx_candle::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| candle_nn::linear(3, 2, vb))?;
    /// if let Some(weights) = zero.export(0)? {
    ///     assert_eq!(weights.data().lock().unwrap()["weight"].dims(), [2, 3]);
    ///     // weights.save("model.safetensors")?;
    /// }
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn export(&self, root: usize) -> Result<Option<VarMap>> {
        let varmap = VarMap::new();
        let is_root = self.group.rank() == root;
        self.engine(|engine| -> Result<()> {
            for flat in &engine.flats {
                with_element!(kept(flat.dtype),
                    T => {
                        let mine = read::<T, _>(&flat.shard, <[T]>::to_vec)?;
                        let mut all = is_root.then(|| vec![T::from_f64(0.0); mine.len() * flat.world_size]);
                        self.group.gather(&mine, all.as_deref_mut(), root)?;
                        for (member, all) in flat.members.iter().filter_map(|m| Some((m, all.as_ref()?))) {
                            let values = all[member.place.clone()].to_vec();
                            let var = Var::from_vec(values, member.tensor.shape(), &Device::Cpu)?;
                            insert(&varmap, &member.name, var);
                        }
                    },
                    _ => unreachable!("weights are floats"),
                );
            }
            Ok(())
        })?;
        for (name, var) in self.buffers.data().lock().unwrap_or_else(PoisonError::into_inner).iter() {
            insert(&varmap, name, Var::from_tensor(&var.as_detached_tensor())?);
        }
        Ok(is_root.then_some(varmap))
    }

    /// Makes weights and buffers what they are in `varmap`, which all ranks have alike: what a file has, or a model that was not dealt out.
    /// Not collective. More names in `varmap` are left alone.
    ///
    /// # Errors
    /// Candle's, with the name, for one that is missing or has another shape: nothing was changed.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// use phalanx_candle::Sharded;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// let zero = Sharded::build(DType::F32, group, Default::default(), |_, vb| candle_nn::linear(2, 1, vb))?;
    /// let varmap = VarMap::new(); // or one that a file was loaded into
    /// varmap.get((1, 2), "weight", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// varmap.get(1, "bias", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// zero.import(&varmap)?;
    /// let weight = zero.forward(|model| model.weight().to_vec2::<f32>())?;
    /// assert_eq!(weight, [[1.0, 1.0]]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn import(&self, varmap: &VarMap) -> Result<()> {
        let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
        let find = |name: &str, shape: &Shape| match data.get(name) {
            Some(var) if var.shape() == shape => Ok(var.as_detached_tensor()),
            Some(var) => candle_core::bail!("`{name}` has the shape {:?}, not {shape:?}", var.shape()),
            None => candle_core::bail!("`{name}` is missing"),
        };
        let buffers = self.buffers.data().lock().unwrap_or_else(PoisonError::into_inner);
        self.engine(|engine| -> Result<()> {
            for Extent { name, shape, .. } in engine.flats.iter().flat_map(Flat::extents) {
                find(&name, &shape)?;
            }
            for (name, buffer) in buffers.iter() {
                find(name, buffer.shape())?;
            }
            for (name, buffer) in buffers.iter() {
                buffer.set(&find(name, buffer.shape())?.to_dtype(buffer.dtype())?)?;
            }
            for flat in &engine.flats {
                for Extent { name, shape, elements, in_slice } in flat.extents() {
                    let values =
                        find(&name, &shape)?.flatten_all()?.narrow(0, elements.start, elements.len())?;
                    let values = values.to_dtype(flat.shard.dtype())?;
                    let size = flat.shard.dtype().size_in_bytes();
                    let place = in_slice.start * size..in_slice.end * size;
                    bytes_mut(&values, |values| {
                        bytes_mut(&flat.shard, |slice| slice[place].copy_from_slice(values))
                    })??;
                }
            }
            Ok(())
        })
    }
}

fn insert(varmap: &VarMap, name: &str, var: Var) {
    varmap.data().lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), var);
}

/// Weights, and rank 0's buffers, by name, as [`save_vars`] saves those of a model that is not dealt out: checkpoints of the one are loaded by the other, on
/// any number of ranks, with any [`Stage`](crate::Stage).
impl<M> Stateful for Sharded<M> {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> phalanx_checkpoint::Result<()> {
        self.engine(|engine| {
            let mut flats = engine.flats.iter();
            flats.try_for_each(|flat| {
                flat.extents().iter().try_for_each(|e| e.save(prefix, &flat.shard, state))
            })
        })?;
        save_vars(&self.buffers, prefix, state)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> phalanx_checkpoint::Result<()> {
        self.engine(|engine| -> phalanx_checkpoint::Result<()> {
            for flat in &engine.flats {
                flat.extents().iter().try_for_each(|extent| extent.fits(prefix, &flat.shard, from))?;
            }
            for flat in &engine.flats {
                flat.extents().iter().try_for_each(|extent| extent.load(prefix, &flat.shard, from))?;
            }
            Ok(())
        })?;
        load_vars(&self.buffers, prefix, from)
    }
}
