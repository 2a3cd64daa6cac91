//! Planner options from command-line arguments, and the command line that reproduces a crate.

use crate::arguments::{CALIBRATE_TOKENS, Certify, CompileArguments};
use crate::checkpoint::Directory;
use crate::error::Error;
use crate::quantize::auto;
use crate::quantize::format_names::{QuantName, cache_format, named};
use crate::quantize::mix::Mix;
use forge_planner::{Chip, Fusion, Options, Override, Quant, Tuned};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

/// Per-matrix format selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Choice {
    /// This many bits per weight on average, distributed by measured quantization error.
    Bits(f64),
    /// By matrix role.
    Mix(&'static Mix),
}

/// The planner's options, and the per-matrix format selection if `--quant` names one.
pub(crate) fn options(arguments: &CompileArguments) -> Result<(Options, Option<Choice>), Error> {
    let words = format!("--quant {}", arguments.quant);
    let auto =
        arguments.quant.get(..auto::PREFIX.len()).filter(|start| start.eq_ignore_ascii_case(auto::PREFIX));
    let (quant, choice) = match auto.map(|start| &arguments.quant[start.len()..]) {
        Some(bits) => {
            let number = bits.parse().ok().filter(|bits: &f64| bits.is_finite() && *bits > 0.0);
            let wrong =
                || Error::usage(format!("{words}: expected a positive number of bits, such as auto:5"));
            (Quant::Keep, Some(Choice::Bits(number.ok_or_else(wrong)?)))
        }
        None => match named(&arguments.quant, &words)? {
            QuantName::Quant(quant) => (quant, None),
            QuantName::Mix(mix) => (Quant::Keep, Some(Choice::Mix(mix))),
        },
    };
    let overrides = arguments.quant_override.iter().map(|text| quant_override(text));
    let overrides = overrides.collect::<Result<_, _>>()?;
    let cache = arguments.kv_cache_type.as_deref().map(cache_format).transpose()?;
    let slots = usize::from(arguments.report_slots);
    let disabled = disabled_fusions(&arguments.disable_fusion)?;
    let named = arguments.chip.as_deref().map(chip).transpose()?;
    let chip = named.or_else(|| arguments.cuda().then(Chip::common_card));
    let tuned = arguments.tuned.as_deref().map(tuned).transpose()?;
    let max_context = arguments.max_context;
    let chunk = chip.map_or(Options::default().chunk, Chip::chunk);
    let options = Options { quant, overrides, cache, max_context, slots, disabled, chip, tuned, chunk };
    Ok((options, choice))
}

/// `PATTERN=FORMAT`
fn quant_override(text: &str) -> Result<Override, Error> {
    let words = format!("--quant-override {text}");
    let (pattern, name) = text
        .rsplit_once('=')
        .ok_or_else(|| Error::usage(format!("{words}: expected PATTERN=FORMAT, such as lm_head=q8_0")))?;
    let quant = match named(name, &words)? {
        QuantName::Quant(quant) => quant,
        QuantName::Mix(mix) => {
            let why = "is a mix for a whole model; use a single format, such as lm_head=q6_k";
            return Err(Error::usage(format!("{words}: {} {why}", mix.name)));
        }
    };
    Override::new(pattern, quant).map_err(|why| Error::usage(format!("{words}: {why}")))
}

/// Tuning results read from a file.
fn tuned(path: &Path) -> Result<Tuned, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::read(path, &error))?;
    Tuned::parse(&text).map_err(|why| {
        Error::usage(format!("{}: not a file written by a program's `tune` command: {why}", path.display()))
    })
}

/// The GPU of that name.
fn chip(name: &str) -> Result<&'static Chip, Error> {
    Chip::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Chip::known().map(|chip| chip.name).collect();
        let known = known.join(", ");
        let meant = match &Chip::like(name)[..] {
            [] => String::new(),
            like => format!(" (did you mean {}?)", like.join(" or ")),
        };
        Error::usage(format!("--chip {name}: unknown chip{meant}; expected one of {known}"))
    })
}

fn disabled_fusions(names: &[String]) -> Result<BTreeSet<Fusion>, Error> {
    let mut disabled = BTreeSet::new();
    for name in names {
        match Fusion::from_name(name) {
            Some(fusion) => disabled.extend([fusion]),
            None if name == "all" => disabled.extend(Fusion::ALL),
            None => {
                let known = Fusion::ALL.map(Fusion::name).join(", ");
                let message =
                    format!("--disable-fusion {name}: unknown fusion; expected one of {known}, or all");
                return Err(Error::usage(message));
            }
        }
    }
    Ok(disabled)
}

/// The model's name: `--name`, or the checkpoint's name.
///
/// It is written into comments and strings of the crate, so it must fit on one line.
pub(crate) fn name(arguments: &CompileArguments, checkpoint: &Directory) -> Result<String, Error> {
    let (name, from) = match &arguments.name {
        Some(name) => (name.clone(), "--name"),
        None => (checkpoint.name(&arguments.model), "the checkpoint's name"),
    };
    let advice = match &arguments.name {
        Some(_) => "choose another",
        None => "choose one with --name",
    };
    if let Some(strange) = name.chars().find(|c| is_unprintable(*c)) {
        let strange = strange.escape_unicode();
        return Err(Error::usage(format!(
            "{from} {name:?} contains the unprintable character {strange}; {advice}"
        )));
    }
    if !name.chars().any(char::is_alphanumeric) {
        return Err(Error::usage(format!("{from} {name:?} contains neither a letter nor a digit; {advice}")));
    }
    Ok(name)
}

/// Whether a character is a control or line-breaking character, or changes text direction. Rust rejects the
/// latter in comments.
fn is_unprintable(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A word quoted for a shell, on one line.
pub(crate) fn shell_word(word: &str) -> Cow<'_, str> {
    match shlex::try_quote(word) {
        Ok(quoted) if !word.chars().any(is_unprintable) => quoted,
        _ => {
            let byte = |byte: u8| match byte {
                b' '..=b'~' if !b"\\'".contains(&byte) => char::from(byte).to_string(),
                _ => format!("\\x{byte:02x}"),
            };
            Cow::Owned(format!("$'{}'", word.bytes().map(byte).collect::<String>()))
        }
    }
}

/// The command that reproduces the crate.
pub(crate) fn command_line(arguments: &CompileArguments) -> String {
    let mut text =
        format!("forge compile {} --quant {}", shell_word(&arguments.model), shell_word(&arguments.quant));
    let several = [
        ("--quant-override", &arguments.quant_override),
        ("--ignore-config-key", &arguments.ignore_config_key),
    ];
    for (option, values) in several {
        for value in values {
            text += &format!(" {option} {}", shell_word(value));
        }
    }
    let options = [
        arguments
            .calibrate
            .as_ref()
            .map(|path| format!("--calibrate {}", shell_word(&path.to_string_lossy()))),
        arguments.imatrix.as_ref().map(|path| format!("--imatrix {}", shell_word(&path.to_string_lossy()))),
        (arguments.calibrate_tokens != CALIBRATE_TOKENS)
            .then(|| format!("--calibrate-tokens {}", arguments.calibrate_tokens)),
        arguments.name.as_ref().map(|name| format!("--name {}", shell_word(name))),
        arguments.kv_cache_type.as_ref().map(|kv| format!("--kv-cache-type {kv}")),
        arguments.max_context.map(|context| format!("--max-context {context}")),
        arguments.chip.as_ref().map(|chip| format!("--chip {chip}")),
        arguments.cuda().then(|| "--target metal,cuda".to_owned()),
        arguments.tuned.as_ref().map(|path| format!("--tuned {}", shell_word(&path.to_string_lossy()))),
        arguments.runtime.as_ref().map(|path| format!("--runtime {}", shell_word(&path.to_string_lossy()))),
        arguments.with_tuning.then(|| "--with-tuning".to_owned()),
        (arguments.report_slots != 1).then(|| format!("--report-slots {}", arguments.report_slots)),
        (!arguments.disable_fusion.is_empty())
            .then(|| format!("--disable-fusion {}", arguments.disable_fusion.join(","))),
        match arguments.certify() {
            Certify::Full => None,
            Certify::Quick => Some("--certify quick".to_owned()),
            Certify::None => Some("--certify none".to_owned()),
        },
    ];
    for option in options.into_iter().flatten() {
        text.push(' ');
        text.push_str(&option);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    fn parsed(words: &[&str]) -> CompileArguments {
        let words = ["forge", "compile", "-o", "out"].iter().chain(words);
        match Arguments::try_parse_from(words).unwrap().command {
            Command::Compile { compile, .. } => compile,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn recorded_command_reproduces_the_arguments() {
        let words =
            ["with space/it's a model", "--quant", "q8_0", "--quant-override", "*.{up,down}_proj=q4_0"];
        let more =
            ["--quant-override", "lm_head=q8_0", "--ignore-config-key", "new_key", "--calibrate", "my text"];
        let more = [&more[..], &["--calibrate-tokens", "99", "--name", "my model"]].concat();
        let more = [&more[..], &["--tuned", "$HOME/my table.json", "--certify", "quick"]].concat();
        let text = command_line(&parsed(&[&words[..], &more].concat()));
        assert_eq!(
            shlex::split(&text).unwrap(),
            [&["forge", "compile"], &words[..], &more].concat(),
            "{text}"
        );
        assert_eq!(
            command_line(&parsed(&["owner/Model-1.5B"])),
            "forge compile owner/Model-1.5B --quant keep"
        );
    }

    #[test]
    fn recorded_command_names_the_effort_for_reference_logits() {
        for (words, expected) in [
            (&["model", "--no-reference-logits"][..], " --certify none"),
            (&["model", "--certify", "none"], " --certify none"),
            (&["model", "--certify", "full"], ""),
        ] {
            assert_eq!(command_line(&parsed(words)), format!("forge compile model --quant keep{expected}"));
        }
    }

    #[test]
    fn recorded_command_omits_verbosity() {
        for words in [["model", "-v"], ["model", "--verbose"]] {
            let arguments = parsed(&words);
            assert!(arguments.verbose);
            assert_eq!(command_line(&arguments), "forge compile model --quant keep");
        }
        assert!(!parsed(&["model"]).verbose);
    }

    #[test]
    fn format_names_ignore_case_and_mixes_apply_to_whole_models() {
        let quant = |words: &[&str]| options(&parsed(&[&["model"], words].concat()));
        let (parsed_options, choice) =
            quant(&["--quant", "Q8_0", "--quant-override", "lm_head=F16", "--kv-cache-type", "Q8_0"])
                .unwrap();
        assert_eq!((parsed_options.quant.to_string(), choice), ("q8_0".to_owned(), None));
        assert_eq!(parsed_options.overrides[0].to().to_string(), "f16");
        assert_eq!(parsed_options.cache.map(|format| format.name()), Some("q8_0"));
        let (_, choice) = quant(&["--quant", "q4_k_m"]).unwrap();
        assert_eq!(choice, Mix::from_name("Q4_K_M").map(Choice::Mix));
        assert_eq!(quant(&["--quant", "AUTO:5"]).unwrap().1, Some(Choice::Bits(5.0)));
        let Err(Error::Usage(message)) = quant(&["--quant-override", "lm_head=Q4_K_M"]) else {
            panic!("it is a mix")
        };
        assert!(message.contains("whole model") && message.contains("lm_head=q6_k"), "{message}");
    }

    #[test]
    fn shell_words_are_quoted_on_one_line() {
        assert_eq!(shell_word("a'b\n\\\u{85}//! c"), r"$'a\x27b\x0a\x5c\xc2\x85//! c'");
        assert_eq!(shell_word("größe"), "'größe'");
    }

    #[test]
    fn rejects_invalid_crate_names() {
        let named = |model: &str, more: &[&str]| {
            let checkpoint = Directory::at(model.into());
            match name(&parsed(&[&[model], more].concat()), &checkpoint) {
                Ok(name) => name,
                Err(Error::Usage(message)) => message,
                Err(other) => panic!("{other:?}"),
            }
        };
        for strange in ["a\nb", "a\u{1b}[31m", "a\u{202e}b", "", "/", "--", " "] {
            let message = named("x/llama", &[&format!("--name={strange}")]);
            assert!(
                message.starts_with(&format!("--name {strange:?} contains "))
                    && message.ends_with("choose another"),
                "{message}"
            );
        }
        let message = named("x/lla\nma", &[]);
        assert!(message.contains(r#""lla\nma""#) && message.ends_with("choose one with --name"), "{message}");
        assert_eq!(named("x/lla\nma", &["--name", "llama"]), "llama");
        assert_eq!(named("x/llama", &["--name", "大 \"1\""]), "大 \"1\"");
        assert_eq!(named("x/llama", &[]), "llama");
    }
}
