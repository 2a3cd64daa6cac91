//! Tensors and configuration keys of a checkpoint that the program does not use.

use crate::terminal;
use forge_frontend::LoadedCheckpoint;
use forge_ir::units::size;
use serde_json::{Value, json};

/// Prints the number and size of unused tensors; with `is_verbose`, every unused tensor and key.
pub(crate) fn print(opened: &LoadedCheckpoint, is_verbose: bool) {
    for note in &opened.notes {
        terminal::more(note);
    }
    let tensors = &opened.ignored;
    if !tensors.is_empty() {
        let noun = if tensors.len() == 1 { "tensor" } else { "tensors" };
        let bytes = size(bytes(opened));
        terminal::more(&format!(
            "{} {noun} not used ({bytes}): {}",
            tensors.len(),
            groups(tensors).join(", ")
        ));
    }
    if !is_verbose {
        return;
    }
    for tensor in tensors {
        terminal::more(&format!("not used: {tensor}"));
    }
    for key in &opened.keys.ignored {
        terminal::more(&format!("no effect: {key}"));
    }
}

/// The list as text, for `inspect`.
pub(crate) fn listed(opened: &LoadedCheckpoint) -> String {
    let mut text = String::new();
    for (title, names) in [("unused tensors", &opened.ignored), ("keys without effect", &opened.keys.ignored)]
    {
        if !names.is_empty() {
            text.push_str(&format!("{title}\n"));
        }
        names.iter().for_each(|name| text.push_str(&format!("  {name}\n")));
    }
    text
}

/// The list as JSON.
pub(crate) fn to_json(opened: &LoadedCheckpoint) -> Value {
    json!({
        "tensors": opened.ignored,
        "tensor_bytes": bytes(opened),
        "config_keys": opened.keys.ignored,
        "notes": opened.notes,
    })
}

/// Total bytes of unused tensors.
fn bytes(opened: &LoadedCheckpoint) -> u64 {
    opened.ignored.iter().filter_map(|name| opened.tensors.get(name)).map(|tensor| tensor.bytes).sum()
}

/// Common prefixes of tensor names up to the layer number, without duplicates, such as `model.visual.*`.
fn groups(names: &[String]) -> Vec<String> {
    const MOST: usize = 4;
    let mut groups: Vec<String> = Vec::new();
    for name in names {
        let is_module = |part: &&str| !part.chars().all(|c| c.is_ascii_digit());
        let parts: Vec<&str> = name.split('.').take_while(is_module).collect();
        let group = match parts.len() == name.split('.').count() && !name.contains('[') {
            true if parts.len() > 2 => format!("{}.*", parts[..2].join(".")),
            true => name.clone(),
            false if parts.len() < 2 || name.contains('[') => name.clone(),
            false => format!("{}.*", parts[..2].join(".")),
        };
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let more = groups.len().saturating_sub(MOST);
    groups.truncate(MOST);
    if more > 0 {
        groups.push(format!("and {more} more"));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_ignored_tensors_by_module() {
        let names = [
            "lm_head.weight",
            "model.layers.61.eh_proj.weight",
            "model.layers.61.enorm.weight",
            "model.visual.blocks.0.attn.qkv.weight",
            "model.visual.patch_embed.proj.weight",
        ];
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(groups(&names), ["lm_head.weight", "model.layers.*", "model.visual.*"]);
    }
}
