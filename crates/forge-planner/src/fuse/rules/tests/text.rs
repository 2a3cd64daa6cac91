//! The text form of operation lists.

use crate::fuse::list::{
    CombineInput, Convolve, Epilogue, Function, Fused, FusedRouting, Gain, Kind, KvSource, Operation,
    RopeAppend, UnaryOp, Value,
};

/// The list as text, one line per operation: `%3 gate_up = linear 0+1 Alternate gate(%1)`.
pub(crate) fn text(list: &Fused) -> String {
    let line = |operation: &Operation| {
        let inputs: Vec<String> = operation.inputs.iter().map(|value| format!("%{}", value.0)).collect();
        let what = what(&operation.kind);
        format!("%{} {} = {what}({})\n", operation.output.0, operation.name, inputs.join(", "))
    };
    list.operations.iter().map(line).collect()
}

fn what(kind: &Kind) -> String {
    let gain = |gain: &Gain| match gain {
        Gain::Folded => "folded".to_owned(),
        Gain::Own(param) => param.0.to_string(),
        Gain::Next => "next".to_owned(),
    };
    match kind {
        Kind::Embed { table, next_norm: None, .. } => format!("embed {}", table.0),
        Kind::Embed { table, next_norm: Some(next), .. } => {
            format!("embed {} squares {}", table.0, gain(next))
        }
        Kind::PositionEmbedding { table } => format!("position_embedding {}", table.0),
        Kind::LayerNorm { gain, .. } => format!("layer_norm {}", gain.0),
        Kind::Norm { gain: None, parts, .. } => format!("norm {parts}"),
        Kind::Norm { gain: Some(gain), parts, .. } => format!("norm {parts} gain {}", gain.0),
        Kind::NormAdd(norm) => {
            let mut text = "norm add".to_owned();
            text += &norm.gain.map_or_else(String::new, |gain| format!(" gain {}", gain.0));
            text += &norm.factor.map_or_else(String::new, |factor| format!(" times {}", factor.0));
            text + &norm
                .next_norm
                .as_ref()
                .map_or_else(String::new, |next| format!(" squares {}", gain(next)))
        }
        Kind::Linear(linear) => {
            let parts: Vec<String> = linear.parts.iter().map(|(weight, _)| weight.0.to_string()).collect();
            let mut text = format!("linear {} {:?}", parts.join("+"), linear.layout);
            text += &linear.folded.map_or_else(String::new, |gain| format!(" folded {}", gain.0));
            text += if linear.norm.is_some() { " / rms" } else { "" };
            if let Some(norm) = linear.own_norm {
                text += " / own rms";
                text += &norm.gain.map_or_else(String::new, |gain| format!(" {}", gain.0));
            }
            text += &linear.unary.map_or_else(String::new, |each| format!(" {}", name(each)));
            text += &match &linear.ending {
                Epilogue::Store => String::new(),
                Epilogue::Add => " add".to_owned(),
                Epilogue::AddSquares(next) => format!(" add squares {}", gain(next)),
                Epilogue::MultiplyPerLayerInput => " times per_layer_input".to_owned(),
                Epilogue::Gate(_) => " gate".to_owned(),
                Epilogue::Best => " best".to_owned(),
            };
            text
        }
        Kind::Slice { first } => format!("slice {first}"),
        Kind::Rope { .. } => "rope".to_owned(),
        Kind::Append { .. } => "append".to_owned(),
        Kind::RopeAppend(prepare) => format!("rope_append{}", prepared(prepare)),
        Kind::Attend(attend) => {
            let gated = if attend.gated { " gated" } else { "" };
            match &attend.prologue {
                Some(prepare) => format!("attend{gated} prologue{}", prepared(prepare)),
                None => format!("attend{gated}"),
            }
        }
        Kind::PerHeadLinear(each) => {
            format!("per_head_linear{} {}", if each.transposed { " transposed" } else { "" }, each.weight.0)
        }
        Kind::MlaAppend(append) if append.prepare.is_some() => "mla_append prepare".to_owned(),
        Kind::MlaAppend(_) => "mla_append".to_owned(),
        Kind::MlaAttention(attend) if attend.prologue.is_some() => "mla_attention prologue".to_owned(),
        Kind::MlaAttention(_) => "mla_attention".to_owned(),
        Kind::Convolve(convolve) => convolved(convolve),
        Kind::DeltaRule(rule) => {
            let gated = if rule.gated.is_some() { " gated" } else { "" };
            let prologue =
                rule.prologue.as_ref().map_or_else(String::new, |it| format!(" {}", convolved(it)));
            format!("delta_rule{gated}{prologue}")
        }
        Kind::Route(choice) => format!("route{}", shared(choice)),
        Kind::ExpertsInner(inner) => {
            let stacks: Vec<String> = inner.stacks().iter().map(|stack| stack.0.to_string()).collect();
            let mut text = format!("experts {}", stacks.join("+"));
            text += &inner.folded.map_or_else(String::new, |gain| format!(" folded {}", gain.0));
            text += if inner.norm.is_some() { " / rms" } else { "" };
            let choice = inner.choice.as_ref();
            let choose =
                |(choice, routes): &(FusedRouting, Value)| format!(" choose{} %{}", shared(choice), routes.0);
            text + &choice.map_or_else(String::new, choose)
        }
        Kind::ExpertsSum(sum) => {
            let mut text = format!("experts {}", sum.down.0);
            text += &sum.shared.map_or_else(String::new, |shared| format!("+{}", shared.0));
            text + &match &sum.ending {
                CombineInput::Store => String::new(),
                CombineInput::Add => " add".to_owned(),
                CombineInput::AddSquares(next) => format!(" add squares {}", gain(next)),
            }
        }
        Kind::Elementwise(Function::Unary(each)) => name(*each).to_owned(),
        Kind::Elementwise(Function::Multiply) => "multiply".to_owned(),
        Kind::Elementwise(Function::ScaleRows) => "scale rows".to_owned(),
        Kind::Elementwise(Function::ScaleBy) => "scale by one".to_owned(),
        Kind::Elementwise(Function::Add) => "add".to_owned(),
        Kind::ScaleBy { factor } => format!("scale by {}", factor.0),
        Kind::StorePerLayerInputs => "store_per_layer_inputs".to_owned(),
        Kind::PerLayerInput => "per_layer_input".to_owned(),
        Kind::Unplanned => "unplanned".to_owned(),
    }
}

/// The experts that every row has.
fn shared(choice: &FusedRouting) -> String {
    match (choice.shared, choice.gated) {
        (0, _) => String::new(),
        (count, false) => format!(" and {count}"),
        (count, true) => format!(" and {count} gated"),
    }
}

/// What is not usual of the preparation of a row.
fn prepared(prepare: &RopeAppend) -> String {
    let kv_source = match prepare.kv_source {
        KvSource::KeysAndValues => "",
        KvSource::KeysValuesAndGates => " with gates",
        KvSource::Keys => " of keys",
        KvSource::Nothing => " of queries",
    };
    let norm = match prepare.norm {
        None => "",
        Some(norm) if norm.values => " norm values",
        Some(_) => " norm",
    };
    format!("{kv_source}{norm}")
}

fn convolved(convolve: &Convolve) -> String {
    let taps: Vec<String> = convolve.parts.iter().map(|(taps, _)| taps.0.to_string()).collect();
    format!("convolve {}", taps.join("+"))
}

fn name(each: UnaryOp) -> &'static str {
    match each {
        UnaryOp::Activate(_) => "activate",
        UnaryOp::Softcap(_) => "softcap",
        UnaryOp::Scale(_) => "scale",
    }
}
