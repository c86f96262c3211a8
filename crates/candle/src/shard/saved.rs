//! The weights of all ranks together: into a `VarMap`, into a checkpoint, and back.

use crate::Result;
use crate::checkpoint::{load_vars, save_vars};
use crate::element::{bytes_mut, read, with_element};
use crate::sendable::Candle;
use crate::shard::sharded::Sharded;
use candle_core::{Device, Var, WithDType};
use candle_nn::VarMap;
use phalanx_checkpoint::{Checkpoint, State, Stateful};
use phalanx_train::checkpoint::Extent;
use phalanx_train::shard_parts::Flat;
use std::sync::PoisonError;

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
            for (flat, shard) in engine.flats().iter().zip(&engine.shards) {
                with_element!(shard.dtype(),
                    T => {
                        let mine = read::<T, _>(shard, <[T]>::to_vec)?;
                        let mut all = is_root.then(|| vec![T::from_f64(0.0); mine.len() * flat.world_size]);
                        self.group.gather(&mine, all.as_deref_mut(), root)?;
                        for (member, all) in flat.members.iter().filter_map(|m| Some((m, all.as_ref()?))) {
                            let values = all[member.place.clone()].to_vec();
                            let var = Var::from_vec(values, &*member.dims, &Device::Cpu)?;
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
        let find = |name: &str, dims: &[usize]| match data.get(name) {
            Some(var) if var.dims() == dims => Ok(var.as_detached_tensor()),
            Some(var) => candle_core::bail!("`{name}` has the shape {:?}, not {dims:?}", var.dims()),
            None => candle_core::bail!("`{name}` is missing"),
        };
        let buffers = self.buffers.data().lock().unwrap_or_else(PoisonError::into_inner);
        self.engine(|engine| -> Result<()> {
            for Extent { name, dims, .. } in engine.flats().iter().flat_map(Flat::extents) {
                find(&name, &dims)?;
            }
            for (name, buffer) in buffers.iter() {
                find(name, buffer.dims())?;
            }
            for (name, buffer) in buffers.iter() {
                buffer.set(&find(name, buffer.dims())?.to_dtype(buffer.dtype())?)?;
            }
            for (flat, shard) in engine.flats().iter().zip(&engine.shards) {
                for Extent { name, dims, elements, in_slice } in flat.extents() {
                    let values =
                        find(&name, &dims)?.flatten_all()?.narrow(0, elements.start, elements.len())?;
                    let values = values.to_dtype(shard.dtype())?;
                    let size = shard.dtype().size_in_bytes();
                    let place = in_slice.start * size..in_slice.end * size;
                    bytes_mut(&values, |values| {
                        bytes_mut(shard, |slice| slice[place].copy_from_slice(values))
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
            for flat in engine.flats() {
                let extents = flat.extents();
                extents.iter().for_each(|e| e.save::<Candle, _>(prefix, flat.shard.clone(), state));
            }
        });
        save_vars(&self.buffers, prefix, state)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> phalanx_checkpoint::Result<()> {
        self.engine(|engine| engine.load(prefix, from))?;
        load_vars(&self.buffers, prefix, from)
    }
}
