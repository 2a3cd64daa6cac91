//! Mutation of JSON: a few values and keys are replaced by other valid ones, or by absurd ones.

use super::Random;
use serde_json::{Map, Value, json};

/// The keys of a corpus, each with one of its values.
pub(crate) struct Dictionary(Vec<(String, Value)>);

impl Dictionary {
    /// The keys of these files. Files that are not JSON have none.
    pub(crate) fn of(files: &[Vec<u8>]) -> Dictionary {
        let mut dictionary = Dictionary(Vec::new());
        for value in files.iter().filter_map(|file| serde_json::from_slice(file).ok()) {
            dictionary.add(&value);
        }
        dictionary.0.sort_by_cached_key(|(key, value)| (key.clone(), value.to_string()));
        dictionary.0.dedup();
        dictionary
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                self.0.push((key.clone(), value.clone()));
                self.add(value);
            }),
            Value::Array(values) => values.iter().for_each(|value| self.add(value)),
            _ => {}
        }
    }
}

/// A file after a few mutations; `None` if it is not JSON.
pub(crate) fn mutated(random: &mut Random, base: &[u8], dictionary: &Dictionary) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(base).ok()?;
    for _ in 0..=random.below(4) {
        change(random, &mut value, dictionary);
    }
    // Deeper values are rejected by every reader, and writing them needs a large stack.
    Some(if random.once_in(50) { deep(random, &value) } else { value.to_string().into_bytes() })
}

/// A value nested in very many lists or objects.
fn deep(random: &mut Random, value: &Value) -> Vec<u8> {
    let depth = 1 << random.below(18);
    let (open, close) = *random.one(&[("[", "]"), ("{\"a\":", "}")]);
    format!("{}{value}{}", open.repeat(depth), close.repeat(depth)).into_bytes()
}

/// Mutates one value, near the root as often as deep inside.
fn change(random: &mut Random, value: &mut Value, dictionary: &Dictionary) {
    let inner = match value {
        Value::Object(map) => map.len(),
        Value::Array(values) => values.len(),
        _ => 0,
    };
    if inner > 0 && !random.once_in(4) {
        let which = random.below(inner);
        let child = match value {
            Value::Object(map) => map.values_mut().nth(which),
            Value::Array(values) => values.get_mut(which),
            _ => None,
        };
        if let Some(child) = child {
            return change(random, child, dictionary);
        }
    }
    match value {
        Value::Object(map) if !random.once_in(4) => change_keys(random, map, dictionary),
        Value::Array(values) if !random.once_in(4) => change_elements(random, values, dictionary),
        Value::Number(number) if random.once_in(2) => *value = near(random, number.as_f64().unwrap_or(0.0)),
        Value::String(text) if random.once_in(3) => change_text(random, text),
        _ => *value = any(random, dictionary),
    }
}

fn change_keys(random: &mut Random, map: &mut Map<String, Value>, dictionary: &Dictionary) {
    let (key, value) = random.one(&dictionary.0).clone();
    let own: Vec<String> = map.keys().cloned().collect();
    match random.below(6) {
        0 | 1 => drop(map.insert(key, value)),
        2 => drop(map.insert(key, any(random, dictionary))),
        _ if own.is_empty() => {}
        3 => drop(map.remove(random.one(&own))),
        // Renames a key, or swaps the values of two keys.
        4 => {
            if let Some(value) = map.remove(random.one(&own)) {
                map.insert(key, value);
            }
        }
        _ => {
            let (one, other) = (random.one(&own).clone(), random.one(&own).clone());
            let (a, b) = (map[&one].clone(), map[&other].clone());
            map.insert(one, b);
            map.insert(other, a);
        }
    }
}

fn change_elements(random: &mut Random, values: &mut Vec<Value>, dictionary: &Dictionary) {
    let at = random.below(values.len() + 1);
    match random.below(5) {
        0 => values.insert(at, any(random, dictionary)),
        1 if at < values.len() => drop(values.remove(at)),
        2 => values.truncate(at),
        3 if at < values.len() => {
            let times = 1 << random.below(12);
            let copies = std::iter::repeat_n(values[at].clone(), times);
            let copies: Vec<Value> = copies.collect();
            drop(values.splice(at..at, copies));
        }
        _ => values.reverse(),
    }
}

fn change_text(random: &mut Random, text: &mut String) {
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let at = *random.one(&starts);
    match random.below(5) {
        0 => text.truncate(at),
        1 => text.insert_str(
            at,
            random.one::<&str>(&["\u{0}", "\u{10ffff}", "\u{301}", "../", ".", "*", "(", "%", "\u{feff}"]),
        ),
        2 => *text = text[at..].to_owned(),
        3 => *text = text.repeat(1 << random.below(8)),
        _ => text.insert_str(at, &"a".repeat(1 << random.below(14))),
    }
}

/// A number close to another one, or an extreme one.
fn near(random: &mut Random, number: f64) -> Value {
    let whole = number.is_finite() && number.fract() == 0.0 && number.abs() < 1e15;
    let new = match random.below(8) {
        0 => number + 1.0,
        1 => number - 1.0,
        2 => number * 2.0,
        3 => (number / 2.0).trunc(),
        4 => -number,
        5 => number * 3.0 + 1.0,
        6 => return odd_number(random),
        _ => number * 1.25,
    };
    if whole && new.fract() == 0.0 && new.abs() < 1e15 { json!(new as i64) } else { json!(new) }
}

fn odd_number(random: &mut Random) -> Value {
    random
        .one(&[
            json!(0),
            json!(1),
            json!(-1),
            json!(3),
            json!(7),
            json!(u32::MAX),
            json!(1_u64 << 32),
            json!(i64::MIN),
            json!(u64::MAX),
            json!(1_u64 << 53),
            json!(65_536),
            json!(1e-45),
            json!(1e38),
            json!(1e300),
            json!(-0.0),
            json!(0.5),
            json!(1e-320),
            json!(1_000_000),
        ])
        .clone()
}

/// A value of one of the corpus's keys, or an arbitrary one.
fn any(random: &mut Random, dictionary: &Dictionary) -> Value {
    match random.below(8) {
        0 | 1 => random.one(&dictionary.0).1.clone(),
        2 | 3 => odd_number(random),
        4 => Value::from(random.one(&dictionary.0).0.clone()),
        5 => random.one(&[json!(null), json!(true), json!(false)]).clone(),
        6 => {
            random.one(&[json!(""), json!("a"), json!([]), json!({}), json!([[]]), json!({"": null})]).clone()
        }
        _ => (0..random.below(6)).map(|_| odd_number(random)).collect(),
    }
}
