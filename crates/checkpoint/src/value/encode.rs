//! Encoding: from a program's value to JSON.

use super::marks::{ESCAPE, F32, F64};
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::value::Serializer as Plain;
use serde_json::{Error, Map, Value};
use std::fmt;

/// As `serde_json::to_value`, but for numbers that JSON does not have.
pub(super) struct Encode;

/// An object with one key, which stands for a number, or for one variant of an enum.
fn single(key: impl Into<String>, value: Value) -> Value {
    Value::Object(Map::from_iter([(key.into(), value)]))
}

/// Passes scalars on.
macro_rules! plainly {
    ($($method:ident $type:ty),* $(,)?) => {
        $(fn $method(self, value: $type) -> Result<Value, Error> {
            Plain.$method(value)
        })*
    };
}

impl Serializer for Encode {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Entries;
    type SerializeStruct = Entries;
    type SerializeStructVariant = Entries;

    plainly! {
        serialize_bool bool, serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_i128 i128, serialize_u8 u8,
        serialize_u16 u16, serialize_u32 u32, serialize_u64 u64, serialize_u128 u128, serialize_char char, serialize_str &str,
        serialize_bytes &[u8], serialize_unit_struct &'static str,
    }

    fn serialize_f32(self, value: f32) -> Result<Value, Error> {
        match value.is_finite() {
            true => Plain.serialize_f32(value),
            false => Ok(single(F32, format!("{:08x}", value.to_bits()).into())),
        }
    }

    fn serialize_f64(self, value: f64) -> Result<Value, Error> {
        match value.is_finite() {
            true => Plain.serialize_f64(value),
            false => Ok(single(F64, format!("{:016x}", value.to_bits()).into())),
        }
    }

    fn serialize_none(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Value, Error> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        Ok(escaped(Map::from_iter([(variant.to_owned(), value.serialize(self)?)])))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items, Error> {
        Ok(Items { variant: None, items: Vec::new() })
    }

    fn serialize_tuple(self, _: usize) -> Result<Items, Error> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items, Error> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items, Error> {
        Ok(Items { variant: Some(variant), items: Vec::new() })
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries, Error> {
        Ok(Entries { variant: None, key: None, map: Map::new(), raw: None })
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Entries, Error> {
        // JSON that the program has as text: what it stands for is serde_json's own affair.
        let raw = name.starts_with("$serde_json::").then(|| Plain.serialize_struct(name, len)).transpose()?;
        Ok(Entries { variant: None, key: None, map: Map::new(), raw })
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Entries, Error> {
        Ok(Entries { variant: Some(variant), key: None, map: Map::new(), raw: None })
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, value: &T) -> Result<Value, Error> {
        Ok(value.to_string().into())
    }
}

/// An object of the program's own, which is not to be taken for a number.
fn escaped(map: Map<String, Value>) -> Value {
    if map.len() > 1 {
        return Value::Object(map);
    }
    let escape = |(key, value): (String, Value)| match key.starts_with(ESCAPE) {
        true => (format!("{ESCAPE}{key}"), value),
        false => (key, value),
    };
    Value::Object(map.into_iter().map(escape).collect())
}

/// The contents of an enum's variant, under its name.
fn of_variant(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(variant) => escaped(Map::from_iter([(variant.to_owned(), value)])),
        None => value,
    }
}

/// An array that is being made.
pub(super) struct Items {
    variant: Option<&'static str>,
    items: Vec<Value>,
}

impl Items {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.items.push(value.serialize(Encode)?);
        Ok(())
    }

    fn done(self) -> Value {
        of_variant(self.variant, Value::Array(self.items))
    }
}

macro_rules! items {
    ($($trait:ident $method:ident),*) => {
        $(impl $trait for Items {
            type Ok = Value;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.push(value)
            }

            fn end(self) -> Result<Value, Error> {
                Ok(self.done())
            }
        })*
    };
}

items!(SerializeSeq serialize_element, SerializeTuple serialize_element, SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field);

/// An object that is being made.
pub(super) struct Entries {
    variant: Option<&'static str>,
    key: Option<String>,
    map: Map<String, Value>,
    /// The struct that is made instead.
    raw: Option<<Plain as Serializer>::SerializeStruct>,
}

impl SerializeMap for Entries {
    type Ok = Value;
    type Error = Error;

    /// As text, as serde_json has it: of an object with this one entry.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        let mut one = Plain.serialize_map(Some(1))?;
        one.serialize_entry(key, &())?;
        let Value::Object(one) = SerializeMap::end(one)? else { unreachable!("an object was begun") };
        self.key = one.into_iter().next().map(|(key, _)| key);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let key =
            self.key.take().ok_or_else(|| <Error as serde::ser::Error>::custom("a value without a key"))?;
        self.map.insert(key, value.serialize(Encode)?);
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        Ok(escaped(self.map))
    }
}

impl SerializeStruct for Entries {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        if let Some(raw) = &mut self.raw {
            return SerializeStruct::serialize_field(raw, key, value);
        }
        self.map.insert(key.to_owned(), value.serialize(Encode)?);
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        match self.raw {
            Some(raw) => SerializeStruct::end(raw),
            None => Ok(escaped(self.map)),
        }
    }
}

impl SerializeStructVariant for Entries {
    type Ok = Value;
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Error> {
        self.map.insert(key.to_owned(), value.serialize(Encode)?);
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        Ok(of_variant(self.variant, escaped(self.map)))
    }
}
