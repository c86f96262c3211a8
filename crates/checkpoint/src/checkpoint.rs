//! A checkpoint that is to be loaded.

use crate::file::Finding;
use crate::manifest::{self, Manifest, Wrong};
use crate::state::own_name;
use crate::{Error, Result, TensorInfo, file};
use phalanx::Element;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A checkpoint whose files were found to be those that were written.
///
/// It can be read by any number of ranks, each as much as it needs: nothing here is collective, and nothing is read before it is
/// asked for.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Reads the text of a manifest.
    pub(crate) fn new(path: PathBuf, step: u64, manifest: &str) -> Result<Self> {
        let wrong = |what: Wrong| match what {
            Wrong::Damaged(what) => {
                Error::Damaged { path: path.clone(), findings: vec![format!("{} {what}", manifest::NAME)] }
            }
            Wrong::OtherFormat(found) => {
                Error::OtherFormat { path: path.clone(), found, known: manifest::FORMAT }
            }
        };
        let manifest = Manifest::open(manifest).map_err(wrong)?;
        if manifest.step != step {
            return Err(wrong(Wrong::Damaged(format!("is that of step {}", manifest.step))));
        }
        Ok(Self { path, manifest })
    }

    /// Checks the files on behalf of one rank: each file is hashed by one of the ranks, and looked at by all.
    pub(crate) fn findings(&self, rank: usize, world_size: usize) -> Vec<Finding> {
        let check = |(i, info)| match i % world_size == rank {
            true => file::verify(&self.path, info),
            false => file::verify_size(&self.path, info),
        };
        self.manifest.files.iter().enumerate().filter_map(|file| check(file).err()).collect()
    }

    /// The folder.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// checkpoints.save(7, State::new())?;
    /// assert!(checkpoints.load(7)?.path().starts_with(folder.path()));
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The step that was saved.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// checkpoints.save(7, State::new())?;
    /// assert_eq!(checkpoints.latest_good()?.expect("one was saved").step(), 7);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// How many ranks have saved it.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// checkpoints.save(7, State::new())?;
    /// assert_eq!(checkpoints.load(7)?.world_size(), 1); // a group of one has saved it
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn world_size(&self) -> usize {
        self.manifest.world_size
    }

    /// The same checkpoint as rank `rank` has saved it: what it had for itself, as [`State::of_rank`](crate::State::of_rank) says, stands
    /// under the names that it gave. Of a rank that was not there nothing is found.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.of_rank(0, |own| Ok(own.slice("velocity", &[2], &[0.5f32, 0.25])))?;
    /// checkpoints.save(7, state)?;
    /// let found = checkpoints.load(7)?;
    /// assert_eq!(found.of_rank(0).read::<f32>("velocity")?, [0.5, 0.25]);
    /// assert!(found.of_rank(1).read::<f32>("velocity").is_err()); // there was no such rank
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    #[must_use]
    pub fn of_rank(&self, rank: usize) -> Self {
        let mut manifest = self.manifest.clone();
        let suffix = own_name("", rank);
        let own: Vec<_> = manifest.tensors.keys().filter(|name| name.ends_with(&suffix)).cloned().collect();
        for mut name in own {
            if let Some(tensor) = manifest.tensors.remove(&name) {
                name.truncate(name.len() - suffix.len());
                manifest.tensors.insert(name, tensor);
            }
        }
        manifest.values.extend(
            self.manifest
                .rank_values
                .get(rank)
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        Self { path: self.path.clone(), manifest }
    }

    /// The same checkpoint with other names for some of its tensors: each pair is the name under which one was saved, and the one under which it stands
    /// afterwards. All others keep theirs. It is for a model that has other names than the one that was saved, as that of another library has.
    ///
    /// # Errors
    /// [`Missing`](Error::Missing) for a name that is not there; [`SameName`](Error::SameName) for one that two tensors would have.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.slice("model.norm.gamma", &[2], &[0.5f32, 0.25]);
    /// checkpoints.save(7, state)?;
    /// let found = checkpoints.load(7)?.renamed([("model.norm.gamma", "model.norm.weight")])?;
    /// assert_eq!(found.read::<f32>("model.norm.weight")?, [0.5, 0.25]);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn renamed<S: AsRef<str>, N: Into<String>>(
        &self,
        names: impl IntoIterator<Item = (S, N)>,
    ) -> Result<Self> {
        let mut manifest = self.manifest.clone();
        let mut moved = Vec::new();
        for (saved, name) in names {
            let saved = saved.as_ref();
            let tensor = manifest.tensors.remove(saved);
            moved.push((name.into(), tensor.ok_or_else(|| self.missing(format!("tensor `{saved}`")))?));
        }
        for (name, tensor) in moved {
            if manifest.tensors.contains_key(&name) {
                return Err(Error::SameName { name });
            }
            manifest.tensors.insert(name, tensor);
        }
        Ok(Self { path: self.path.clone(), manifest })
    }

    /// The tensors, by name.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.slice("bias", &[2], &[0.0f32; 2]);
    /// state.slice("weight", &[2, 3], &[1.0f32; 6]);
    /// checkpoints.save(7, state)?;
    /// let found = checkpoints.load(7)?;
    /// let names: Vec<_> = found.tensors().map(|(name, info)| format!("{name}: {info}")).collect();
    /// assert_eq!(names, ["bias: f32 [2]", "weight: f32 [2, 3]"]);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.manifest.tensors.iter().map(|(name, tensor)| (name.as_str(), &tensor.info))
    }

    /// Reads all elements of a tensor, in row-major order.
    ///
    /// # Errors
    /// [`Missing`](Error::Missing); [`OtherTensor`](Error::OtherTensor) if its elements are of another type; [`Io`](Error::Io).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.slice("weight", &[2, 2], &[1.0f32, 2.0, 3.0, 4.0]);
    /// checkpoints.save(7, state)?;
    /// let found = checkpoints.load(7)?;
    /// assert_eq!(found.read::<f32>("weight")?, [1.0, 2.0, 3.0, 4.0]);
    /// assert!(found.read::<f64>("weight").is_err());
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn read<T: Element>(&self, name: &str) -> Result<Vec<T>> {
        let found = &self.tensor(name)?.info;
        let expected = TensorInfo { dtype: T::DTYPE, shape: found.shape.clone() };
        let elements = found.elements().filter(|_| expected == *found).ok_or_else(|| Error::OtherTensor {
            name: name.to_owned(),
            expected,
            found: found.clone(),
        })?;
        let mut all = vec![T::zeroed(); elements];
        self.read_bytes(name, 0..elements, bytemuck::cast_slice_mut(&mut all))?;
        Ok(all)
    }

    /// Fills `buffer` with the bytes of a range of the flattened tensor's elements, wherever they lie: a rank that has only part of a
    /// tensor reads that part, however it was dealt out when it was saved.
    ///
    /// # Errors
    /// [`Missing`](Error::Missing) also if the tensor has fewer elements; [`Io`](Error::Io).
    ///
    /// # Panics
    /// If `buffer` has not exactly the range's length.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.slice("bytes", &[2, 2], &[1u8, 2, 3, 4]);
    /// checkpoints.save(7, state)?;
    /// let mut second_row = [0; 2];
    /// checkpoints.load(7)?.read_bytes("bytes", 2..4, &mut second_row)?;
    /// assert_eq!(second_row, [3, 4]);
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn read_bytes(&self, name: &str, elements: Range<usize>, buffer: &mut [u8]) -> Result<()> {
        let manifest::Tensor { info, places } = self.tensor(name)?;
        let (size, len) = (info.dtype.size(), info.elements().unwrap_or_default());
        if elements.start > elements.end || elements.end > len {
            return Err(self.missing(format!("elements {elements:?} of tensor `{name}`, {info},")));
        }
        assert_eq!(buffer.len(), elements.len() * size, "the buffer is as long as the range");
        for place in places {
            let start = place.elements.start.max(elements.start);
            let end = place.elements.end.min(elements.end);
            if start < end {
                let path = self.path.join(&self.manifest.files[place.file].name);
                let offset = place.offset + ((start - place.elements.start) * size) as u64;
                let buffer = &mut buffer[(start - elements.start) * size..(end - elements.start) * size];
                file::read(&path, offset, buffer)?;
            }
        }
        Ok(())
    }

    /// Type and shape of a tensor.
    ///
    /// # Errors
    /// [`Missing`](Error::Missing).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.slice("weight", &[2, 2], &[1.0f32; 4]);
    /// checkpoints.save(7, state)?;
    /// let found = checkpoints.load(7)?;
    /// assert_eq!(found.info("weight")?.shape, [2, 2]);
    /// assert!(found.info("bias").is_err());
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        Ok(&self.tensor(name)?.info)
    }

    /// A value that all ranks had alike.
    ///
    /// # Errors
    /// [`Missing`](Error::Missing); [`Value`](Error::Value) if it is not of this type.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.value("epoch", &4)?;
    /// checkpoints.save(7, state)?;
    /// let found = checkpoints.load(7)?;
    /// assert_eq!(found.value::<u64>("epoch")?, 4);
    /// assert!(found.value::<String>("epoch").is_err());
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn value<V: DeserializeOwned>(&self, name: &str) -> Result<V> {
        let values = &self.manifest.values;
        self.of(values, name)?.ok_or_else(|| self.missing(format!("value `{name}`")))
    }

    /// A value that rank `rank` had for itself; `None` if it had none, or there was no such rank.
    ///
    /// # Errors
    /// [`Value`](Error::Value) if it is not of this type.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_checkpoint::{Checkpoints, State};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0])?;
    /// let mut state = State::new();
    /// state.rank_value("seed", &17)?;
    /// checkpoints.save(7, state)?;
    /// let found = checkpoints.load(7)?;
    /// assert_eq!(found.rank_value::<u64>("seed", 0)?, Some(17));
    /// assert_eq!(found.rank_value::<u64>("seed", 1)?, None); // there was no such rank
    /// # Ok::<(), phalanx_checkpoint::Error>(())
    /// ```
    pub fn rank_value<V: DeserializeOwned>(&self, name: &str, rank: usize) -> Result<Option<V>> {
        self.manifest.rank_values.get(rank).map_or(Ok(None), |values| self.of(values, name))
    }

    fn of<V: DeserializeOwned>(&self, values: &BTreeMap<String, Value>, name: &str) -> Result<Option<V>> {
        let read = |value: &Value| {
            let wrong = |error| Error::Value {
                name: name.to_owned(),
                what: format!("in {}: {error}", self.path.display()),
            };
            self.manifest.decode(value).map_err(wrong)
        };
        values.get(name).map(read).transpose()
    }

    fn tensor(&self, name: &str) -> Result<&manifest::Tensor> {
        self.manifest.tensors.get(name).ok_or_else(|| self.missing(format!("tensor `{name}`")))
    }

    fn missing(&self, what: String) -> Error {
        Error::Missing { what, path: self.path.clone() }
    }
}
