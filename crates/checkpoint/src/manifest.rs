//! The table of contents of a checkpoint. One that can be read, and whose hash is right, is what makes a folder a checkpoint.

use crate::TensorInfo;
use crate::layout::tiled;
use crate::value;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use twox_hash::XxHash3_64;

/// The file's name.
pub(crate) const NAME: &str = "manifest.json";

/// The newest format that this version reads. It writes the oldest that has all that is to be said.
pub(crate) const FORMAT: u32 = 2;

/// The format in which values are plain JSON.
const PLAIN: u32 = 1;

/// Why a text is no manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The manifest is not what was written. The words continue a sentence about it.
    Damaged(String),
    /// The manifest is of a format that this build does not know.
    OtherFormat(u32),
}

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self::Damaged(what)
    }
}

/// An XXH3 of 64 bits, written as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) u64);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A file beside the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileInfo {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) xxh3: Hash,
}

/// The place of a run of a tensor's elements in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) elements: Range<usize>,
    /// Index in the list of files.
    pub(crate) file: usize,
    /// The offset of the first byte, from the beginning of the file.
    pub(crate) offset: u64,
}

/// A tensor and where its elements lie, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tensor {
    #[serde(flatten)]
    pub(crate) info: TensorInfo,
    pub(crate) places: Vec<Place>,
}

/// Everything about a checkpoint but the tensors' bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) step: u64,
    pub(crate) world_size: usize,
    /// Each rank's, in rank order.
    pub(crate) files: Vec<FileInfo>,
    pub(crate) values: BTreeMap<String, Value>,
    /// Each rank's, in rank order.
    pub(crate) rank_values: Vec<BTreeMap<String, Value>>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

/// The manifest with a hash of its text.
#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    xxh3: Hash,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

impl Manifest {
    pub(crate) fn new(step: u64, files: Vec<FileInfo>, tensors: BTreeMap<String, Tensor>) -> Self {
        let (world_size, values, rank_values) = (files.len(), BTreeMap::new(), Vec::new());
        Self { format: PLAIN, step, world_size, files, values, rank_values, tensors }
    }

    /// Adds values, and each rank's own in rank order.
    pub(crate) fn with_values(
        self,
        values: BTreeMap<String, Value>,
        rank_values: Vec<BTreeMap<String, Value>>,
    ) -> Self {
        let mut all = rank_values.iter().flat_map(BTreeMap::values).chain(values.values());
        let format = if all.any(value::is_special) { FORMAT } else { PLAIN };
        Self { format, values, rank_values, ..self }
    }

    /// Decodes one of the values.
    pub(crate) fn decode<V: DeserializeOwned>(&self, value: &Value) -> serde_json::Result<V> {
        if self.format == PLAIN { V::deserialize(value) } else { value::decode(value) }
    }

    /// The text of the file.
    pub(crate) fn seal(&self) -> serde_json::Result<String> {
        let manifest = RawValue::from_string(serde_json::to_string_pretty(self)?)?;
        let xxh3 = Hash(XxHash3_64::oneshot(manifest.get().as_bytes()));
        serde_json::to_string(&Sealed { xxh3, manifest: &manifest })
    }

    /// Reads that text again, and believes nothing of it before it is checked.
    pub(crate) fn open(text: &str) -> Result<Self, Wrong> {
        let sealed: Sealed<'_> = serde_json::from_str(text).map_err(|error| format!("is torn: {error}"))?;
        let found = Hash(XxHash3_64::oneshot(sealed.manifest.get().as_bytes()));
        if found != sealed.xxh3 {
            return Err(format!("has hash {found}, and should have {}", sealed.xxh3).into());
        }
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let text = sealed.manifest.get();
        let Format { format } = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if !(PLAIN..=FORMAT).contains(&format) {
            return Err(Wrong::OtherFormat(format));
        }
        let manifest: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        for FileInfo { name, .. } in &self.files {
            if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
                return Err(format!("names a file `{name}`, which can't be in its folder"));
            }
        }
        for (name, Tensor { info, places }) in &self.tensors {
            let ranges: Vec<_> = places.iter().map(|place| &place.elements).collect();
            tiled(name, info, &ranges)?;
            for Place { elements, file, offset } in places {
                // Not more than the whole tensor, whose size was checked.
                let bytes = (elements.len() * info.dtype.size()) as u64;
                let file = self.files.get(*file).ok_or_else(|| format!("has no file {file} for `{name}`"))?;
                if offset.checked_add(bytes).is_none_or(|end| end > file.bytes) {
                    return Err(format!("places `{name}` beyond the end of {}", file.name));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx::DType;
    use proptest::prelude::*;

    fn sample() -> Manifest {
        let files = vec![
            FileInfo { name: "a.safetensors".into(), bytes: 100, xxh3: Hash(7) },
            FileInfo { name: "b.safetensors".into(), bytes: 50, xxh3: Hash(u64::MAX) },
        ];
        let places = vec![
            Place { elements: 0..4, file: 0, offset: 84 },
            Place { elements: 4..6, file: 1, offset: 42 },
        ];
        let tensor = Tensor { info: TensorInfo { dtype: DType::F32, shape: vec![2, 3] }, places };
        let mut manifest = Manifest::new(12, files, BTreeMap::from([("m".to_owned(), tensor)]));
        manifest.values.insert("loss".into(), serde_json::json!([0.1, 1e-300, 2.0f64.sqrt()]));
        manifest.rank_values = vec![BTreeMap::new(); 2];
        manifest
    }

    fn sealed(change: impl FnOnce(&mut Manifest)) -> String {
        let mut manifest = sample();
        change(&mut manifest);
        manifest.seal().unwrap()
    }

    #[test]
    fn what_is_sealed_comes_out_again() {
        assert_eq!(Manifest::open(&sealed(|_| ())).unwrap(), sample());
    }

    #[test]
    fn values_that_plain_json_has_are_of_the_first_format() {
        let infinite = value::encode(&f64::INFINITY).unwrap();
        let plain = BTreeMap::from([
            ("loss".to_owned(), Value::from(0.5)),
            ("own".to_owned(), serde_json::json!({"a": 1})),
        ]);
        let manifest = sample().with_values(plain.clone(), vec![plain.clone()]);
        assert_eq!(manifest.format, PLAIN);
        let manifest = manifest.with_values(plain, vec![BTreeMap::from([("best".to_owned(), infinite)])]);
        assert_eq!(manifest.format, FORMAT);
        let best = &manifest.rank_values[0]["best"];
        assert_eq!(manifest.decode::<f64>(best).unwrap(), f64::INFINITY);
        // What an older version has written is what it was then.
        let object = serde_json::json!({"$f64": "7ff0000000000000"});
        assert_eq!(sample().decode::<Value>(&object).unwrap(), object);
    }

    #[test]
    fn nonsense_with_a_right_hash_is_refused() {
        type Change = fn(&mut Manifest);
        for format in [0, FORMAT + 1] {
            let error = Manifest::open(&sealed(|m| m.format = format)).unwrap_err();
            assert_eq!(error, Wrong::OtherFormat(format));
        }
        let changes: [(Change, &str); 5] = [
            (|m| m.files[0].name = "../../etc/passwd".into(), "can't be in its folder"),
            (|m| m.tensors.get_mut("m").unwrap().places[1].elements = 4..7, "more than it has"),
            (|m| m.tensors.get_mut("m").unwrap().places[1].file = 9, "no file 9"),
            (|m| m.tensors.get_mut("m").unwrap().places[1].offset = u64::MAX, "beyond the end"),
            (|m| m.tensors.get_mut("m").unwrap().info.shape = vec![usize::MAX, 9], "larger than memory"),
        ];
        for (change, complaint) in changes {
            let Wrong::Damaged(error) = Manifest::open(&sealed(change)).unwrap_err() else {
                panic!("{complaint}")
            };
            assert!(error.contains(complaint), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_or_a_torn_end_is_noticed(at: prop::sample::Index, bit in 0u32..8, keep: prop::sample::Index) {
            let mut bytes = sealed(|_| ()).into_bytes();
            let torn = &bytes[..keep.index(bytes.len())];
            prop_assert!(Manifest::open(&String::from_utf8_lossy(torn)).is_err());
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            // The hash itself may be written in another case, or a space become another: then nothing has changed.
            if let Ok(manifest) = Manifest::open(&String::from_utf8_lossy(&bytes)) {
                prop_assert_eq!(manifest, sample());
            }
        }
    }
}
