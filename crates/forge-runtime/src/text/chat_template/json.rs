//! The filter `tojson`: JSON as Python's `json.dumps` writes it.

use crate::text::chat_template::python;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

/// Arguments of the `tojson` filter in transformers, in order.
struct Format {
    is_ascii: bool,
    /// The indentation of one level; `None` writes everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    has_sorted_keys: bool,
}

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`
pub(crate) fn tojson(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let format = Format::read(&arguments.into_values())?;
    let mut text = String::new();
    format.write(value, 0, &mut text)?;
    Ok(Value::from(text))
}

impl Format {
    fn read(arguments: &[Value]) -> Result<Format, Error> {
        let (positional, named): (&[Value], Kwargs) = from_args(arguments)?;
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        if positional.len() > names.len() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let mut values = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            let value = match positional.get(index) {
                Some(value) => Some(value.clone()),
                None => named.get::<Option<Value>>(name)?,
            };
            values.push(value.unwrap_or_default());
        }
        named.assert_all_used()?;
        let indent = match values[1].kind() {
            ValueKind::None | ValueKind::Undefined => None,
            ValueKind::String => Some(values[1].to_string()),
            ValueKind::Bool => Some(" ".repeat(usize::from(values[1].is_true()))),
            _ => Some(" ".repeat(python::width(i64::try_from(values[1].clone())?)?)),
        };
        let item_separator = if indent.is_some() { "," } else { ", " };
        let (mut item_separator, mut key_separator) = (item_separator.to_owned(), ": ".to_owned());
        if !values[2].is_none() && !values[2].is_undefined() {
            let texts: Vec<Value> = values[2].try_iter()?.collect();
            let [item, key] = &texts[..] else {
                let message = format!("tojson needs two separators, not {}", texts.len());
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            };
            (item_separator, key_separator) = (item.to_string(), key.to_string());
        }
        Ok(Format {
            is_ascii: values[0].is_true(),
            indent,
            item_separator,
            key_separator,
            has_sorted_keys: values[3].is_true(),
        })
    }

    fn write(&self, value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Map => {
                let mut keys = Vec::new();
                for key in value.try_iter()? {
                    keys.push((key_text(&key)?, key));
                }
                if self.has_sorted_keys {
                    keys.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.write_items(['{', '}'], keys, depth, text, |(name, key), text| {
                    self.write_string(&name, text);
                    text.push_str(&self.key_separator);
                    self.write(&value.get_item(&key)?, depth + 1, text)
                })
            }
            _ if python::is_list(value) => {
                self.write_items(['[', ']'], value.try_iter()?, depth, text, |item, text| {
                    self.write(&item, depth + 1, text)
                })
            }
            ValueKind::String => {
                self.write_string(value.as_str().unwrap_or_default(), text);
                Ok(())
            }
            _ => {
                text.push_str(&scalar_text(value)?);
                Ok(())
            }
        }
    }

    fn write_items<T>(
        &self,
        [open, close]: [char; 2],
        items: impl IntoIterator<Item = T>,
        depth: usize,
        text: &mut String,
        mut write: impl FnMut(T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |text: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                text.push('\n');
                text.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        text.push(open);
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                text.push_str(&self.item_separator);
            }
            is_empty = false;
            line(text, depth + 1);
            write(item, text)?;
        }
        if !is_empty {
            line(text, depth);
        }
        text.push(close);
        Ok(())
    }

    fn write_string(&self, string: &str, text: &mut String) {
        use std::fmt::Write;
        let quoted = Json::from(string).to_string();
        if !self.is_ascii {
            text.push_str(&quoted);
            return;
        }
        for char in quoted.chars() {
            if matches!(char, ' '..='~') {
                text.push(char);
                continue;
            }
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
}

/// The JSON name of a dictionary key.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.as_str() {
        Some(key) => Ok(key.to_owned()),
        None => scalar_text(key),
    }
}

fn scalar_text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(value.is_true().to_string()),
        ValueKind::Number => Ok(match python::float(value) {
            Some(number) if number.is_nan() => "NaN".to_owned(),
            Some(f64::INFINITY) => "Infinity".to_owned(),
            Some(f64::NEG_INFINITY) => "-Infinity".to_owned(),
            _ => python::text(value),
        }),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("{kind} cannot be serialized as JSON"))),
    }
}
