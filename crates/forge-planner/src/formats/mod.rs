//! Which number format each matrix is stored in: what was asked for all of them, then what was asked for some by name.
//!
//! An [`Override`] is a pattern and what is asked of the matrices that it matches: their tensors' names in the checkpoint,
//! or these without `.weight`, which are the names of modules. The last one that matches wins. One that matches nothing
//! is a fault.
//!
//! Who chooses experts is not made codes of unless an override says so ([`choosing`]): it is small, and an error of a logit there is
//! another expert.
//!
//! A tied head is the embedding's table under a second name, `lm_head`. It follows the table unless an override matches
//! this name and not the table's: then [`untie`] gives it a weight of its own, of the same tensor, and the table is packed
//! twice.
//!
//! Layers that were one body may come to differ in formats. [`Formats::bodies_of_their_own`] makes as many bodies of it, so
//! that rules and steps see one format for each parameter.

pub(crate) mod budget;

use crate::options::{Options, Quant};
use forge_ir::{
    Apply, Body, BodyId, Diagnostic, Draft, Format, Graph, Node, Op, ParamId, SUPERBLOCK, Weight, WeightId,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

/// What checkpoints call the module of a head that is not tied.
const HEAD: &str = "lm_head";

/// So many names are told where a pattern matches none.
const TOLD: usize = 12;

/// What is asked of the matrices that a pattern matches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Override {
    pattern: String,
    to: Quant,
}

impl Override {
    /// In a pattern `*` stands for any characters, `?` for one, `[a-c]` for one of these and `{a,b}` for either.
    ///
    /// # Errors
    /// When it is not a pattern: what is wrong with it.
    pub fn new(pattern: &str, to: Quant) -> Result<Override, String> {
        fast_glob::validate(pattern).map_err(|error| error.to_string())?;
        Ok(Override { pattern: pattern.to_owned(), to })
    }

    /// Of the one tensor of that name.
    pub fn exactly(tensor: &str, to: Quant) -> Override {
        let literal = |c: char| if "*?[]{}!\\".contains(c) { vec!['\\', c] } else { vec![c] };
        Override { pattern: tensor.chars().flat_map(literal).collect(), to }
    }

    /// What is asked for.
    pub fn to(&self) -> Quant {
        self.to
    }

    /// Whether the pattern means the tensor of that name.
    fn matches(&self, tensor: &str) -> bool {
        let is = |name| fast_glob::glob_match(&self.pattern, name);
        is(tensor) || tensor.strip_suffix(".weight").is_some_and(is)
    }
}

/// The format of every weight as it is to be stored.
pub(crate) struct Formats {
    /// By the weight's number; f32 for vectors.
    formats: Vec<Format>,
    /// Whether a head that is the table's weight is to have another format than the table.
    head_is_apart: bool,
}

impl Formats {
    /// What the options ask for.
    pub(crate) fn new(graph: &Graph, options: &Options) -> Result<Formats, Vec<Diagnostic>> {
        let ends = TiedHead::of(graph);
        let mut asked = vec![options.quant; graph.weights.len()];
        if matches!(options.quant, Quant::To(format) if format.is_quantised()) {
            choosing(graph).into_iter().for_each(|id| asked[id.0] = Quant::Keep);
        }
        // What is asked of a tied head alone.
        let mut of_head = None;
        let mut faults = Vec::new();
        for it in &options.overrides {
            let mut matched = false;
            for (index, weight) in graph.weights.iter().enumerate().filter(|(_, weight)| is_matrix(weight)) {
                if it.matches(&weight.tensor) && ends.follower != Some(WeightId(index)) {
                    asked[index] = it.to;
                    matched = true;
                }
            }
            if let Some((table, _)) = ends.tied
                && it.matches(HEAD)
            {
                of_head = (!it.matches(&graph.weights[table.0].tensor)).then_some(it.to);
                matched = true;
            }
            if !matched {
                faults.push(unmatched(graph, it, ends.tied.is_some()));
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
            asked.into_iter().zip(&graph.weights).map(|(quant, weight)| stored(quant, weight)).collect();
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

    /// The format of a matrix made of these weights, which have one format.
    pub(crate) fn of(&self, parts: &[WeightId]) -> Format {
        let format = parts.first().map_or(Format::F32, |part| self.formats[part.0]);
        debug_assert!(parts.iter().all(|part| self.formats[part.0] == format), "one matrix, one format");
        format
    }

    /// Whether every matrix is f32.
    pub(crate) fn are_exact(&self) -> bool {
        self.formats.iter().all(|format| *format == Format::F32)
    }

    /// Of every parameter of a body as this application binds it; f32 for what is no matrix.
    pub(crate) fn of_params(&self, body: &Body, apply: &Apply) -> Vec<Format> {
        let format = |param| apply.weight(body, ParamId(param)).map_or(Format::F32, |id| self.formats[id.0]);
        (0..body.params.len()).map(format).collect()
    }

    /// The graph with a body for every structure and formats of parameters, in the order of their first application.
    pub(crate) fn bodies_of_their_own(&self, graph: &Graph) -> Result<Graph, Vec<Diagnostic>> {
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

/// Gives a tied head a weight of its own where it is to have another format than the table.
///
/// # Errors
/// When an override matches nothing.
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
    /// The fault of a graph that [`untie`] has not been applied to.
    pub(crate) fn expect_untied(self) -> Result<Formats, Vec<Diagnostic>> {
        let fault =
            || Diagnostic::new("F0505", format!("{HEAD} is tied, and is to have a format of its own"));
        if self.head_is_apart { Err(vec![fault()]) } else { Ok(self) }
    }
}

/// The table and the head.
struct TiedHead {
    /// Both, where they are one tensor: one weight, or two after [`untie`].
    tied: Option<(WeightId, WeightId)>,
    /// The head, where it is a weight of its own of the table's tensor.
    follower: Option<WeightId>,
}

impl TiedHead {
    fn of(graph: &Graph) -> TiedHead {
        let (first, last) = (graph.body(&graph.prologue), graph.body(&graph.epilogue));
        // The stream begins with the first table.
        let table = first.nodes.iter().find_map(|node| match node.op {
            Op::Embed { table, .. } => graph.prologue.weight(first, table),
            _ => None,
        });
        let head = last.nodes.iter().rev().find_map(|node| match node.op {
            Op::Linear { weight, .. } => graph.epilogue.weight(last, weight),
            _ => None,
        });
        let tensor = |id: WeightId| &graph.weights[id.0].tensor;
        let tied = table.zip(head).filter(|(table, head)| tensor(*table) == tensor(*head));
        TiedHead { tied, follower: tied.filter(|(table, head)| table != head).map(|(_, head)| head) }
    }
}

/// The matrices that choose experts: routers, and those of one row beside them, which say how much of an expert that every row has
/// is taken. What they give goes together as one, and is made of one format.
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
            let makers = |node: &&Node| node.inputs.first().and_then(|value| body.maker(*value));
            all.extend(successors(Some(route), makers).find_map(projected));
        }
    }
    all
}

/// The faults of matrices whose rows are not whole superblocks, one for each format.
fn unpadded(graph: &Graph, formats: &[Format]) -> Vec<Diagnostic> {
    let mut misfits: BTreeMap<Format, BTreeMap<String, usize>> = BTreeMap::new();
    for (weight, format) in graph.weights.iter().zip(formats) {
        if !format.takes(weight.columns()) {
            misfits.entry(*format).or_default().insert(kind(&weight.tensor), weight.columns());
        }
    }
    let fault = |(format, kinds): (Format, BTreeMap<String, usize>)| {
        let listed: Vec<String> =
            kinds.iter().map(|(kind, columns)| format!("{kind} has {columns}")).collect();
        let message =
            format!("{format} takes rows of a multiple of {SUPERBLOCK} columns, and {}", listed.join(", "));
        let note = match kinds.keys().collect::<Vec<_>>()[..] {
            [kind] => {
                format!("--quant-override {kind}=affine4_32 gives it another format, and so would q8_0")
            }
            _ => "--quant-override PATTERN=affine4_32 gives them another format, and so would q8_0; \
                  --quant Q4_K_M or Q5_K_M chooses one that fits by itself"
                .to_owned(),
        };
        Diagnostic::new("F0507", message).note(note)
    };
    misfits.into_iter().map(fault).collect()
}

/// The faults of experts whose gates and ups are to be stored differently, one for all layers.
fn unpaired(graph: &Graph, formats: &[Format]) -> Vec<Diagnostic> {
    let mut kinds = BTreeSet::new();
    let mut faults = Vec::new();
    for apply in graph.applications() {
        let body = graph.body(apply);
        for node in &body.nodes {
            let Op::Experts(experts) = &node.op else { continue };
            let pair = [experts.gate, experts.up].map(|param| apply.weight(body, param));
            let [Some(gate), Some(up)] = pair else { continue };
            let [first, second] = [gate, up].map(|id| formats[id.0]);
            let [gate, up] = [gate, up].map(|id| kind(&graph.weights[id.0].tensor));
            if first == second || !kinds.insert(gate.clone()) {
                continue;
            }
            let message =
                format!("{gate} is to be {first} and {up} {second}: experts have both in one matrix");
            let fault = Diagnostic::new("F0508", message);
            faults.push(fault.note("an override that matches both gives them one format"));
        }
    }
    faults
}

fn is_matrix(weight: &Weight) -> bool {
    weight.shape.len() > 1
}

/// The fault of an override that matches no matrix, with the names that it may have meant, nearest first.
fn unmatched(graph: &Graph, it: &Override, tied: bool) -> Diagnostic {
    let pattern = &it.pattern;
    let fault = Diagnostic::new("F0505", format!("--quant-override {pattern}: no matrix has such a name"));
    if graph.weights.iter().any(|weight| it.matches(&weight.tensor)) {
        return fault.note("what it matches are vectors, which are always f32");
    }
    let matrices = graph.weights.iter().filter(|weight| is_matrix(weight));
    let names: BTreeSet<String> = matrices.map(|weight| kind(&weight.tensor)).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).chain(tied.then_some(HEAD)).collect();
    let asked = kind(pattern);
    names.sort_by_key(|name| strsim::osa_distance(name, &asked));
    let more = if names.len() > TOLD { ", and others: forge inspect --stage checkpoint" } else { "" };
    names.truncate(TOLD);
    fault.note(format!("there are {}{more}", names.join(", ")))
}

/// A tensor's module with all numbers of its name left open.
fn kind(tensor: &str) -> String {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    let open = |part: &str| if part.parse::<usize>().is_ok() { "*".to_owned() } else { part.to_owned() };
    module.split('.').map(open).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::rules::tests::graph;

    fn asked(overrides: &[&str]) -> Options {
        let parse = |text: &&str| {
            let (pattern, to) = text.split_once('=').expect("pattern=format");
            Override::new(pattern, Quant::from_name(to).expect("a format")).expect("a pattern")
        };
        let overrides = overrides.iter().map(parse).collect();
        Options { quant: Quant::To(Format::Q4_0), overrides, ..Options::default() }
    }

    /// `name format` of every matrix after untying, names once each.
    fn formats(tied: bool, overrides: &[&str]) -> Vec<String> {
        let options = asked(overrides);
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
    fn a_tied_head_follows_its_table_unless_it_is_named_itself() {
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
        assert_eq!(untie(tied.clone(), &asked(&["lm_head=q4_0"])).as_ref(), Ok(&tied));
    }

    #[test]
    fn rows_that_are_not_whole_superblocks_are_refused() {
        let graph = graph(false, Format::Bf16);
        let faults = Formats::new(&graph, &asked(&["in_a=q6_k", "table=q5_k"])).err().expect("they are not");
        let told: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
        assert_eq!(
            told,
            [
                "q5_k takes rows of a multiple of 256 columns, and table has 4",
                "q6_k takes rows of a multiple of 256 columns, and in_a has 4",
            ]
        );
        assert!(faults.iter().all(|fault| fault.code == "F0507"));
        // Of many matrices the hint is given once.
        let options = Options { quant: Quant::To(Format::Q4K), ..Options::default() };
        let faults = Formats::new(&graph, &options).err().expect("no matrix fits");
        let [fault] = &faults[..] else { panic!("one fault: {faults:?}") };
        assert!(fault.message.contains("in_a has 4, in_b has 4"), "{}", fault.message);
        assert!(fault.notes.len() == 1 && fault.notes[0].contains("Q4_K_M"), "{:?}", fault.notes);
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_told_what_there_is() {
        let told = |tied, pattern: &str| {
            let options = asked(&[&format!("{pattern}=q8_0")]);
            let faults = Formats::new(&graph(tied, Format::Bf16), &options).err().expect("nothing matches");
            format!("{faults:?}")
        };
        let text = told(true, "lm_hed");
        assert!(text.contains("lm_hed") && text.contains("there are lm_head, "), "{text}");
        assert!(told(false, "in_c").contains("there are in_a, in_b, "), "{}", told(false, "in_c"));
        assert!(told(false, "gain_*").contains("vectors"));
        assert!(Override::new("{a", Quant::Keep).is_err());
        let strange = "!a*[b]{c}.weight";
        assert!(Override::exactly(strange, Quant::Keep).matches(strange));
        assert!(!Override::exactly("a*", Quant::Keep).matches("ab"));
    }

    #[test]
    fn layers_of_different_formats_get_bodies_of_their_own() {
        let two = graph(false, Format::Bf16);
        let mut draft = Draft::clone(&two);
        for (index, weight) in draft.weights.iter_mut().enumerate() {
            weight.tensor = format!("{}.{index}", weight.tensor);
        }
        let graph = draft.validate().expect("it is sound");
        let bodies = |overrides: &[&str]| {
            let formats = Formats::new(&graph, &asked(overrides)).expect("patterns match");
            let split = formats.bodies_of_their_own(&graph).expect("it is sound");
            split.applications().map(|apply| apply.body.0).collect::<Vec<_>>()
        };
        assert_eq!(bodies(&[]), [0, 1, 1, 2]);
        assert_eq!(bodies(&["in_a.*=q8_0"]), [0, 1, 1, 2]);
        assert_eq!(bodies(&["in_a.4=q8_0"]), [0, 1, 2, 3]);
    }
}
