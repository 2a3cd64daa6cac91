//! Parses number format names: any case, llama.cpp's mixes, unsupported formats and typos.

use crate::error::Error;
use crate::quantize::mix::Mix;
use forge_ir::{Blocks, Format};
use forge_planner::Quant;
use strsim::osa_distance;

/// The names of all formats but the affine ones, joined by commas.
fn names() -> String {
    let plain = Format::ALL.into_iter().filter(|format| !matches!(format, Format::Affine(_)));
    plain.map(Format::name).collect::<Vec<_>>().join(", ")
}

/// The long help of `--quant`.
pub(crate) fn long_help() -> String {
    format!(
        "\
Number format of weight matrices: keep, f16, q8_0, q4_0, Q4_K_M, auto:5, ... (see --help).

One of keep, {} (k-quants need multiples of 256 columns), or affine2, 3, 4, 5, 6 or 8 (MLX; groups of 64; \
affine4_32, affine4_128 for other groups, affine4_bf16 for bf16 scales). Upper and lower case are equal.

Q4_K_S, Q4_K_M, Q5_K_S and Q5_K_M are llama.cpp's mixes: q6_k for the output matrix, and more bits for the value and \
down projections of some layers. A matrix whose rows are no multiple of 256 gets affine4_32, affine5_32 or q8_0.

auto:5 chooses a format for each matrix, 5 bits per weight on average including scales, to minimize the measured \
quantization error.

The router of a mixture of experts keeps its format unless an override names it or the format is not quantized.",
        names()
    )
}

/// Prefixes of unsupported format names and the replacement to suggest. The first match counts.
const UNSUPPORTED: [(&str, &str); 9] = [
    ("q8_1", "q8_0"),
    ("q8_k", "q8_0"),
    ("q2_k_", "q2_k, or auto:2.6"),
    ("q3_k_", "q3_k, or auto:3.5"),
    ("iq1", "affine2"),
    ("iq2", "affine2, or auto:2.6"),
    ("iq3", "affine3, or auto:3.5"),
    ("tq", "affine2"),
    ("f8", "fp8"),
];

/// A parsed `--quant` value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum QuantName {
    /// One format, or the checkpoint's own.
    Quant(Quant),
    /// A mix: a format per matrix role.
    Mix(&'static Mix),
}

/// Parses a format name; `words` is the option as typed, for the error message.
pub(crate) fn named(name: &str, words: &str) -> Result<QuantName, Error> {
    let plain = name.to_ascii_lowercase();
    if let Some(quant) = Quant::from_name(&plain) {
        return Ok(QuantName::Quant(quant));
    }
    if let Some(mix) = Mix::from_name(&plain) {
        return Ok(QuantName::Mix(mix));
    }
    let blocks = Blocks::from_name(&name.to_ascii_uppercase());
    if let Some(blocks) = blocks.filter(|blocks| blocks.has_same_codes()) {
        let format = blocks.format();
        return Err(Error::usage(format!(
            "{words}: unsupported number format; use {format}, which stores the same values"
        )));
    }
    let advice = match nearest_name(&plain) {
        Some(meant) => format!("did you mean {meant}?"),
        None => match UNSUPPORTED.iter().find(|(start, _)| plain.starts_with(start)) {
            Some((_, instead)) => format!("use {instead}"),
            None => format!("use keep, {}, affine2 to affine8, auto:BITS, or a mix such as Q4_K_M", names()),
        },
    };
    Err(Error::usage(format!("{words}: unsupported number format; {advice}")))
}

/// Parses the KV cache format.
pub(crate) fn cache_format(name: &str) -> Result<Format, Error> {
    let plain = name.to_ascii_lowercase();
    let formats = [Format::F32, Format::F16, Format::Q8_0];
    formats.into_iter().find(|format| format.name() == plain).ok_or_else(|| {
        let meant =
            formats.iter().find(|format| normalize_spelling(&plain) == normalize_spelling(format.name()));
        let advice = match (meant, plain.as_str()) {
            (Some(format), _) => format!("did you mean {format}?"),
            (None, "bf16") => "use f16".to_owned(),
            (None, _) => "expected f32, f16 or q8_0".to_owned(),
        };
        Error::usage(format!("--kv-cache-type {name}: unsupported KV cache format; {advice}"))
    })
}

/// The name with spelling variants normalized.
fn normalize_spelling(name: &str) -> String {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let letters = letters.to_ascii_lowercase();
    letters
        .strip_prefix("float")
        .or(letters.strip_prefix("fp"))
        .map_or(letters.clone(), |bits| format!("f{bits}"))
}

/// The closest format name, if unambiguous: another spelling, or one letter off.
fn nearest_name(name: &str) -> Option<String> {
    let all = || {
        let formats = Format::ALL.into_iter().map(|format| format.name().to_owned());
        formats.chain(Mix::ALL.iter().map(|mix| mix.name.to_owned())).chain(["keep".to_owned()])
    };
    let short = |it: &String| normalize_spelling(it) == normalize_spelling(name);
    // `q8` and `int8` commonly mean q8_0.
    let usual = match normalize_spelling(name).as_str() {
        "q8" | "int8" | "i8" => Some("q8_0"),
        "q4" | "int4" | "i4" => Some("q4_0"),
        "bfloat16" => Some("bf16"),
        "half" => Some("f16"),
        "single" | "full" => Some("f32"),
        "none" => Some("keep"),
        _ => None,
    };
    if let Some(found) = usual.map(str::to_owned).or_else(|| all().find(short)) {
        return Some(found);
    }
    if UNSUPPORTED.iter().any(|(start, _)| name.starts_with(start)) {
        return None;
    }
    let mut one_off = all().filter(|it| osa_distance(name, &it.to_ascii_lowercase()) == 1);
    one_off.next().filter(|_| one_off.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_for(name: &str) -> String {
        match named(name, &format!("--quant {name}")) {
            Err(Error::Usage(message)) => message,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn parses_format_names_in_any_case() {
        for (name, format) in
            [("Q8_0", Format::Q8_0), ("q4_K", Format::Q4K), ("BF16", Format::Bf16), ("F32", Format::F32)]
        {
            assert_eq!(named(name, "").unwrap(), QuantName::Quant(Quant::To(format)), "{name}");
        }
        assert_eq!(named("KEEP", "").unwrap(), QuantName::Quant(Quant::Keep));
        for name in ["Q4_K_M", "q4_k_m", "Q5_K_S"] {
            let QuantName::Mix(mix) = named(name, "").unwrap() else { panic!("{name} is a mix") };
            assert_eq!(mix.name.to_ascii_lowercase(), name.to_ascii_lowercase());
        }
        for (name, format) in [("F16", Format::F16), ("Q8_0", Format::Q8_0), ("f32", Format::F32)] {
            assert_eq!(cache_format(name).unwrap(), format);
        }
    }

    #[test]
    fn suggests_the_nearest_format_name() {
        for (name, meant) in [
            ("q80", "q8_0"),
            ("q8-0", "q8_0"),
            ("Q8_O", "q8_0"),
            ("q8", "q8_0"),
            ("int8", "q8_0"),
            ("fp16", "f16"),
            ("float32", "f32"),
            ("bfloat16", "bf16"),
            ("q4_km", "Q4_K_M"),
            ("q4km", "Q4_K_M"),
            ("mxfp", "mxfp4"),
            ("kepe", "keep"),
        ] {
            assert_eq!(
                error_for(name),
                format!("--quant {name}: unsupported number format; did you mean {meant}?")
            );
        }
        let Err(Error::Usage(message)) = cache_format("fp16") else { panic!("it is no name") };
        assert!(message.ends_with("did you mean f16?"), "{message}");
    }

    #[test]
    fn suggests_replacements_for_unsupported_formats() {
        for (name, instead) in
            [("Q4_1", "affine4_32"), ("q3_k_xl", "q3_k"), ("IQ3_M", "affine3"), ("f8_e4m3", "fp8")]
        {
            let message = error_for(name);
            assert!(
                message.contains("unsupported number format; use ") && message.contains(instead),
                "{message}"
            );
        }
        let message = error_for("q9_9");
        assert!(message.contains("q4_0") && message.len() < 240, "no list of fifty names: {message}");
        let Err(Error::Usage(message)) = cache_format("q4_0") else { panic!("it is not cached") };
        assert!(message.contains("--kv-cache-type q4_0") && message.contains("q8_0"), "{message}");
    }
}
