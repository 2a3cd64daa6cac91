//! Number format of each matrix: the default for all matrices, then overrides by name.
//!
//! An [`Override`] is a glob pattern with a format. It matches tensor names of the checkpoint, with or
//! without `.weight`. The last matching override wins. An override that matches nothing is an error.
//!
//! Routers keep the checkpoint's format unless an override matches ([`choosing`]): they are small, and an
//! error in a router logit selects another expert.
//!
//! A tied head is the embedding table under a second name, `lm_head`. It has the table's format unless an
//! override matches `lm_head` and not the table's name. Then [`untie`] gives the head its own weight, and the
//! table is packed twice.
//!
//! Layers that shared a body may get different formats. [`Formats::split_bodies`] splits such bodies,
//! so that rules and steps see one format for each parameter.

pub(crate) mod budget;
mod diagnostics;
mod overrides;
mod tied_head;

pub use crate::formats::overrides::Override;

use crate::formats::diagnostics::{is_matrix, unmatched, unpadded, unpaired};
use crate::formats::tied_head::{HEAD, TiedHead};
use crate::options::{Options, Quant};
use forge_ir::{Apply, Body, BodyId, Diagnostic, Draft, Graph, Node, Op, ParamId, Weight, WeightId};
use forge_ops::Format;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

/// The stored format of every weight.
pub(crate) struct Formats {
    /// Indexed by weight; f32 for vectors.
    formats: Vec<Format>,
    /// Whether a head that shares the table's weight needs another format.
    head_is_apart: bool,
}

impl Formats {
    /// Resolves the options.
    pub(crate) fn new(graph: &Graph, options: &Options) -> Result<Formats, Vec<Diagnostic>> {
        let ends = TiedHead::of(graph);
        let mut formats_of = vec![options.quant; graph.weights.len()];
        if matches!(options.quant, Quant::To(format) if format.is_quantized()) {
            choosing(graph).into_iter().for_each(|id| formats_of[id.0] = Quant::Keep);
        }
        // Override that applies to a tied head alone.
        let mut of_head = None;
        let mut faults = Vec::new();
        for rule in &options.overrides {
            let mut matched = false;
            for (index, weight) in graph.weights.iter().enumerate().filter(|(_, weight)| is_matrix(weight)) {
                if rule.matches(&weight.tensor) && ends.follower != Some(WeightId(index)) {
                    formats_of[index] = rule.to;
                    matched = true;
                }
            }
            if let Some((table, _)) = ends.tied
                && rule.matches(HEAD)
            {
                of_head = (!rule.matches(&graph.weights[table.0].tensor)).then_some(rule.to);
                matched = true;
            }
            if !matched {
                faults.push(unmatched(graph, rule, ends.tied.is_some()));
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let stored = |quant, weight: &Weight| match quant {
            _ if !is_matrix(weight) => Format::F32,
            Quant::Keep => weight.format,
            Quant::To(format) => format,
        };
        let mut formats: Vec<Format> =
            formats_of.into_iter().zip(&graph.weights).map(|(quant, weight)| stored(quant, weight)).collect();
        let mut head_is_apart = false;
        if let Some((table, head)) = ends.tied {
            let format = of_head.map_or(formats[table.0], |quant| stored(quant, &graph.weights[table.0]));
            head_is_apart = table == head && format != formats[table.0];
            if table != head {
                formats[head.0] = format;
            }
        }
        let faults = [unpadded(graph, &formats), unpaired(graph, &formats)].concat();
        if faults.is_empty() { Ok(Formats { formats, head_is_apart }) } else { Err(faults) }
    }

    /// Format of a matrix merged from these weights, which all have one format.
    pub(crate) fn of(&self, parts: &[WeightId]) -> Format {
        let format = parts.first().map_or(Format::F32, |part| self.formats[part.0]);
        debug_assert!(parts.iter().all(|part| self.formats[part.0] == format), "one matrix, one format");
        format
    }

    /// Whether every matrix is f32.
    pub(crate) fn are_exact(&self) -> bool {
        self.formats.iter().all(|format| *format == Format::F32)
    }

    /// Format of every parameter of a body in this application; f32 for vectors.
    pub(crate) fn of_params(&self, body: &Body, apply: &Apply) -> Vec<Format> {
        let format = |param| apply.weight(body, ParamId(param)).map_or(Format::F32, |id| self.formats[id.0]);
        (0..body.params.len()).map(format).collect()
    }

    /// Splits bodies so that each has one format per parameter; bodies are ordered by first application.
    pub(crate) fn split_bodies(&self, graph: &Graph) -> Result<Graph, Vec<Diagnostic>> {
        let mut draft = Draft::clone(graph);
        let mut bodies = Vec::new();
        let mut known: BTreeMap<(BodyId, Vec<Format>), BodyId> = BTreeMap::new();
        let Draft { prologue, layers, epilogue, .. } = &mut draft;
        for apply in std::iter::once(prologue).chain(layers).chain(std::iter::once(epilogue)) {
            let body = graph.body(apply);
            apply.body = *known.entry((apply.body, self.of_params(body, apply))).or_insert_with(|| {
                bodies.push(body.clone());
                BodyId(bodies.len() - 1)
            });
        }
        draft.bodies = bodies;
        draft.validate()
    }
}

/// Gives a tied head its own weight if its format differs from the table's.
///
/// # Errors
///
/// If an override matches nothing.
pub fn untie(graph: Graph, options: &Options) -> Result<Graph, Vec<Diagnostic>> {
    let Some((table, _)) = TiedHead::of(&graph).tied else { return Ok(graph) };
    if !Formats::new(&graph, options)?.head_is_apart {
        return Ok(graph);
    }
    let mut draft = Draft::clone(&graph);
    let own = WeightId(draft.weights.len());
    draft.weights.push(draft.weights[table.0].clone());
    draft.epilogue.weights.iter_mut().filter(|id| **id == table).for_each(|id| *id = own);
    draft.validate()
}

impl Formats {
    /// Returns an error if [`untie`] is still needed.
    pub(crate) fn expect_untied(self) -> Result<Formats, Vec<Diagnostic>> {
        let fault = || {
            Diagnostic::new(
                "F0505",
                format!("{HEAD} is tied to the embedding table and cannot have another format"),
            )
        };
        if self.head_is_apart { Err(vec![fault()]) } else { Ok(self) }
    }
}

/// Matrices that choose experts: routers, and the one-row gates of shared experts. They are merged and
/// therefore have one format.
fn choosing(graph: &Graph) -> BTreeSet<WeightId> {
    let mut all = BTreeSet::new();
    for apply in graph.applications() {
        let body = graph.body(apply);
        let projected = |node: &Node| match node.op {
            Op::Linear { weight, .. } => apply.weight(body, weight),
            _ => None,
        };
        let mut routes = body.nodes.iter().filter(|node| matches!(node.op, Op::Route(_))).peekable();
        if routes.peek().is_some() {
            let gates = body.nodes.iter().filter_map(projected);
            all.extend(gates.filter(|id| graph.weights[id.0].rows() == 1));
        }
        for route in routes {
            let producers = |node: &&Node| node.inputs.first().and_then(|value| body.producer(*value));
            all.extend(successors(Some(route), producers).find_map(projected));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::tests::graph;

    fn options_with(overrides: &[&str]) -> Options {
        let parse = |text: &&str| {
            let (pattern, to) = text.split_once('=').expect("pattern=format");
            Override::new(pattern, Quant::from_name(to).expect("a format")).expect("a pattern")
        };
        let overrides = overrides.iter().map(parse).collect();
        Options { quant: Quant::To(Format::Q4_0), overrides, ..Options::default() }
    }

    /// `name format` of every matrix after untying, without duplicates.
    fn formats(tied: bool, overrides: &[&str]) -> Vec<String> {
        let options = options_with(overrides);
        let graph = untie(graph(tied, Format::Bf16), &options).expect("patterns match");
        let formats = Formats::new(&graph, &options).expect("patterns match");
        let mut all: Vec<String> = graph
            .weights
            .iter()
            .enumerate()
            .filter(|(_, weight)| is_matrix(weight))
            .map(|(index, weight)| format!("{} {}", weight.tensor, formats.of(&[WeightId(index)])))
            .collect();
        all.dedup();
        all
    }

    #[test]
    fn the_last_override_that_matches_wins() {
        let rest = ["in_a", "out_a", "in_b", "out_b"];
        let layer = |formats: [&str; 4]| {
            rest.iter().zip(formats).map(|(name, format)| format!("{name} {format}")).collect::<Vec<_>>()
        };
        let layers = |formats| [layer(formats), layer(formats)].concat();
        let with = |ends: &[&str], formats| {
            [ends.iter().map(|end| (*end).to_owned()).collect(), layers(formats)].concat()
        };
        let cases: [(&[&str], Vec<String>); 4] = [
            (&[], with(&["table q4_0", "head q4_0"], ["q4_0"; 4])),
            (&["in_*=q8_0"], with(&["table q4_0", "head q4_0"], ["q8_0", "q4_0", "q8_0", "q4_0"])),
            (
                &["in_*=q8_0", "*_a=keep"],
                with(&["table q4_0", "head q4_0"], ["bf16", "bf16", "q8_0", "q4_0"]),
            ),
            (
                &["{table,out_?}=f16", "table=f32"],
                with(&["table f32", "head q4_0"], ["q4_0", "f16", "q4_0", "f16"]),
            ),
        ];
        for (overrides, expected) in cases {
            assert_eq!(formats(false, overrides), expected, "{overrides:?}");
        }
    }

    #[test]
    fn tied_heads_use_the_tables_format_unless_overridden() {
        let ends = |overrides: &[&str]| {
            let all = formats(true, overrides);
            all.into_iter().filter(|it| it.starts_with("table")).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(ends(&[]), "table q4_0");
        assert_eq!(ends(&["table=q8_0"]), "table q8_0");
        assert_eq!(ends(&["lm_head=q8_0"]), "table q4_0, table q8_0");
        assert_eq!(ends(&["lm_head=q8_0", "table=f16"]), "table f16, table q8_0");
        assert_eq!(ends(&["lm_head=q8_0", "*=f16"]), "table f16");
        assert_eq!(ends(&["lm_head=q4_0"]), "table q4_0");
        let tied = graph(true, Format::Bf16);
        assert_eq!(untie(tied.clone(), &options_with(&["lm_head=q4_0"])).as_ref(), Ok(&tied));
    }

    #[test]
    fn rows_that_are_not_whole_superblocks_are_rejected() {
        let graph = graph(false, Format::Bf16);
        let faults =
            Formats::new(&graph, &options_with(&["in_a=q6_k", "table=q5_k"])).err().expect("they are not");
        let messages: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "q5_k needs rows of a multiple of 256 columns: table has 4",
                "q6_k needs rows of a multiple of 256 columns: in_a has 4",
            ]
        );
        assert!(faults.iter().all(|fault| fault.code == "F0507"));
        // For many matrices there is a single hint.
        let options = Options { quant: Quant::To(Format::Q4K), ..Options::default() };
        let faults = Formats::new(&graph, &options).err().expect("no matrix fits");
        let [fault] = &faults[..] else { panic!("one fault: {faults:?}") };
        assert!(fault.message.contains("in_a has 4, in_b has 4"), "{}", fault.message);
        assert!(fault.notes.len() == 1 && fault.notes[0].contains("Q4_K_M"), "{:?}", fault.notes);
    }

    #[test]
    fn a_pattern_without_matches_is_an_error_that_lists_names() {
        let messages = |tied, pattern: &str| {
            let options = options_with(&[&format!("{pattern}=q8_0")]);
            let faults = Formats::new(&graph(tied, Format::Bf16), &options).err().expect("nothing matches");
            format!("{faults:?}")
        };
        let text = messages(true, "lm_hed");
        assert!(text.contains("lm_hed") && text.contains("matrices: lm_head, "), "{text}");
        assert!(messages(false, "in_c").contains("matrices: in_a, in_b, "), "{}", messages(false, "in_c"));
        assert!(messages(false, "gain_*").contains("vectors"));
        assert!(Override::new("{a", Quant::Keep).is_err());
        let strange = "!a*[b]{c}.weight";
        assert!(Override::exactly(strange, Quant::Keep).matches(strange));
        assert!(!Override::exactly("a*", Quant::Keep).matches("ab"));
    }

    #[test]
    fn layers_of_different_formats_have_separate_bodies() {
        let two = graph(false, Format::Bf16);
        let mut draft = Draft::clone(&two);
        for (index, weight) in draft.weights.iter_mut().enumerate() {
            weight.tensor = format!("{}.{index}", weight.tensor);
        }
        let graph = draft.validate().expect("it is sound");
        let bodies = |overrides: &[&str]| {
            let formats = Formats::new(&graph, &options_with(overrides)).expect("patterns match");
            let split = formats.split_bodies(&graph).expect("it is sound");
            split.applications().map(|apply| apply.body.0).collect::<Vec<_>>()
        };
        assert_eq!(bodies(&[]), [0, 1, 1, 2]);
        assert_eq!(bodies(&["in_a.*=q8_0"]), [0, 1, 1, 2]);
        assert_eq!(bodies(&["in_a.4=q8_0"]), [0, 1, 2, 3]);
    }
}
