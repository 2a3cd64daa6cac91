//! Selects the files of a repository that a compilation needs. Repositories often contain the same weights in
//! several formats, each of several gigabytes.

use crate::error::Error;
use crate::request::Request;
use std::collections::BTreeSet;

/// Weights in one file, preferred over shards.
pub(crate) const SINGLE: &str = "model.safetensors";

/// Index of the shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The tokenizer, preferred over [`TEKKEN`].
const TOKENIZER: &str = "tokenizer.json";

/// Mistral's tokenizer file.
const TEKKEN: &str = "tekken.json";

/// Configuration and tokenizer files. ModelOpt has its quantization in a file of its own.
const SMALL: [&str; 10] = [
    "config.json",
    "hf_quant_config.json",
    "generation_config.json",
    TOKENIZER,
    TEKKEN,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Extension of GGUF files.
const GGUF: &str = ".gguf";

/// The files to download.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Exactly these files.
    Files(Vec<String>),
    /// These files, which include [`INDEX`], and the shards listed in it.
    Sharded(Vec<String>),
    /// One GGUF file, or all parts of a split one, in order.
    Gguf(Vec<String>),
}

impl Choice {
    /// Selects from the names of a repository's files.
    pub(crate) fn of(request: &Request, names: &[&str]) -> Result<Choice, Error> {
        let repository = &request.repository;
        if let Some(pick) = &request.pick {
            return gguf(repository, pick, names).map(Choice::Gguf);
        }
        let is_needed =
            |name: &&&str| names.contains(name) && (**name != TEKKEN || !names.contains(&TOKENIZER));
        let small = SMALL.iter().filter(is_needed);
        let with = |weights: &str| small.map(|name| (*name).to_owned()).chain([weights.to_owned()]).collect();
        let files: Vec<&&str> = names.iter().filter(|name| name.ends_with(GGUF)).collect();
        if names.contains(&"config.json") && names.contains(&SINGLE) {
            Ok(Choice::Files(with(SINGLE)))
        } else if names.contains(&"config.json") && names.contains(&INDEX) {
            Ok(Choice::Sharded(with(INDEX)))
        } else if !files.is_empty() {
            let example = files[0];
            Err(Error::Choice(format!(
                "{repository} contains GGUF files; select one, such as {repository}:{example}, or a quantization \
                 such as Q4_K_M:{}",
                lines(files.iter().map(|name| **name))
            )))
        } else {
            let weights = [".safetensors", ".bin", ".pth", ".pt", ".onnx", ".h5", ".msgpack", "config.json"];
            let is_weights = |name: &&&str| weights.iter().any(|end| name.ends_with(end));
            let held = lines(names.iter().filter(is_weights).copied());
            let held = if held.is_empty() { " no weights".to_owned() } else { held };
            Err(Error::Choice(format!(
                "{repository} is not a supported checkpoint: expected config.json and {SINGLE} or {INDEX}, found:{held}"
            )))
        }
    }
}

/// Names of the shards in an index. Each must be in the repository.
pub(crate) fn shards(index: &[u8], names: &[&str]) -> Result<Vec<String>, Error> {
    let wrong = |what: &str| Error::InvalidResponse(format!("{INDEX} {what}"));
    let index: serde_json::Value = serde_json::from_slice(index).map_err(|_| wrong("is not JSON"))?;
    let map = index["weight_map"].as_object().ok_or_else(|| wrong("has no object weight_map"))?;
    let shards: BTreeSet<&str> = map.values().filter_map(serde_json::Value::as_str).collect();
    match shards.iter().find(|shard| !names.contains(shard)) {
        Some(shard) => Err(wrong(&format!("lists {shard:?}, which is not in the repository"))),
        None => Ok(shards.into_iter().map(str::to_owned).collect()),
    }
}

/// The GGUF file of that name or quantization, with all parts if it is split.
fn gguf(repository: &str, pick: &str, names: &[&str]) -> Result<Vec<String>, Error> {
    let files: Vec<&str> = names.iter().copied().filter(|name| name.ends_with(GGUF)).collect();
    let remote = pick.to_lowercase();
    let is_of = |name: &&&str| {
        let stem = without_part(name).to_lowercase();
        let before = stem.strip_suffix(&remote);
        // Multimodal projectors have model-like names.
        !stem.rsplit('/').next().is_some_and(|file| file.starts_with("mmproj"))
            && before.is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_', '/']))
    };
    let is_meant = |name: &&&str| match files.contains(&pick) {
        true => {
            without_part(name) == without_part(pick)
                && part_of(name).map(|part| part.1) == part_of(pick).map(|part| part.1)
        }
        false => is_of(name),
    };
    let mut found: Vec<&str> = files.iter().filter(is_meant).copied().collect();
    found.sort_unstable();
    let first = found.first().copied().unwrap_or_default();
    if let Some((stem, count)) = part_of(first) {
        let all: Vec<String> =
            (1..=count).map(|index| format!("{stem}-{index:05}-of-{count:05}{GGUF}")).collect();
        // A file other than the parts is another model of that quantization.
        if found.iter().all(|name| all.iter().any(|part| part == name)) {
            return match all.iter().find(|part| !found.contains(&part.as_str())) {
                Some(part) => {
                    Err(Error::Choice(format!("{repository}: missing {part}, one of {count} parts")))
                }
                None => Ok(all),
            };
        }
    }
    match (&found[..], &files[..]) {
        ([one], _) => Ok(vec![(*one).to_owned()]),
        ([], []) => Err(Error::Choice(format!("{repository} contains no GGUF files; remove :{pick}"))),
        ([], _) => Err(Error::Choice(format!(
            "{repository} has no GGUF file or quantization {pick}; expected one of{}",
            lines(files)
        ))),
        _ => Err(Error::Choice(format!("{repository}:{pick} is ambiguous; expected one of{}", lines(found)))),
    }
}

/// The model name and the number of parts of a split GGUF file's part: `name-00001-of-00003.gguf` is one of 3
/// of `name`.
pub fn part_of(file: &str) -> Option<(&str, usize)> {
    let (rest, count) = file.strip_suffix(GGUF)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |digits: &str| digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(count) && is_number(number)).then_some((stem, count.parse().ok()?))
}

/// Name of a GGUF file without extension and part number.
fn without_part(file: &str) -> &str {
    part_of(file).map_or_else(|| file.trim_end_matches(GGUF), |(stem, _)| stem)
}

fn lines<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("\n    {name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(request: &str, names: &[&str]) -> Result<Choice, String> {
        Choice::of(&Request::parse(request).unwrap(), names).map_err(|error| error.to_string())
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn selects_one_set_of_weights() {
        let beside = [
            ".gitattributes",
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "hf_quant_config.json",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
            "x-Q8_0.gguf",
        ];
        let with = |more: &[&'static str]| [&beside[..], more].concat();
        assert_eq!(
            choose("a/b", &with(&[SINGLE, INDEX])),
            Ok(Choice::Files(owned(&["config.json", "hf_quant_config.json", "tokenizer.json", SINGLE])))
        );
        assert_eq!(
            choose("a/b", &with(&[INDEX, "model-00001-of-00002.safetensors"])),
            Ok(Choice::Sharded(owned(&["config.json", "hf_quant_config.json", "tokenizer.json", INDEX])))
        );
        assert_eq!(choose("a/b:Q8_0", &with(&[SINGLE])), Ok(Choice::Gguf(owned(&["x-Q8_0.gguf"]))));
    }

    #[test]
    fn selects_tekken_json_only_without_tokenizer_json() {
        for (tokenizers, fetched) in [(&[TEKKEN][..], TEKKEN), (&[TEKKEN, TOKENIZER], TOKENIZER)] {
            let names = [&["config.json", SINGLE], tokenizers].concat();
            assert_eq!(choose("a/b", &names), Ok(Choice::Files(owned(&["config.json", fetched, SINGLE]))));
        }
    }

    #[test]
    fn selects_one_gguf_file_by_name_or_quantization() {
        let names = ["m-IQ4_NL.gguf", "m-Q4_K_M.gguf", "m.q8_0.gguf", "deep/m-F16.gguf", "mmproj-F16.gguf"];
        let picked = |pick: &str| choose(&format!("a/b:{pick}"), &names).ok();
        let gguf = |name: &str| Some(Choice::Gguf(owned(&[name])));
        assert_eq!(picked("Q4_K_M"), gguf("m-Q4_K_M.gguf"));
        assert_eq!(picked("Q8_0"), gguf("m.q8_0.gguf"));
        assert_eq!(picked("f16"), gguf("deep/m-F16.gguf"));
        assert_eq!(picked("mmproj-F16.gguf"), gguf("mmproj-F16.gguf"));
        for pick in ["4_NL", "Q4_K", "Q5_K_M", "other.gguf"] {
            assert_eq!(picked(pick), None, "{pick}");
        }
        let several = choose("a/b:Q8_0", &["one-Q8_0.gguf", "two-Q8_0.gguf"]).unwrap_err();
        assert_eq!(several, "a/b:Q8_0 is ambiguous; expected one of\n    one-Q8_0.gguf\n    two-Q8_0.gguf");
    }

    #[test]
    fn selects_all_parts_of_split_gguf_files() {
        let parts = ["deep/m-Q8_0-00001-of-00002.gguf", "deep/m-Q8_0-00002-of-00002.gguf"];
        let names = [parts[1], "m-Q4_0.gguf", parts[0]];
        for pick in ["Q8_0", parts[0], parts[1]] {
            assert_eq!(choose(&format!("a/b:{pick}"), &names), Ok(Choice::Gguf(owned(&parts))), "{pick}");
        }
        let rejected = [
            choose("a/b:Q8_0", &parts[1..]).unwrap_err(),
            choose(&format!("a/b:{}", parts[0]), &parts[..1]).unwrap_err(),
            choose("a/b:Q8_0", &[parts[0], parts[1], "m-Q8_0.gguf"]).unwrap_err(),
        ];
        assert_eq!(
            rejected.join("\n"),
            "a/b: missing deep/m-Q8_0-00001-of-00002.gguf, one of 2 parts
a/b: missing deep/m-Q8_0-00002-of-00002.gguf, one of 2 parts
a/b:Q8_0 is ambiguous; expected one of
    deep/m-Q8_0-00001-of-00002.gguf
    deep/m-Q8_0-00002-of-00002.gguf
    m-Q8_0.gguf"
        );
        assert_eq!(part_of("a-b-00002-of-00003.gguf"), Some(("a-b", 3)));
        for name in
            ["a.gguf", "a-00001-of-3.gguf", "a-1-of-00003.gguf", "00001-of-00003.gguf", "a-00001-of-00003"]
        {
            assert_eq!(part_of(name), None, "{name}");
        }
    }

    #[test]
    fn selection_errors_list_the_choices() {
        let rejected = [
            choose("a/b", &["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]).unwrap_err(),
            choose("a/b", &["config.json", "pytorch_model.bin"]).unwrap_err(),
            choose("a/b", &["README.md"]).unwrap_err(),
            choose("a/b:Q8_0", &["config.json", SINGLE]).unwrap_err(),
            choose("a/b:Q5_0", &["m-Q4_K_M.gguf"]).unwrap_err(),
        ];
        assert_eq!(
            rejected.join("\n"),
            "a/b contains GGUF files; select one, such as a/b:m-Q4_K_M.gguf, or a quantization such as Q4_K_M:
    m-Q4_K_M.gguf
    m-Q8_0.gguf
a/b is not a supported checkpoint: expected config.json and model.safetensors or model.safetensors.index.json, found:
    config.json
    pytorch_model.bin
a/b is not a supported checkpoint: expected config.json and model.safetensors or \
             model.safetensors.index.json, found: no weights
a/b contains no GGUF files; remove :Q8_0
a/b has no GGUF file or quantization Q5_0; expected one of
    m-Q4_K_M.gguf"
        );
    }

    #[test]
    fn rejects_shards_outside_the_repository() {
        let names = ["a.safetensors", "b.safetensors"];
        let of = |index: &str| shards(index.as_bytes(), &names).map_err(|error| error.to_string());
        let sound = r#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "a.safetensors"}}"#;
        assert_eq!(of(sound), Ok(owned(&names)));
        assert!(
            of(r#"{"weight_map": {"x": "../../c.safetensors"}}"#)
                .unwrap_err()
                .contains("is not in the repository")
        );
        assert!(of("{}").unwrap_err().contains("weight_map"));
    }
}
