//! Text models that a checkpoint wraps together with what sees or hears: their keys are in `text_config`.

use crate::config::Section;
use crate::ignored_keys;

/// Reads the text model of a configuration of the first of these families, which has to be of the second; `place` says where
/// its tensors are there, and what else is to be said of the two together.
pub(crate) fn read<T>(
    config: &Section<'_>,
    [wrapper, family]: [&'static str; 2],
    read: impl Fn(&Section<'_>) -> T,
    place: impl FnOnce(&Section<'_>, &mut T),
) -> T {
    let Some(text) = config.section("text_config") else {
        config.count("text_config");
        return read(config);
    };
    let why = format!("forge knows {wrapper} with a text model of its own alone");
    text.only("model_type", family, &why);
    text.configures(family);
    let mut model = read(&text);
    place(&text, &mut model);
    for key in ["bos_token_id", "eos_token_id"] {
        // The same tokens are told beside it, and in generation_config.json.
        text.pass_over(key);
    }
    ignored_keys::check(&text, family);
    model
}
