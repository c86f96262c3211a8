//! Values as JSON from which every bit comes back.
//!
//! JSON has no infinities and no NaN. Such a number is written as an object with one key, `{"$f64": "7ff0000000000000"}`: its bits, as hexadecimal
//! digits. An object of the program's own that has one key, and that begins with `$`, gets another `$` before it. So nothing is mistaken for the other.

mod decode;
mod encode;
mod marks;

use marks::ESCAPE;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Error, Value};

/// Levels of a value within another: the parser of JSON takes no more than 128, of which the manifest has some itself.
const DEPTH_MAX: usize = 100;

/// Encodes `value` as JSON.
pub(crate) fn encode(value: &impl Serialize) -> Result<Value, Error> {
    let encoded = value.serialize(encode::Encode)?;
    match depth(&encoded, 0) > DEPTH_MAX {
        true => Err(serde::ser::Error::custom(format_args!("it is nested more than {DEPTH_MAX} deep"))),
        false => Ok(encoded),
    }
}

/// Decodes the value that was encoded.
pub(crate) fn decode<V: DeserializeOwned>(value: &Value) -> Result<V, Error> {
    V::deserialize(decode::Decode(value))
}

/// Whether something in it is not what plain JSON would be.
pub(crate) fn is_special(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().any(is_special),
        Value::Object(map) => {
            let is_mark = map.len() == 1 && map.keys().any(|key| key.starts_with(ESCAPE));
            is_mark || map.values().any(is_special)
        }
        _ => false,
    }
}

fn depth(value: &Value, above: usize) -> usize {
    // Of what is deeper it does not matter by how much: this is no recursion without an end.
    if above > DEPTH_MAX {
        return above;
    }
    let deepest =
        |values: &mut dyn Iterator<Item = &Value>| values.map(|value| depth(value, above + 1)).max();
    match value {
        Value::Array(values) => deepest(&mut values.iter()).unwrap_or(above + 1),
        Value::Object(map) => deepest(&mut map.values()).unwrap_or(above + 1),
        _ => above,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    fn back<V: Serialize + DeserializeOwned>(value: &V) -> V {
        // As text, as it is on the disk.
        let text = serde_json::to_string(&encode(value).unwrap()).unwrap();
        decode(&serde_json::from_str(&text).unwrap()).unwrap()
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Kind {
        Unit,
        New(f32),
        Tuple(u8, Option<f64>),
        Struct { best: f64, of: Vec<f32> },
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Unit;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Wrapped(f64);

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(f64),
        Text(String),
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Everything {
        kinds: Vec<Kind>,
        unit: (Unit, ()),
        wrapped: Wrapped,
        by_number: BTreeMap<i32, Kind>,
        by_flag: BTreeMap<bool, char>,
        by_kind: BTreeMap<String, Option<Wrapped>>,
        untagged: Vec<Untagged>,
        #[serde(flatten)]
        rest: BTreeMap<String, f64>,
        bytes: Vec<u8>,
        large: (u64, i64, u128),
        #[serde(skip_serializing_if = "Option::is_none", default)]
        absent: Option<u8>,
    }

    #[test]
    fn whatever_serde_knows_comes_back() {
        let infinite = f64::INFINITY;
        let everything = Everything {
            kinds: vec![
                Kind::Unit,
                Kind::New(f32::NEG_INFINITY),
                Kind::Tuple(1, Some(-infinite)),
                Kind::Tuple(2, None),
                Kind::Struct { best: infinite, of: vec![1.5, f32::INFINITY] },
            ],
            unit: (Unit, ()),
            wrapped: Wrapped(infinite),
            by_number: [(-3, Kind::Unit), (7, Kind::New(0.1))].into(),
            by_flag: [(true, 'é')].into(),
            by_kind: [("$f64".to_owned(), Some(Wrapped(1.0)))].into(),
            untagged: vec![Untagged::Number(-infinite), Untagged::Text("$f64".into()), Untagged::Number(2.0)],
            rest: [("loss".to_owned(), infinite), ("mean".to_owned(), 0.1)].into(),
            bytes: vec![0, 255],
            large: (u64::MAX, i64::MIN, 7),
            absent: None,
        };
        assert_eq!(back(&everything), everything);
        assert_eq!(back(&Value::Null), Value::Null);
        let own = serde_json::json!({"$": 1, "x": [{"$f64": "7ff0000000000000"}, {"$$f32": null}, {"$f64": 1, "b": 2}]});
        assert_eq!(back(&own), own);
        assert_eq!(
            back(&serde_json::json!({"$f64": "7ff0000000000000"})),
            serde_json::json!({"$f64": "7ff0000000000000"})
        );
        let raw = serde_json::value::RawValue::from_string("[1,2]".into()).unwrap();
        assert_eq!(encode(&raw).unwrap(), serde_json::json!([1, 2]));
    }

    #[test]
    fn what_cannot_come_back_is_refused() {
        let told = |error: Error| error.to_string();
        let nested = (0..120).fold(Value::from(1), |inner, _| Value::Array(vec![inner]));
        assert_eq!(told(encode(&nested).unwrap_err()), "it is nested more than 100 deep");
        encode(&(0..99).fold(Value::from(1), |inner, _| Value::Array(vec![inner]))).unwrap();
        assert!(encode(&u128::MAX).is_err());
        assert!(encode(&BTreeMap::from([((1, 2), 3)])).is_err(), "keys are text");
        for (value, expected) in [
            (serde_json::json!({"$f64": "7ff000000000000"}), "invalid type: map, expected f64"),
            (serde_json::json!({"$f64": "zzzzzzzzzzzzzzzz"}), "invalid type: map, expected f64"),
            (Value::Null, "invalid type: null, expected f64"),
        ] {
            let error = told(decode::<f64>(&value).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_bit_of_a_number_comes_back(
            wide in prop_oneof![any::<u64>(), (0u64..8, 0u64..1 << 52).prop_map(|(sign, rest)| 0x7ff << 52 | (sign & 1) << 63 | rest)],
            narrow in prop_oneof![any::<u32>(), (0u32..2, 0u32..1 << 23).prop_map(|(sign, rest)| 0xff << 23 | sign << 31 | rest)],
        ) {
            let (found_wide, found_narrow) = back(&(f64::from_bits(wide), vec![f32::from_bits(narrow)]));
            prop_assert_eq!((found_wide.to_bits(), found_narrow[0].to_bits()), (wide, narrow));
        }
    }
}
