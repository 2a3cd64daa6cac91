//! Requirements on the plan as a whole: KV cache format, context length, and which layers may share a cache.

use crate::formats::Formats;
use crate::options::Options;
use crate::plan::regime::MAX_KV_SPLITS;
use forge_ir::{Apply, Diagnostic, Graph, Op, State, StateId};
use forge_ops::{BLOCK, Format};

/// Errors for layers that share a KV cache but have different sliding windows, and for shared caches in a
/// model with recurrent layers.
pub(crate) fn shared_windows(graph: &Graph) -> Vec<Diagnostic> {
    let sees = |apply: &Apply| {
        let window = |op: &Op| match op {
            Op::Attention { window, .. } => Some(window.unwrap_or(usize::MAX)),
            _ => None,
        };
        graph.body(apply).nodes.iter().filter_map(|node| window(&node.op)).max()
    };
    let mut faults = Vec::new();
    for state in (0..graph.states.len()).map(StateId) {
        let mut windows = graph.layers.iter().filter(|apply| apply.states.contains(&state)).map(sees);
        let first = windows.next();
        let shared = windows.clone().count() > 0;
        if shared && graph.states.iter().any(|state| matches!(state, State::Recurrent(_) | State::Conv(_))) {
            let message = "shared KV caches and recurrent layers in one model";
            faults.push(Diagnostic::new("F0506", message).note("forge does not support this combination"));
        } else if windows.any(|window| Some(window) != first) {
            let message = "layers that share a KV cache have different sliding windows";
            faults.push(Diagnostic::new("F0506", message));
        }
    }
    faults
}

/// Error for a model that combines MLA layers with other kinds of state.
pub(crate) fn mixed_caches(graph: &Graph) -> Option<Diagnostic> {
    let latents = graph.states.iter().filter(|state| matches!(state, State::Latents(_))).count();
    let message = "MLA layers and layers with another kind of state in one model";
    (latents > 0 && latents < graph.states.len())
        .then(|| Diagnostic::new("F0506", message).note("forge does not support this combination"))
}

pub(crate) fn cache_format(
    graph: &Graph,
    formats: &Formats,
    options: &Options,
) -> Result<Format, Vec<Diagnostic>> {
    let caches = graph.states.iter().filter_map(|state| match state {
        State::Cache(cache) => Some(cache),
        State::Latents(_) | State::Conv(_) | State::Recurrent(_) => None,
    });
    let has_latents = graph.states.iter().any(|state| matches!(state, State::Latents(_)));
    let odd = caches.into_iter().find(|cache| !cache.width.is_multiple_of(BLOCK));
    match options.cache {
        None if formats.are_exact() => Ok(Format::F32),
        None => Ok(Format::F16),
        Some(format @ (Format::F32 | Format::F16)) => Ok(format),
        Some(Format::Q8_0) if has_latents => Err(vec![
            Diagnostic::new("F0502", "the MLA cache cannot be q8_0: all heads read the same latents")
                .note("use --kv-cache-type f16"),
        ]),
        Some(Format::Q8_0) => match odd {
            None => Ok(Format::Q8_0),
            Some(cache) => Err(vec![
                Diagnostic::new(
                    "F0502",
                    format!(
                        "the KV cache cannot be q8_0: head size {} is not a multiple of {BLOCK}",
                        cache.width
                    ),
                )
                .note("use --kv-cache-type f16"),
            ]),
        },
        Some(format) => Err(vec![
            Diagnostic::new("F0502", format!("unsupported KV cache format {format}"))
                .note("use f32, f16 or q8_0, such as --kv-cache-type f16"),
        ]),
    }
}

pub(crate) fn context(graph: &Graph, options: &Options) -> Result<usize, Vec<Diagnostic>> {
    let made_for = graph.model.context;
    match options.max_context {
        Some(0) => Err(vec![Diagnostic::new("F0503", "the context length is 0")]),
        Some(requested) if requested > made_for => Err(vec![
            Diagnostic::new(
                "F0503",
                format!("context length {requested} exceeds the model's limit of {made_for}"),
            )
            .note(format!("output beyond the limit is wrong: use --max-context {made_for} or less")),
        ]),
        // Kernels compute the start of a split as position * split, in 32 bits.
        None | Some(_) if options.max_context.unwrap_or(made_for) > LONGEST_CONTEXT => Err(vec![
            Diagnostic::new("F0503", format!("context length {made_for} exceeds the kernels' limit"))
                .note(format!("use --max-context {LONGEST_CONTEXT}")),
        ]),
        Some(requested) => Ok(requested),
        None => Ok(made_for),
    }
}

/// Maximum context length whose product with the number of splits fits in 32 bits.
const LONGEST_CONTEXT: usize = u32::MAX as usize / MAX_KV_SPLITS;
