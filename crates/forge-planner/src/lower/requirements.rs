//! What is asked of a plan as a whole, and refused where forge has no program for it: what a cache keeps, of how many positions, and
//! which layers share it.

use crate::formats::Formats;
use crate::options::Options;
use crate::plan::regime::MAX_SHARES;
use forge_ir::{Apply, BLOCK, Diagnostic, Format, Graph, Op, State, StateId};

/// The faults of layers that share a cache and see windows of different lengths, as what it keeps is what they see; or that
/// share one beside layers that have none.
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
        if shared && graph.states.iter().any(|state| matches!(state, State::Memory(_) | State::Tail(_))) {
            let message = "layers share keys and values where others remember otherwise";
            faults.push(Diagnostic::new("F0506", message).note("forge has no program for both in one model"));
        } else if windows.any(|window| Some(window) != first) {
            let message = "layers that share keys and values see windows of different lengths";
            faults.push(Diagnostic::new("F0506", message));
        }
    }
    faults
}

/// The fault of layers that keep latents beside layers that keep something else.
pub(crate) fn mixed_caches(graph: &Graph) -> Option<Diagnostic> {
    let latents = graph.states.iter().filter(|state| matches!(state, State::Latents(_))).count();
    let message = "some layers keep latents, and others remember otherwise";
    (latents > 0 && latents < graph.states.len())
        .then(|| Diagnostic::new("F0506", message).note("forge has no program for both in one model"))
}

pub(crate) fn cache_format(
    graph: &Graph,
    formats: &Formats,
    options: &Options,
) -> Result<Format, Vec<Diagnostic>> {
    let caches = graph.states.iter().filter_map(|state| match state {
        State::Cache(cache) => Some(cache),
        State::Latents(_) | State::Tail(_) | State::Memory(_) => None,
    });
    let has_latents = graph.states.iter().any(|state| matches!(state, State::Latents(_)));
    let odd = caches.into_iter().find(|cache| !cache.width.is_multiple_of(BLOCK));
    match options.cache {
        None if formats.are_exact() => Ok(Format::F32),
        None => Ok(Format::F16),
        Some(format @ (Format::F32 | Format::F16)) => Ok(format),
        Some(Format::Q8_0) if has_latents => Err(vec![
            Diagnostic::new("F0502", "latents cannot be cached as q8_0: they are the values of all heads at once")
                .note("the cache can be kept in halves: --kv-cache-type f16"),
        ]),
        Some(Format::Q8_0) => match odd {
            None => Ok(Format::Q8_0),
            Some(cache) => Err(vec![
                Diagnostic::new(
                    "F0502",
                    format!(
                        "keys and values cannot be cached as q8_0: heads of {} channels are no multiple of {BLOCK}, \
                         which share a scale",
                        cache.width
                    ),
                )
                .note("the cache can be kept in halves: --kv-cache-type f16"),
            ]),
        },
        Some(format) => Err(vec![
            Diagnostic::new("F0502", format!("keys and values cannot be cached as {format}"))
                .note("the cache is kept as f32, f16 or q8_0: --kv-cache-type f16"),
        ]),
    }
}

pub(crate) fn context(graph: &Graph, options: &Options) -> Result<usize, Vec<Diagnostic>> {
    let made_for = graph.model.context;
    match options.max_context {
        Some(0) => Err(vec![Diagnostic::new("F0503", "a context of 0 positions holds nothing")]),
        Some(asked) if asked > made_for => Err(vec![
            Diagnostic::new(
                "F0503",
                format!("the model was made for {made_for} positions, and {asked} were asked for"),
            )
            .note("past the positions it was made for, a model gives wrong text: --max-context at most this"),
        ]),
        // Kernels find a split's share of a cache as position * split, in 32 bits.
        None | Some(_) if options.max_context.unwrap_or(made_for) > LONGEST_CONTEXT => Err(vec![
            Diagnostic::new(
                "F0503",
                format!("a context of {made_for} positions is beyond what kernels count"),
            )
            .note(format!("choose a shorter one: --max-context {LONGEST_CONTEXT}")),
        ]),
        Some(asked) => Ok(asked),
        None => Ok(made_for),
    }
}

/// The most positions whose products with the number of splits fit 32 bits.
const LONGEST_CONTEXT: usize = u32::MAX as usize / MAX_SHARES;
