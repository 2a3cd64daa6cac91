//! Python semantics that differ from minijinja's: conversion to text, tests and filters.

use crate::text::chat_template::methods::method;
use crate::text::chat_template::source::ITERATED;
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, escape_formatter, filters};
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Installs Python semantics in an environment.
pub(crate) fn install(environment: &mut Environment<'_>) {
    environment.set_formatter(|out, state, value| match (state.auto_escape(), value.kind()) {
        (_, ValueKind::Invalid) => escape_formatter(out, state, value),
        (AutoEscape::None, _) => out.write_str(&text(value)).map_err(Error::from),
        _ => escape_formatter(out, state, value),
    });
    environment.set_unknown_method_callback(method);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined() || is_list(value) || matches!(value.kind(), ValueKind::Map | ValueKind::String)
    });
    environment.add_filter(ITERATED, iterated);
    environment.add_filter("string", |value: &Value| text(value));
    environment.add_filter("join", join);
    for name in ["e", "escape"] {
        environment.add_filter(name, |value: &Value| match value.is_safe() {
            true => value.clone(),
            false => Value::from_safe_string(escaped(&text(value))),
        });
    }
    environment.add_filter("forceescape", |value: &Value| Value::from_safe_string(escaped(&text(value))));
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.is_undefined() {
            true => Ok(0),
            false => filters::length(value),
        });
    }
    environment.add_filter("int", int);
    environment.add_filter("float", to_float);
    install_generators(environment);
}

/// Replaces the filters that return generators in Python.
fn install_generators(environment: &mut Environment<'_>) {
    type Arguments = Rest<ValueOrKwargs>;
    environment.add_filter("items", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(generator(Vec::new())),
        ValueKind::Map => {
            let pair = |key: Value| Ok(Value::from(Tuple::from([key.clone(), value.get_item(&key)?])));
            value.try_iter()?.map(pair).collect::<Result<_, Error>>().map(generator)
        }
        kind => Err(invalid(format!("items needs a mapping, not {kind}"))),
    });
    environment.add_filter("map", |state: &mut State, value: Value, arguments: Arguments| {
        filters::map(state, value, arguments).map(generator)
    });
    environment.add_filter("unique", |state: &mut State, value: Value, options: Kwargs| {
        generator_of(filters::unique(state, value, options)?)
    });
    environment.add_filter("reverse", |value: &Value| match value.kind() {
        ValueKind::String => filters::reverse(value),
        _ => generator_of(filters::reverse(value)?),
    });
    environment.add_filter("batch", |state: &mut State, value: Value, count: usize, fill: Option<Value>| {
        generator_of(filters::batch(state, value, count, fill)?)
    });
    environment.add_filter("slice", |state: &mut State, value: Value, count: usize, fill: Option<Value>| {
        generator_of(filters::slice(state, value, count, fill)?)
    });
    environment.add_filter(
        "select",
        |state: &mut State, value: Value, test: Option<String>, arguments: Arguments| {
            filters::select(state, value, test.map(Cow::Owned), arguments).map(generator)
        },
    );
    environment.add_filter(
        "reject",
        |state: &mut State, value: Value, test: Option<String>, arguments: Arguments| {
            filters::reject(state, value, test.map(Cow::Owned), arguments).map(generator)
        },
    );
    environment.add_filter(
        "selectattr",
        |state: &mut State, value: Value, name: String, test: Option<String>, arguments: Arguments| {
            filters::selectattr(state, value, name.into(), test.map(Cow::Owned), arguments).map(generator)
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &mut State, value: Value, name: String, test: Option<String>, arguments: Arguments| {
            filters::rejectattr(state, value, name.into(), test.map(Cow::Owned), arguments).map(generator)
        },
    );
}

/// A Python generator: it is iterated once, is true even when empty, and has no length and no JSON.
#[derive(Debug)]
struct Generator(Arc<Mutex<std::vec::IntoIter<Value>>>);

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let rest = Arc::clone(&self.0);
        let next = move || rest.lock().ok().and_then(|mut rest| rest.next());
        Enumerator::Iter(Box::new(std::iter::from_fn(next)))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("<generator object>")
    }
}

fn generator(items: Vec<Value>) -> Value {
    Value::from_object(Generator(Arc::new(Mutex::new(items.into_iter()))))
}

/// Whether a value is a list in Python. minijinja returns iterators for slices of lists.
pub(crate) fn is_list(value: &Value) -> bool {
    let is_generator = value.downcast_object_ref::<Generator>().is_some();
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !is_generator
}

fn generator_of(value: Value) -> Result<Value, Error> {
    Ok(generator(value.try_iter()?.collect()))
}

fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// The iterable of a loop. None is an error. Strings and generators become lists, so that `loop.last` and
/// `loop.length` are defined.
fn iterated(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None => Err(invalid("none is not iterable")),
        ValueKind::String | ValueKind::Iterable => Ok(value.try_iter()?.collect::<Vec<Value>>().into()),
        _ => Ok(value),
    }
}

/// `value | join(separator="", attribute=none)`
fn join(value: &Value, separator: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let named = options.get::<Option<Value>>("d")?;
    let attribute = options.get::<Option<Value>>("attribute")?;
    options.assert_all_used()?;
    if value.is_none() {
        return Err(invalid("none is not iterable"));
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        items.push(text(&match &attribute {
            Some(name) => attribute_of(item, name)?,
            None => item,
        }));
    }
    Ok(items.join(&separator.or(named).map(|separator| text(&separator)).unwrap_or_default()))
}

/// The attribute named by a filter argument: an index, or names and indices separated by dots.
fn attribute_of(value: Value, name: &Value) -> Result<Value, Error> {
    let Some(path) = name.as_str() else { return value.get_item(name) };
    path.split('.').try_fold(value, |value, part| match part.parse::<usize>() {
        Ok(index) => value.get_item(&Value::from(index)),
        Err(_) => value.get_attr(part),
    })
}

/// HTML escaping as in markupsafe.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            _ => escaped.push(char),
        }
    }
    escaped
}

/// `value | int(default=0, base=10)`
fn int(value: &Value, default: Option<Value>, base: Option<u32>, options: Kwargs) -> Result<Value, Error> {
    let default = default.or(options.get("default")?).unwrap_or_else(|| Value::from(0));
    let base = base.or(options.get("base")?).unwrap_or(10);
    options.assert_all_used()?;
    let truncated = |number: f64| number.is_finite().then(|| Value::from(number.trunc() as i128));
    let number = match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number => float(value).map_or_else(|| Some(value.clone()), truncated),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let digits = text.trim().replace('_', "");
            let whole = matches!(base, 2..=36).then(|| i128::from_str_radix(&digits, base).ok()).flatten();
            whole.map(Value::from).or_else(|| parse_float(text).and_then(truncated))
        }
        _ => None,
    };
    Ok(number.unwrap_or(default))
}

/// `value | float(default=0.0)`
fn to_float(value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default = default.or(options.get("default")?).unwrap_or_else(|| Value::from(0.0));
    options.assert_all_used()?;
    let number = match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => parse_float(value.as_str().unwrap_or_default()),
        _ => None,
    };
    Ok(number.map_or(default, Value::from))
}

fn parse_float(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse().ok()
}

/// The maximum width of padding and indentation, which bounds memory use.
const MAX_WIDTH: usize = 1000;

/// A width in characters. Negative widths are 0, as in Python.
pub(crate) fn width(width: i64) -> Result<usize, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    let is_allowed = width <= MAX_WIDTH;
    is_allowed.then_some(width).ok_or_else(|| invalid(format!("width {width} exceeds {MAX_WIDTH}")))
}

/// The value as f64, if it is a non-integer number.
pub(crate) fn float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    if is_float { f64::try_from(value.clone()).ok() } else { None }
}

/// Python's `str(value)`.
pub(crate) fn text(value: &Value) -> String {
    match value.kind() {
        kind if kind == ValueKind::Map || is_list(value) => {
            let mut text = String::new();
            write_literal(value, &mut text);
            text
        }
        _ => float(value).map_or_else(|| value.to_string(), float_text),
    }
}

/// Writes Python's `repr(value)`.
fn write_literal(value: &Value, text: &mut String) {
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), text),
        ValueKind::Map => {
            text.push('{');
            for (index, key) in items().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                write_literal(&key, text);
                text.push_str(": ");
                write_literal(&value.get_item(&key).unwrap_or_default(), text);
            }
            text.push('}');
        }
        _ if is_list(value) => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            text.push(open);
            for (index, item) in items().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                write_literal(&item, text);
            }
            text.push_str(if value.is_tuple() && value.len() == Some(1) { "," } else { "" });
            text.push(close);
        }
        ValueKind::Undefined => text.push_str("Undefined"),
        _ => text.push_str(&crate::text::chat_template::python::text(value)),
    }
}

fn write_quoted(string: &str, text: &mut String) {
    use std::fmt::Write;
    let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
    text.push(quote);
    for char in string.chars() {
        let code = u32::from(char);
        let _ = match char {
            '\n' => write!(text, "\\n"),
            '\r' => write!(text, "\\r"),
            '\t' => write!(text, "\\t"),
            '\\' => write!(text, "\\\\"),
            _ if char == quote => write!(text, "\\{char}"),
            _ if is_printable(char) => write!(text, "{char}"),
            _ if code < 0x100 => write!(text, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(text, "\\u{code:04x}"),
            _ => write!(text, "\\U{code:08x}"),
        };
    }
    text.push(quote);
}

/// Python's `str.isprintable`; Rust's escaping covers the same character classes.
fn is_printable(char: char) -> bool {
    // The character follows a letter, because Rust escapes combining characters at the start of a string.
    let text = String::from_iter(['a', char]);
    matches!(char, '"' | '\'') || text.escape_debug().nth(1) == Some(char)
}

/// Python's `repr(float)`: the shortest digits that round-trip, with an exponent for large and small numbers.
fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let text = number.to_string();
        return if text.contains('.') { text } else { format!("{text}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
