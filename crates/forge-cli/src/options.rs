//! What was asked for on the command line, as the planner takes it; and as a command that asks for it again.

use crate::arguments::CompileArguments;
use crate::auto;
use crate::checkpoint::Directory;
use crate::failure::Failure;
use forge_ir::Format;
use forge_planner::{Chip, Fusion, Options, Override, Quant, Tuned};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

/// The planner's options, and the bits a weight that formats are to be chosen for; or what is wrong with the arguments.
pub(crate) fn options(arguments: &CompileArguments) -> Result<(Options, Option<f64>), Failure> {
    let words = format!("--quant {}", arguments.quant);
    let (quant, bits) = match arguments.quant.strip_prefix(auto::PREFIX) {
        Some(bits) => {
            let number = bits.parse().ok().filter(|bits: &f64| bits.is_finite() && *bits > 0.0);
            let wrong = || Failure::misuse(format!("{words}: it is a number of bits, as in auto:5"));
            (Quant::Keep, Some(number.ok_or_else(wrong)?))
        }
        None => (quant(&arguments.quant, &words)?, None),
    };
    let overrides = arguments.quant_override.iter().map(|text| quant_override(text));
    let overrides = overrides.collect::<Result<_, _>>()?;
    let cache = match &arguments.kv {
        None => None,
        Some(name) => Some(
            Format::from_name(name)
                .filter(|format| matches!(format, Format::F32 | Format::F16 | Format::Q8_0))
                .ok_or_else(|| {
                    Failure::misuse(format!("--kv {name}: keys and values are cached as f32, f16 or q8_0"))
                })?,
        ),
    };
    let slots = usize::from(arguments.slots);
    let disabled = disabled_fusions(&arguments.disable_fusion)?;
    let named = arguments.chip.as_deref().map(chip).transpose()?;
    let chip = named.or_else(|| arguments.cuda().then(Chip::common_card));
    let tuned = arguments.tuned.as_deref().map(tuned).transpose()?;
    let max_context = arguments.max_context;
    let chunk = chip.map_or(Options::default().chunk, Chip::chunk);
    let options = Options { quant, overrides, cache, max_context, slots, disabled, chip, tuned, chunk };
    Ok((options, bits))
}

/// The format of that name, asked for by these words.
fn quant(name: &str, words: &str) -> Result<Quant, Failure> {
    Quant::from_name(name).ok_or_else(|| {
        let formats = Format::ALL.map(Format::name).join(", ");
        Failure::misuse(format!("{words}: no such format; there are keep, {formats}"))
    })
}

/// `PATTERN=FORMAT`
fn quant_override(text: &str) -> Result<Override, Failure> {
    let words = format!("--quant-override {text}");
    let (pattern, name) = text
        .rsplit_once('=')
        .ok_or_else(|| Failure::misuse(format!("{words}: it is PATTERN=FORMAT, as in lm_head=q8_0")))?;
    let quant = quant(name, &words)?;
    Override::new(pattern, quant).map_err(|why| Failure::misuse(format!("{words}: {why}")))
}

/// The table of layouts in a file.
fn tuned(path: &Path) -> Result<Tuned, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::read(path, &error))?;
    Tuned::parse(&text).map_err(|why| {
        Failure::misuse(format!(
            "{}: it is no table that a program's `tune` has written: {why}",
            path.display()
        ))
    })
}

/// The chip or the card of that name.
fn chip(name: &str) -> Result<&'static Chip, Failure> {
    Chip::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Chip::known().map(|chip| chip.name).collect();
        let known = known.join(", ");
        let meant = match &Chip::like(name)[..] {
            [] => String::new(),
            like => format!(" (did you mean {}?)", like.join(" or ")),
        };
        Failure::misuse(format!("--chip {name}: no such chip{meant}; there are {known}"))
    })
}

fn disabled_fusions(names: &[String]) -> Result<BTreeSet<Fusion>, Failure> {
    let mut disabled = BTreeSet::new();
    for name in names {
        match Fusion::from_name(name) {
            Some(fusion) => disabled.extend([fusion]),
            None if name == "all" => disabled.extend(Fusion::ALL),
            None => {
                let known = Fusion::ALL.map(Fusion::name).join(", ");
                let message = format!("--disable-fusion {name}: no such fusion; there are {known}, and all");
                return Err(Failure::misuse(message));
            }
        }
    }
    Ok(disabled)
}

/// What the model is called: as the user says, or as the checkpoint is called.
///
/// The name is written into comments and strings of the crate, each of which is one line.
pub(crate) fn name(arguments: &CompileArguments, checkpoint: &Directory) -> Result<String, Failure> {
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
        return Err(Failure::misuse(format!(
            "{from} {name:?} has a character that cannot be printed, {strange}; {advice}"
        )));
    }
    if !name.chars().any(char::is_alphanumeric) {
        return Err(Failure::misuse(format!("{from} {name:?} has neither a letter nor a digit; {advice}")));
    }
    Ok(name)
}

/// Characters that end a line or do something else to it, among them those that change the direction of what follows, which
/// Rust refuses in a comment.
fn is_unprintable(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A word of a command as a shell has to be given it, on one line.
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

/// The command that makes the crate again.
pub(crate) fn command_line(arguments: &CompileArguments) -> String {
    let mut text =
        format!("forge compile {} --quant {}", shell_word(&arguments.model), shell_word(&arguments.quant));
    let several =
        [("--quant-override", &arguments.quant_override), ("--allow-unknown", &arguments.allow_unknown)];
    for (option, values) in several {
        for value in values {
            text += &format!(" {option} {}", shell_word(value));
        }
    }
    let options = [
        arguments.name.as_ref().map(|name| format!("--name {}", shell_word(name))),
        arguments.kv.as_ref().map(|kv| format!("--kv {kv}")),
        arguments.max_context.map(|context| format!("--max-context {context}")),
        arguments.chip.as_ref().map(|chip| format!("--chip {chip}")),
        arguments.cuda().then(|| "--target metal,cuda".to_owned()),
        arguments.tuned.as_ref().map(|path| format!("--tuned {}", shell_word(&path.to_string_lossy()))),
        arguments.tunable.then(|| "--tunable".to_owned()),
        (arguments.slots != 1).then(|| format!("--slots {}", arguments.slots)),
        (!arguments.disable_fusion.is_empty())
            .then(|| format!("--disable-fusion {}", arguments.disable_fusion.join(","))),
        arguments.no_golden.then(|| "--no-golden".to_owned()),
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
    fn a_command_to_copy_is_what_was_typed() {
        let words =
            ["with space/it's a model", "--quant", "q8_0", "--quant-override", "*.{up,down}_proj=q4_0"];
        let more = ["--quant-override", "lm_head=q8_0", "--allow-unknown", "new_key", "--name", "my model"];
        let more = [&more[..], &["--tuned", "$HOME/my table.json", "--no-golden"]].concat();
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
    fn verbosity_is_no_part_of_the_command_that_makes_a_crate() {
        for words in [["model", "-v"], ["model", "--verbose"]] {
            let arguments = parsed(&words);
            assert!(arguments.verbose);
            assert_eq!(command_line(&arguments), "forge compile model --quant keep");
        }
        assert!(!parsed(&["model"]).verbose);
    }

    #[test]
    fn a_word_is_one_line_whatever_is_in_it() {
        assert_eq!(shell_word("a'b\n\\\u{85}//! c"), r"$'a\x27b\x0a\x5c\xc2\x85//! c'");
        assert_eq!(shell_word("größe"), "'größe'");
    }

    #[test]
    fn names_that_cannot_be_written_into_a_crate_are_refused() {
        let named = |model: &str, more: &[&str]| {
            let checkpoint = Directory::at(model.into());
            match name(&parsed(&[&[model], more].concat()), &checkpoint) {
                Ok(name) => name,
                Err(Failure::Misuse(said)) => said,
                Err(other) => panic!("{other:?}"),
            }
        };
        for strange in ["a\nb", "a\u{1b}[31m", "a\u{202e}b", "", "/", "--", " "] {
            let said = named("x/llama", &[&format!("--name={strange}")]);
            assert!(
                said.starts_with(&format!("--name {strange:?} has ")) && said.ends_with("choose another"),
                "{said}"
            );
        }
        let said = named("x/lla\nma", &[]);
        assert!(said.contains(r#""lla\nma""#) && said.ends_with("choose one with --name"), "{said}");
        assert_eq!(named("x/lla\nma", &["--name", "llama"]), "llama");
        assert_eq!(named("x/llama", &["--name", "大 \"1\""]), "大 \"1\"");
        assert_eq!(named("x/llama", &[]), "llama");
    }
}
