//! What was asked for on the command line, as the planner takes it; and as a command that asks for it again.

use crate::arguments::CompileArguments;
use crate::auto;
use crate::failure::Failure;
use forge_ir::Format;
use forge_planner::{Chip, Fusion, Options, Override, Quant, Tuned};
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

/// The command that makes the crate again.
pub(crate) fn command_line(arguments: &CompileArguments) -> String {
    let mut text = format!("forge compile {} --quant {}", arguments.model, arguments.quant);
    for it in &arguments.quant_override {
        // What a shell would take for itself is quoted.
        let plain = it.chars().all(|c| c.is_ascii_alphanumeric() || "._=-".contains(c));
        text += &if plain { format!(" --quant-override {it}") } else { format!(" --quant-override '{it}'") };
    }
    let options = [
        arguments.kv.as_ref().map(|kv| format!("--kv {kv}")),
        arguments.max_context.map(|context| format!("--max-context {context}")),
        arguments.chip.as_ref().map(|chip| format!("--chip {chip}")),
        arguments.cuda().then(|| "--target metal,cuda".to_owned()),
        arguments.tuned.as_ref().map(|path| format!("--tuned {}", path.display())),
        arguments.tunable.then(|| "--tunable".to_owned()),
        (arguments.slots != 1).then(|| format!("--slots {}", arguments.slots)),
        (!arguments.disable_fusion.is_empty())
            .then(|| format!("--disable-fusion {}", arguments.disable_fusion.join(","))),
    ];
    for option in options.into_iter().flatten() {
        text.push(' ');
        text.push_str(&option);
    }
    text
}
