//! Decoding: from JSON back to a program's value.

use super::marks::{ESCAPE, F32, F64};
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Map, Value, map};
use std::fmt;
use std::marker::PhantomData;
use std::slice;

/// As `serde_json`'s own of a value, but for numbers that JSON does not have.
pub(super) struct Decode<'de>(pub(super) &'de Value);

/// A number that JSON does not have.
enum Special {
    Wide(f64),
    Narrow(f32),
}

fn special(map: &Map<String, Value>) -> Option<Special> {
    let (key, value) = map.iter().next().filter(|_| map.len() == 1)?;
    let digits = value.as_str()?;
    match key.as_str() {
        F64 if digits.len() == 16 => {
            Some(Special::Wide(f64::from_bits(u64::from_str_radix(digits, 16).ok()?)))
        }
        F32 if digits.len() == 8 => {
            Some(Special::Narrow(f32::from_bits(u32::from_str_radix(digits, 16).ok()?)))
        }
        _ => None,
    }
}

/// The key that the program gave.
fn own_key<'k>(map: &Map<String, Value>, key: &'k str) -> &'k str {
    match map.len() == 1 && key.starts_with(ESCAPE) {
        true => key.strip_prefix(ESCAPE).unwrap_or(key),
        false => key,
    }
}

impl<'de> Deserializer<'de> for Decode<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(values) => {
                let mut items = Items(values.iter());
                let found = visitor.visit_seq(&mut items)?;
                match items.0.len() {
                    0 => Ok(found),
                    left => Err(Error::invalid_length(
                        values.len(),
                        &&*format!("{} elements", values.len() - left),
                    )),
                }
            }
            Value::Object(map) => match special(map) {
                Some(Special::Wide(value)) => visitor.visit_f64(value),
                Some(Special::Narrow(value)) => visitor.visit_f32(value),
                None => visitor.visit_map(Entries { map, entries: map.iter(), value: None }),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name.starts_with("$serde_json::") {
            true => self.0.deserialize_newtype_struct(name, visitor),
            false => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::String(variant) => visitor.visit_enum(Variant { name: variant, value: None }),
            Value::Object(map) if map.len() == 1 => {
                let (name, value) = map.iter().next().expect("it has one");
                visitor.visit_enum(Variant { name: own_key(map, name), value: Some(value) })
            }
            Value::Object(_) => {
                Err(Error::invalid_value(Unexpected::Map, &"a variant, as an object with one key"))
            }
            _ => Err(Error::custom("a variant is a text, or an object with one key")),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

struct Items<'de>(slice::Iter<'de, Value>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        self.0.next().map(|value| seed.deserialize(Decode(value))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Entries<'de> {
    map: &'de Map<String, Value>,
    entries: map::Iter<'de>,
    value: Option<&'de Value>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        // Keys may be numbers that became text: serde_json takes them apart, of an object with this one entry.
        let one = Map::from_iter([(own_key(self.map, key).to_owned(), Value::Null)]);
        Value::Object(one).deserialize_map(Key { seed, lifetime: PhantomData }).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let value = self.value.take().ok_or_else(|| Error::custom("a value without a key"))?;
        seed.deserialize(Decode(value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// Takes the only key of an object.
struct Key<'de, K> {
    seed: K,
    lifetime: PhantomData<&'de ()>,
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for Key<'de, K> {
    type Value = K::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one key")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<K::Value, A::Error> {
        let key = map.next_key_seed(self.seed)?.ok_or_else(|| A::Error::custom("no key"))?;
        map.next_value::<serde::de::IgnoredAny>()?;
        Ok(key)
    }
}

/// A variant of an enum, and what it holds.
struct Variant<'de> {
    name: &'de str,
    value: Option<&'de Value>,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Error;
    type Variant = Held<'de>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Held<'de>), Error> {
        let name: StrDeserializer<'_, Error> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, Held(self.value)))
    }
}

struct Held<'de>(Option<&'de Value>);

impl<'de> Held<'de> {
    fn value(self, expected: &str) -> Result<Decode<'de>, Error> {
        self.0.map(Decode).ok_or_else(|| Error::invalid_type(Unexpected::UnitVariant, &expected))
    }
}

impl<'de> VariantAccess<'de> for Held<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        self.0.map_or(Ok(()), |value| serde::Deserialize::deserialize(Decode(value)))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.value("a variant that holds a value")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.value("a variant that holds several values")?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value("a variant with fields")?.deserialize_any(visitor)
    }
}
