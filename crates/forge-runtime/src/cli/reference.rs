//! The command line of a program with all features, for `docs/reference/cli.md`.

use crate::cli::arguments::{
    Bench, Chat, Completions, Generate, Info, Logits, Perplexity, Profile, Serve, Tune, Verify,
};
use crate::cli::command;
use clap::Args;
use clap::builder::PossibleValue;

/// Defines one command's arguments.
type Define = fn(clap::Command) -> clap::Command;

/// The visible commands, including those whose feature is disabled, in the order of
/// [`COMMANDS`](crate::cli::COMMANDS).
const ALL: [(&str, Define); 11] = [
    ("generate", Generate::augment_args),
    ("chat", Chat::augment_args),
    ("serve", Serve::augment_args),
    ("perplexity", Perplexity::augment_args),
    ("logits", Logits::augment_args),
    ("bench", Bench::augment_args),
    ("profile", Profile::augment_args),
    ("tune", Tune::augment_args),
    ("verify", Verify::augment_args),
    ("info", Info::augment_args),
    ("completions", Completions::augment_args),
];

/// The values of `--device`, in the order of [`DeviceKind`](crate::load::DeviceKind).
const DEVICES: [(&str, &str); 4] = [
    ("auto", "The program's GPU target if this machine has such a GPU, else the CPU"),
    ("metal", "Apple GPU"),
    ("cuda", "NVIDIA GPU"),
    ("cpu", "CPU"),
];

/// The clap definition of a program with all features, whatever this build enables.
pub fn reference(name: &'static str) -> clap::Command {
    let commands = ALL.map(|(name, define)| define(clap::Command::new(name)));
    let devices = DEVICES.map(|(name, help)| PossibleValue::new(name).help(help));
    command::definition(name, "a checkpoint", &[])
        .mut_arg("device", |device| device.value_parser(devices))
        .subcommands(commands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::COMMANDS;
    use crate::load::DeviceKind;
    use clap::ValueEnum;

    #[test]
    fn the_reference_has_every_device() {
        let devices = DeviceKind::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let devices: Vec<PossibleValue> = devices.collect();
        let mut expected = DEVICES.map(|(name, help)| PossibleValue::new(name).help(help)).to_vec();
        expected.retain(|device| cfg!(feature = "cuda") || device.get_name() != "cuda");
        assert_eq!(devices, expected);
    }

    #[test]
    fn the_reference_has_every_visible_command() {
        let names = |definition: &clap::Command| -> Vec<String> {
            let visible = definition.get_subcommands().filter(|command| !command.is_hide_set());
            visible.map(|command| command.get_name().to_owned()).collect()
        };
        let mut expected = names(&reference("model"));
        expected.retain(|name| {
            (cfg!(feature = "serve") || name != "serve") && (cfg!(feature = "tune") || name != "tune")
        });
        assert_eq!(names(&command::definition("model", "ModelForCausalLM", COMMANDS)), expected);
        reference("model").debug_assert();
    }
}
