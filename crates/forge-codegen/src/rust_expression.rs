//! A serde serializer that writes a value as a Rust expression: the constants of a generated crate.
//!
//! It covers what the shapes of [`forge_ops`] consist of: numbers, flags, options, lists of numbers, formats, structs
//! and enums. Every type name gets the prefix `ops::`, the name by which a generated crate imports [`forge_ops`].

use crate::names::number;
use forge_ops::{Affine, Format};
use serde::ser::{
    Error, Impossible, Serialize, SerializeSeq, SerializeStruct, SerializeStructVariant, Serializer,
};

/// The value as an expression.
pub(crate) fn expression(value: &impl Serialize) -> String {
    match value.serialize(Expression) {
        Ok(text) => text,
        Err(error) => unreachable!("shapes consist of supported types: {error}"),
    }
}

/// Why a value has no expression.
#[derive(Debug)]
struct Unsupported(String);

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsupported {}

impl Error for Unsupported {
    fn custom<T: std::fmt::Display>(message: T) -> Unsupported {
        Unsupported(message.to_string())
    }
}

struct Expression;

/// A list, or a struct whose fields are being written.
struct Parts {
    /// Text before the parts, for example `ops::Squares {`.
    open: String,
    parts: Vec<String>,
}

impl Parts {
    fn close(self, end: &str) -> String {
        format!("{}{}{end}", self.open, self.parts.join(", "))
    }
}

/// `gelu_tanh` to `GeluTanh`: serde renames variants, Rust code uses their own names.
fn variant_name(variant: &str) -> String {
    let capitalized = |word: &str| match word.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => String::new(),
    };
    variant.split('_').map(capitalized).collect()
}

fn format_expression(format: Format) -> String {
    match format {
        Format::Affine(Affine { bits, group, scales }) => format!(
            "ops::Format::Affine(ops::Affine {{ bits: ops::Bits::{bits:?}, group: ops::Group::{group:?}, scales: \
             ops::Scales::{scales:?} }})"
        ),
        plain => format!("ops::Format::{plain:?}"),
    }
}

/// Defines serializer methods of types that no shape contains.
macro_rules! unsupported {
    ($($method:ident($type:ty))*) => {
        $(fn $method(self, value: $type) -> Result<String, Unsupported> {
            let _ = value;
            Err(Unsupported(concat!(stringify!($method), " is not supported").to_owned()))
        })*
    };
}

impl Serializer for Expression {
    type Ok = String;
    type Error = Unsupported;
    type SerializeSeq = Parts;
    type SerializeTuple = Impossible<String, Unsupported>;
    type SerializeTupleStruct = Impossible<String, Unsupported>;
    type SerializeTupleVariant = Impossible<String, Unsupported>;
    type SerializeMap = Impossible<String, Unsupported>;
    type SerializeStruct = Parts;
    type SerializeStructVariant = Parts;

    unsupported! {
        serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64) serialize_u8(u8)
        serialize_u16(u16) serialize_u32(u32) serialize_f64(f64) serialize_char(char) serialize_bytes(&[u8])
    }

    fn serialize_bool(self, value: bool) -> Result<String, Unsupported> {
        Ok(value.to_string())
    }

    fn serialize_u64(self, value: u64) -> Result<String, Unsupported> {
        Ok(number(value))
    }

    /// A literal that parses to the same bits.
    fn serialize_f32(self, value: f32) -> Result<String, Unsupported> {
        Ok(format!("{value:?}"))
    }

    /// The only strings in a shape are names of formats.
    fn serialize_str(self, value: &str) -> Result<String, Unsupported> {
        Format::from_name(value)
            .map(format_expression)
            .ok_or_else(|| Unsupported(format!("{value:?} is not a format")))
    }

    fn serialize_none(self) -> Result<String, Unsupported> {
        Ok("None".to_owned())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<String, Unsupported> {
        Ok(format!("Some({})", value.serialize(Expression)?))
    }

    fn serialize_unit(self) -> Result<String, Unsupported> {
        Ok("()".to_owned())
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<String, Unsupported> {
        Ok(format!("ops::{name}"))
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<String, Unsupported> {
        Ok(format!("ops::{name}::{}", variant_name(variant)))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<String, Unsupported> {
        Ok(format!("ops::{name}({})", value.serialize(Expression)?))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<String, Unsupported> {
        Ok(format!("ops::{name}::{}({})", variant_name(variant), value.serialize(Expression)?))
    }

    /// Lists are `Cow`s of constants.
    fn serialize_seq(self, _: Option<usize>) -> Result<Parts, Unsupported> {
        Ok(Parts { open: "Cow::Borrowed(&[".to_owned(), parts: Vec::new() })
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Unsupported> {
        Err(Unsupported("tuples are not supported".to_owned()))
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, Unsupported> {
        Err(Unsupported(format!("{name} is a tuple")))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Unsupported> {
        Err(Unsupported(format!("{name} has tuples")))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Unsupported> {
        Err(Unsupported("maps are not supported".to_owned()))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Parts, Unsupported> {
        Ok(Parts { open: format!("ops::{name} {{ "), parts: Vec::new() })
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Parts, Unsupported> {
        Ok(Parts { open: format!("ops::{name}::{} {{ ", variant_name(variant)), parts: Vec::new() })
    }
}

impl SerializeSeq for Parts {
    type Ok = String;
    type Error = Unsupported;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unsupported> {
        self.parts.push(value.serialize(Expression)?);
        Ok(())
    }

    fn end(self) -> Result<String, Unsupported> {
        Ok(self.close("])"))
    }
}

/// A struct and a variant with fields are written alike.
macro_rules! with_fields {
    ($($serializer:ident)*) => {$(
        impl $serializer for Parts {
            type Ok = String;
            type Error = Unsupported;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Unsupported> {
                self.parts.push(format!("{name}: {}", value.serialize(Expression)?));
                Ok(())
            }

            fn end(self) -> Result<String, Unsupported> {
                Ok(self.close(" }"))
            }
        }
    )*};
}

with_fields!(SerializeStruct SerializeStructVariant);

#[cfg(test)]
mod tests {
    use super::*;
    use forge_ops::{
        DeferredNorm, Epilogue, Function, Gating, LongContext, Pairing, RopeParameters, UnaryOp,
    };
    use std::borrow::Cow;

    #[test]
    fn values_are_written_as_expressions() {
        let norm = DeferredNorm { partials: 8192, epsilon: 1e-6 };
        assert_eq!(expression(&Some(norm)), "Some(ops::DeferredNorm { partials: 8192, epsilon: 1e-6 })");
        assert_eq!(expression(&Epilogue::Store), "ops::Epilogue::Store");
        assert_eq!(expression(&Epilogue::Best { candidates: 7 }), "ops::Epilogue::Best { candidates: 7 }");
        let gate = Epilogue::Gate(Gating::Plain(forge_ops::Activation::GeluTanh));
        assert_eq!(expression(&gate), "ops::Epilogue::Gate(ops::Gating::Plain(ops::Activation::GeluTanh))");
        assert_eq!(
            expression(&Function::Unary(UnaryOp::Softcap(30.0))),
            "ops::Function::Unary(ops::UnaryOp::Softcap(30.0))"
        );
        assert_eq!(expression(&None::<usize>), "None");
    }

    #[test]
    fn lists_are_borrowed_constants() {
        let long = Some(LongContext::LongRope { original_context: 4096, frequencies: Cow::Borrowed(&[0.5]) });
        let rope = RopeParameters {
            frequencies: Cow::Borrowed(&[1.0, 0.1]),
            pairing: Pairing::Half,
            magnitude: 1.0,
            long,
        };
        assert_eq!(
            expression(&rope),
            "ops::RopeParameters { frequencies: Cow::Borrowed(&[1.0, 0.1]), pairing: ops::Pairing::Half, magnitude: 1.0, long: \
             Some(ops::LongContext::LongRope { original_context: 4096, frequencies: Cow::Borrowed(&[0.5]) }) }"
        );
    }

    #[test]
    fn formats_are_written_with_their_parameters() {
        assert_eq!(expression(&Format::Q4_0), "ops::Format::Q4_0");
        assert_eq!(
            expression(&Format::from_name("affine4_bf16").unwrap()),
            "ops::Format::Affine(ops::Affine { bits: ops::Bits::Four, group: ops::Group::Of64, scales: ops::Scales::Bf16 })"
        );
    }
}
