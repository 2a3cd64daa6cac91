//! Sliding windows: layers in which a row attends only to the last positions, including its own.
//!
//! A window as wide as the context counts as none.

use crate::config::section::Section;

/// The windows of a model's layers.
pub(crate) struct Windows {
    /// Window size in positions; `None` if no layer has a window.
    width: Option<usize>,
    layers: Layers,
}

/// Which layers have a window.
enum Layers {
    All,
    /// The first, third, fifth and so on.
    EverySecond,
    /// All but every nth.
    AllBut(usize),
    /// The first, third and so on, before this layer.
    EverySecondBefore(f64),
    /// From this layer on.
    From(f64),
    Listed(Vec<bool>),
}

/// Default window size of such architectures' configuration classes.
const DEFAULT_WINDOW: usize = 4096;

impl Windows {
    /// No layer has a window.
    pub(crate) fn none() -> Windows {
        Windows { width: None, layers: Layers::All }
    }

    /// All layers have a window unless `sliding_window` is null.
    pub(crate) fn of_all(config: &Section<'_>, context: usize) -> Windows {
        Windows { width: width(config, context), layers: Layers::All }
    }

    /// The layers given by `layer_types` have a window, by default every second one.
    pub(crate) fn alternating(config: &Section<'_>, layers: usize, context: usize) -> Windows {
        Windows::listed_or(config, layers, (context, DEFAULT_WINDOW), || Layers::EverySecond)
    }

    /// Like [`Windows::alternating`], with another default window size.
    pub(crate) fn alternating_or(
        config: &Section<'_>,
        layers: usize,
        context: usize,
        usual: usize,
    ) -> Windows {
        Windows::listed_or(config, layers, (context, usual), || Layers::EverySecond)
    }

    /// The layers given by `layer_types` have a window, by default all but every `sliding_window_pattern`th.
    pub(crate) fn all_but_every_nth(
        config: &Section<'_>,
        layers: usize,
        context: usize,
        pattern: usize,
    ) -> Windows {
        config.mark_inert("sliding_window_pattern");
        let usual = || Layers::AllBut(config.count_or("sliding_window_pattern", pattern));
        Windows::listed_or(config, layers, (context, DEFAULT_WINDOW), usual)
    }

    /// The layers given by `layer_types` have a window, by default all but every sixth. The last layer never
    /// has one.
    pub(crate) fn of_all_but_the_last(config: &Section<'_>, layers: usize, context: usize) -> Windows {
        let usual = || (0..layers).map(|layer| !(layer + 1).is_multiple_of(6)).collect();
        let mut listed = listed(config, layers).unwrap_or_else(usual);
        if let Some(last) = listed.last_mut() {
            *last = false;
        }
        reject_null_window(config, listed.contains(&true));
        let width = Some(config.count_or("sliding_window", 512)).filter(|width| *width < context);
        Windows { width, layers: Layers::Listed(listed) }
    }

    fn listed_or(
        config: &Section<'_>,
        layers: usize,
        (context, wide): (usize, usize),
        usual: impl Fn() -> Layers,
    ) -> Windows {
        let listed = listed(config, layers);
        let has_some = listed.as_ref().is_none_or(|listed| listed.contains(&true));
        reject_null_window(config, has_some);
        let layers = listed.map_or_else(usual, Layers::Listed);
        Windows { width: width_or(config, context, wide), layers }
    }

    /// If `use_sliding_window` is true, the layers given by `layer_types` have a window, by default those
    /// from `max_window_layers` on.
    pub(crate) fn from_max_window_layers(config: &Section<'_>, layers: usize, context: usize) -> Windows {
        Windows::if_used(config, layers, context, Layers::From)
    }

    /// If `use_sliding_window` is true, the layers given by `layer_types` have a window, by default every
    /// second one before `max_window_layers`.
    pub(crate) fn before_max_window_layers(config: &Section<'_>, layers: usize, context: usize) -> Windows {
        Windows::if_used(config, layers, context, Layers::EverySecondBefore)
    }

    fn if_used(config: &Section<'_>, layers: usize, context: usize, usual: fn(f64) -> Layers) -> Windows {
        // The width has no effect without windows, and the first layer none if layers are listed.
        config.mark_inert("sliding_window");
        config.mark_inert("max_window_layers");
        let is_used = config.flag_or("use_sliding_window", false);
        let listed = listed(config, layers);
        if !is_used || config.is_null("sliding_window") {
            if listed.is_some_and(|listed| listed.contains(&true)) {
                let message = "layer_types has sliding-window layers, but the other keys disable windows";
                config.report_inconsistency("layer_types", message.to_owned());
            }
            return Windows::none();
        }
        // May be 0, so it is not read as a count.
        let usual = || usual(config.number_or("max_window_layers", 28.0));
        let layers = listed.map_or_else(usual, Layers::Listed);
        Windows { width: width(config, context), layers }
    }

    /// All layers have a window if `use_sliding_window` is true.
    pub(crate) fn all_if_used(config: &Section<'_>, context: usize) -> Windows {
        config.mark_inert("sliding_window");
        match config.flag_or("use_sliding_window", false) {
            true => Windows::of_all(config, context),
            false => Windows::none(),
        }
    }

    /// The window of a layer.
    pub(crate) fn of(&self, layer: usize) -> Option<usize> {
        self.width.filter(|_| self.include(layer))
    }

    /// Whether a layer is a sliding-window layer, even if its window covers the whole context.
    pub(crate) fn include(&self, layer: usize) -> bool {
        match &self.layers {
            Layers::All => true,
            Layers::EverySecond => layer.is_multiple_of(2),
            Layers::AllBut(pattern) => !(layer + 1).is_multiple_of(*pattern),
            Layers::EverySecondBefore(end) => layer.is_multiple_of(2) && (layer as f64) < *end,
            Layers::From(first) => layer as f64 >= *first,
            Layers::Listed(listed) => listed.get(layer).copied().unwrap_or(false),
        }
    }
}

fn reject_null_window(config: &Section<'_>, has_some: bool) {
    if has_some && config.is_null("sliding_window") {
        let message = "some layers have a window, but sliding_window is null";
        config.report_inconsistency("sliding_window", message.to_owned());
    }
}

/// `sliding_window`: the default if absent, none if null.
fn width(config: &Section<'_>, context: usize) -> Option<usize> {
    width_or(config, context, DEFAULT_WINDOW)
}

fn width_or(config: &Section<'_>, context: usize, usual: usize) -> Option<usize> {
    if config.is_null("sliding_window") {
        return None;
    }
    Some(config.count_or("sliding_window", usual)).filter(|width| *width < context)
}

/// Whether each layer has a window, from `layer_types`.
fn listed(config: &Section<'_>, layers: usize) -> Option<Vec<bool>> {
    let words = config.words("layer_types")?;
    if words.len() != layers {
        let message = format!("layer_types has {} entries for {layers} layers", words.len());
        config.report_inconsistency("layer_types", message);
    }
    let known = |word: &&str| ["full_attention", "sliding_attention"].contains(word);
    if let Some(other) = words.iter().find(|word| !known(word)) {
        config.reject("layer_types", &format!("unsupported layer type {other}"), &[]);
    }
    Some(words.iter().map(|word| *word == "sliding_attention").collect())
}
