//! What is wrong with formats: overrides that match nothing, and formats that a matrix cannot have.

use crate::formats::overrides::Override;
use crate::formats::tied_head::HEAD;
use forge_ir::{Diagnostic, Graph, Op, Weight};
use forge_ops::{Format, SUPERBLOCK};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of names listed for a pattern without matches.
const MAX_LISTED: usize = 12;

/// Errors for matrices whose rows are not whole superblocks, one per format.
pub(super) fn unpadded(graph: &Graph, formats: &[Format]) -> Vec<Diagnostic> {
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
            format!("{format} needs rows of a multiple of {SUPERBLOCK} columns: {}", listed.join(", "));
        let note = match kinds.keys().collect::<Vec<_>>()[..] {
            [kind] => {
                format!(
                    "use another format for it, such as affine4_32 or q8_0: --quant-override {kind}=affine4_32"
                )
            }
            _ => "use another format for them, such as affine4_32 or q8_0: --quant-override \
                  PATTERN=affine4_32; --quant Q4_K_M and Q5_K_M select one automatically"
                .to_owned(),
        };
        Diagnostic::new("F0507", message).note(note)
    };
    misfits.into_iter().map(fault).collect()
}

/// Errors for experts whose gate and up have different formats, one per kind of tensor.
pub(super) fn unpaired(graph: &Graph, formats: &[Format]) -> Vec<Diagnostic> {
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
            let message = format!("{gate} is {first} and {up} is {second}: they are merged into one matrix");
            let fault = Diagnostic::new("F0508", message);
            faults.push(fault.note("use one override that matches both"));
        }
    }
    faults
}

/// Error for an override that matches no matrix. It lists the most similar names first.
pub(super) fn unmatched(graph: &Graph, rule: &Override, tied: bool) -> Diagnostic {
    let pattern = &rule.pattern;
    let fault = Diagnostic::new("F0505", format!("--quant-override {pattern}: no matrix matches"));
    if graph.weights.iter().any(|weight| rule.matches(&weight.tensor)) {
        return fault.note("it matches only vectors, which are always f32");
    }
    let matrices = graph.weights.iter().filter(|weight| is_matrix(weight));
    let names: BTreeSet<String> = matrices.map(|weight| kind(&weight.tensor)).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).chain(tied.then_some(HEAD)).collect();
    let requested = kind(pattern);
    names.sort_by_key(|name| strsim::osa_distance(name, &requested));
    let more =
        if names.len() > MAX_LISTED { ", ... (list all: forge inspect --stage checkpoint)" } else { "" };
    names.truncate(MAX_LISTED);
    fault.note(format!("matrices: {}{more}", names.join(", ")))
}

/// Module name of a tensor with all numbers replaced by `*`.
fn kind(tensor: &str) -> String {
    let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
    let open = |part: &str| if part.parse::<usize>().is_ok() { "*".to_owned() } else { part.to_owned() };
    module.split('.').map(open).collect::<Vec<_>>().join(".")
}

/// Whether a weight is a matrix; vectors are always f32.
pub(super) fn is_matrix(weight: &Weight) -> bool {
    weight.shape.len() > 1
}
