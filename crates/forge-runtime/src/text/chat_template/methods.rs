//! Methods of Python strings, lists and dictionaries that minijinja and its pycompat module lack.

use crate::text::chat_template::python;
use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::borrow::Cow;

/// Calls a method; falls back to minijinja's pycompat methods.
pub(crate) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let found = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), name, arguments)?,
        ValueKind::Seq if name == "index" => {
            let (sought,): (Value,) = from_args(arguments)?;
            let position = value.try_iter()?.position(|item| item == sought);
            Some(Value::from(position.ok_or_else(|| invalid(format!("{sought} is not in the list")))?))
        }
        ValueKind::Seq | ValueKind::Map if name == "copy" => {
            let () = from_args(arguments)?;
            Some(value.clone())
        }
        _ => None,
    };
    match found {
        Some(found) => Ok(found),
        None => unknown_method_callback(state, value, name, arguments),
    }
}

fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn string_method(string: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let three = |parts: [&str; 3]| Value::from(Tuple::from(parts.map(Value::from)));
    Ok(Some(match name {
        "index" | "rindex" => {
            let (sought,): (&str,) = from_args(arguments)?;
            let found = if name == "index" { string.find(sought) } else { string.rfind(sought) };
            let found = found.ok_or_else(|| invalid("substring not found"))?;
            Value::from(string[..found].chars().count())
        }
        "partition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            match string.split_once(separator) {
                Some((before, after)) => three([before, separator, after]),
                None => three([string, "", ""]),
            }
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            match string.rsplit_once(separator) {
                Some((before, after)) => three([before, separator, after]),
                None => three(["", "", string]),
            }
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(arguments)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most + 1);
            let mut parts: Vec<&str> = match separator {
                Some(separator) => string.rsplitn(most, separator).collect(),
                None => rsplit_whitespace(string, most),
            };
            parts.reverse();
            Value::from_iter(parts.into_iter().map(Value::from))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(string.strip_prefix(prefix).unwrap_or(string))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(string.strip_suffix(suffix).unwrap_or(string))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (i64, Option<&str>) = from_args(arguments)?;
            let width = python::width(width)?;
            let missing = width.saturating_sub(string.chars().count());
            let left = match name {
                "ljust" => 0,
                "rjust" => missing,
                _ => missing / 2 + (missing & width & 1),
            };
            let fill = fill.unwrap_or(" ");
            Value::from(format!("{}{string}{}", fill.repeat(left), fill.repeat(missing - left)))
        }
        "zfill" => {
            let (width,): (i64,) = from_args(arguments)?;
            let width = python::width(width)?;
            let (sign, digits) = string.split_at(usize::from(string.starts_with(['-', '+'])));
            let missing = width.saturating_sub(string.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        _ => return Ok(None),
    }))
}

/// Splits at whitespace from the right; the last part comes first, the unsplit rest last.
fn rsplit_whitespace(string: &str, most: usize) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), string.trim_end());
    while !rest.is_empty() {
        if parts.len() + 1 == most {
            parts.push(rest);
            break;
        }
        let start = rest
            .char_indices()
            .rev()
            .find(|(_, char)| char.is_whitespace())
            .map_or(0, |(at, char)| at + char.len_utf8());
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end();
    }
    parts
}
