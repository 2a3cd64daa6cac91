//! Text models inside multimodal checkpoints, configured by `text_config`.

use crate::config::ignored_keys;
use crate::config::section::Section;

/// Reads the text model of a multimodal configuration of the first family. The text model must be of the
/// second. `place` has the prefixes of its tensor names and any further adjustment.
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
    let why = format!("expected the text model of {wrapper}");
    text.allow_only("model_type", family, &why);
    text.configures(family);
    let mut model = read(&text);
    place(&text, &mut model);
    for key in ["bos_token_id", "eos_token_id"] {
        // Duplicated outside text_config and in generation_config.json.
        text.mark_inert(key);
    }
    ignored_keys::check(&text, family);
    model
}
