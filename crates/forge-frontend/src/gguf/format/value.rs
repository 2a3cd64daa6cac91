//! A GGUF metadata value: a number, boolean, string or list.

use crate::gguf::format::reader::Cursor;
use forge_ir::Diagnostic;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Any width.
    Unsigned(u64),
    /// Any width.
    Signed(i64),
    /// 32 or 64 bits. An f32 is converted by its shortest decimal form: 0.1 stays 0.1.
    Float(f64),
    Flag(bool),
    Text(String),
    List(Vec<Value>),
}

/// Type number of lists.
const LIST: u32 = 9;

impl Value {
    /// Maximum number of values in all lists of a file.
    pub(crate) const MAX_ELEMENTS: u64 = 1 << 22;

    /// Reads a value of a type. `elements_left` is the number of values that further lists may contain.
    pub(crate) fn read(
        cursor: &mut Cursor<'_>,
        name: &str,
        kind: u32,
        elements_left: &mut u64,
    ) -> Result<Value, Diagnostic> {
        if kind != LIST {
            return Value::read_scalar(cursor, name, kind);
        }
        let kind = cursor.u32(name)?;
        let count = cursor.u64(name)?;
        if kind == LIST {
            return Err(cursor.fault(&format!("{name} is a list of lists")));
        }
        cursor.expect(min_bytes(kind).checked_mul(count), name)?;
        if count > *elements_left {
            return Err(
                cursor.fault(&format!("lists up to {name} have more than {} values", Value::MAX_ELEMENTS))
            );
        }
        *elements_left -= count;
        (0..count).map(|_| Value::read_scalar(cursor, name, kind)).collect::<Result<_, _>>().map(Value::List)
    }

    fn read_scalar(cursor: &mut Cursor<'_>, name: &str, kind: u32) -> Result<Value, Diagnostic> {
        Ok(match kind {
            0 => Value::Unsigned(cursor.array::<1>(name)?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(cursor.array(name)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(cursor.array(name)?).into()),
            3 => Value::Signed(i16::from_le_bytes(cursor.array(name)?).into()),
            4 => Value::Unsigned(cursor.u32(name)?.into()),
            5 => Value::Signed(i32::from_le_bytes(cursor.array(name)?).into()),
            6 => {
                let number = f32::from_le_bytes(cursor.array(name)?);
                Value::Float(number.to_string().parse().unwrap_or(f64::from(number)))
            }
            7 => match cursor.array::<1>(name)?[0] {
                0 => Value::Flag(false),
                1 => Value::Flag(true),
                other => return Err(cursor.fault(&format!("{name}: {other} is not a boolean"))),
            },
            8 => Value::Text(cursor.text(name)?),
            10 => Value::Unsigned(cursor.u64(name)?),
            11 => Value::Signed(i64::from_le_bytes(cursor.array(name)?)),
            12 => Value::Float(f64::from_le_bytes(cursor.array(name)?)),
            _ => return Err(cursor.fault(&format!("{name} has the unknown type {kind}"))),
        })
    }
}

/// Minimum size of a value of a type, in bytes.
fn min_bytes(kind: u32) -> u64 {
    match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        _ => 8,
    }
}
