//! `cargo xtask shapes`: compares the planner's dispatches per token with other engines, for real model shapes.
//!
//! Only configurations are needed; nothing is downloaded or executed. Times are predicted. Other engines are modeled with their
//! dispatch counts and the bytes and kernels of this plan, which isolates the value of fewer launches.

use forge_frontend::{DummyWeights, Options as Reading, read_model};
use forge_ir::{Format, Graph, Op};
use forge_planner::{Chip, Options, Plan, Prediction, Quant, Workload, plan, predict};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Dispatches of another engine for one decoded token.
struct Peer {
    name: &'static str,
    /// Minimum and maximum dispatches per layer of a dense decoder.
    layer: [u64; 2],
    /// Additional dispatches with QK norm.
    head_norms: u64,
    /// Additional dispatches with biases.
    biases: u64,
    /// Whether the count includes the combine kernel of split-KV attention.
    joins: bool,
    /// The list of dispatches.
    composition: &'static str,
}

/// Counted from the sources of the other engines in August 2026, for short contexts. Each is assumed to have three dispatches
/// outside the layers: embedding, final norm, head.
const PEERS: [Peer; 4] = [
    Peer {
        name: "uzu",
        layer: [9, 11],
        head_norms: 0,
        biases: 0,
        joins: false,
        composition: "norm and residual, qkv, prepare, attention, output, norm and residual, gate and up, activation, down",
    },
    Peer {
        name: "ForgeLLM",
        layer: [12, 12],
        head_norms: 0,
        biases: 1,
        joins: false,
        composition: "norm, qkv, rope, copy to cache, attention, output, add, norm, gate and up, silu, down, add",
    },
    Peer {
        name: "MLX",
        layer: [17, 18],
        head_norms: 0,
        biases: 0,
        joins: false,
        composition: "norm, q, k, v, 2 rope, 2 copies to cache, attention, output, add, norm, gate, up, swiglu, down, add",
    },
    Peer {
        name: "llama.cpp",
        layer: [18, 19],
        head_norms: 2,
        biases: 0,
        joins: true,
        composition: "norm, q, k, v, 2 rope, 2 rows set, attention, reduce, output, add, norm, gate, up, glu, down, add",
    },
];

/// Dispatches outside the layers.
const NON_LAYER_DISPATCHES: u64 = 3;

/// Options of the comparison.
pub struct ShapeOptions<'a> {
    /// Configurations; empty selects those in tests/shapes.
    pub configs: &'a [PathBuf],
    /// Apple chip.
    pub chip: &'a str,
    /// Weight format of matrices.
    pub quant: &'a str,
    /// Context length in tokens, including the decoded token.
    pub length: u64,
    /// Print JSON.
    pub json: bool,
}

/// Prints the comparison.
pub fn shapes(question: &ShapeOptions<'_>) -> Result<(), String> {
    let chip = Chip::from_name(question.chip).ok_or_else(|| {
        let known: Vec<&str> = Chip::known().map(|chip| chip.name).collect();
        format!("{}: unknown chip; expected one of {}", question.chip, known.join(", "))
    })?;
    let format = Format::from_name(question.quant).ok_or_else(|| {
        format!(
            "{}: unknown format; expected one of {}",
            question.quant,
            Format::ALL.map(Format::name).join(", ")
        )
    })?;
    let configs = match question.configs {
        [] => own_configs()?,
        given => given.to_vec(),
    };
    let rows: Result<Vec<Row>, String> =
        configs.iter().map(|config| Row::of(config, chip, format, question.length)).collect();
    match question.json {
        true => println!("{:#}", to_json(&rows?, chip, format)),
        false => print!("{}", to_text(&rows?, chip, format)),
    }
    Ok(())
}

fn own_configs() -> Result<Vec<PathBuf>, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/shapes");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut configs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    configs.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    configs.sort();
    Ok(configs)
}

/// One model.
struct Row {
    name: String,
    layers: u64,
    parameters: u64,
    head_norms: bool,
    biases: bool,
    dispatches_per_layer: Vec<usize>,
    token: Prediction,
    dispatch_seconds: f64,
}

impl Row {
    fn of(config: &Path, chip: &'static Chip, format: Format, length: u64) -> Result<Row, String> {
        let name = config.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text =
            std::fs::read_to_string(config).map_err(|error| format!("{}: {error}", config.display()))?;
        let faults = |faults: Vec<forge_ir::Diagnostic>| {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            format!("{}: {}", config.display(), faults.join("; "))
        };
        let reading = Reading { name: name.clone(), ..Reading::default() };
        let shapes = DummyWeights::new(&text, &reading).map_err(faults)?;
        let graph = read_model(&shapes, &reading).map_err(faults)?.graph;
        let options = Options { quant: Quant::To(format), chip: Some(chip), ..Options::default() };
        let plan = plan(&graph, &options).map_err(faults)?;
        let length = length.clamp(1, plan.context as u64);
        Ok(Row::new(name, &graph, &plan, chip, length))
    }

    fn new(name: String, graph: &Graph, plan: &Plan, chip: &Chip, length: u64) -> Row {
        let token = predict(plan, chip, Workload::decode(length));
        let has = |wanted: fn(&Op) -> bool| {
            graph.bodies.iter().flat_map(|body| &body.nodes).any(|node| wanted(&node.op))
        };
        let numbers =
            |weight: &forge_ir::Weight| weight.shape.iter().map(|size| *size as u64).product::<u64>();
        Row {
            name,
            layers: graph.layers.len() as u64,
            parameters: graph.weights.iter().map(numbers).sum(),
            head_norms: has(|op| matches!(op, Op::RmsNorm { parts, .. } if *parts > 1)),
            biases: has(|op| matches!(op, Op::Linear { bias: Some(_), .. })),
            dispatches_per_layer: plan.counts(token.load).dispatches_per_layer,
            token,
            dispatch_seconds: chip.start_seconds() + chip.wait_seconds(),
        }
    }

    /// Minimum and maximum dispatches of a peer, per layer and per token.
    fn dispatches(&self, peer: &Peer) -> ([u64; 2], [u64; 2]) {
        let split = self.token.load.splits > 1 && !peer.joins;
        let more = if self.head_norms { peer.head_norms } else { 0 }
            + if self.biases { peer.biases } else { 0 }
            + u64::from(split);
        let layer = peer.layer.map(|count| count + more);
        (layer, layer.map(|count| count * self.layers + NON_LAYER_DISPATCHES))
    }

    /// Predicted seconds of this token with another number of dispatches, each of which waits for the previous one.
    fn seconds_with(&self, dispatches: u64) -> f64 {
        let time = self.token.time;
        time.seconds() - time.launches + Chip::SUBMISSION + dispatches as f64 * self.dispatch_seconds
    }
}

fn to_text(rows: &[Row], chip: &Chip, format: Format) -> String {
    let mut text = format!(
        "A decoded token on {} ({} GB/s, {} cores) in {format}: all times are predicted.\n",
        chip.name, chip.bandwidth, chip.cores
    );
    for row in rows {
        let token = &row.token;
        text += &format!(
            "\n{} · {} layers · {:.2}B parameters · {} tokens of context · {:.1} MB read and written · bound by {}\n",
            row.name,
            row.layers,
            row.parameters as f64 / 1e9,
            token.load.length,
            token.cost.bytes() as f64 / 1e6,
            token.time.limit().name()
        );
        text += &format!(
            "  {:<10} {:>18} {:>11} {:>9} {:>13} {:>13}\n",
            "", "dispatches/layer", "/token", "barriers", "ms", "tok/s"
        );
        let layer = range(ends(&row.dispatches_per_layer), |count| count.to_string());
        let seconds = token.time.seconds();
        text += &format!(
            "  {:<10} {layer:>18} {:>11} {:>9} {:>13} {:>13}\n",
            "forge",
            token.dispatches,
            token.barriers,
            format!("{:.3}", seconds * 1e3),
            format!("{:.0}", 1.0 / seconds),
        );
        for peer in &PEERS {
            let (layer, all) = row.dispatches(peer);
            let seconds = all.map(|count| row.seconds_with(count));
            text += &format!(
                "  {:<10} {:>18} {:>11} {:>9} {:>13} {:>13}\n",
                peer.name,
                range(layer, |count| count.to_string()),
                range(all, |count| count.to_string()),
                "",
                range(seconds, |seconds| format!("{:.3}", seconds * 1e3)),
                range([seconds[1], seconds[0]], |seconds| format!("{:.0}", 1.0 / seconds)),
            );
        }
    }
    text += "\nOther engines: their dispatch counts with the bytes and kernels of this plan, all dispatches serialized, at\n";
    text += &format!(
        "{} µs each. Not measured. Counted from their sources of August 2026, for short contexts:\n",
        chip.dispatch
    );
    for peer in &PEERS {
        text += &format!("  {:<10} {}\n", peer.name, peer.composition);
    }
    text += "  and 3 outside the layers. With QK norm llama.cpp has 2 more per layer; the others are counted as for a model without.\n";
    text += "  With biases ForgeLLM has 1 more; with split-KV attention all but llama.cpp have 1 more.\n";
    text
}

/// Minimum and maximum.
fn ends(counts: &[usize]) -> [usize; 2] {
    [counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0)]
}

/// A range such as `18-19`, or a single value.
fn range<T: Copy>([first, last]: [T; 2], text: impl Fn(T) -> String) -> String {
    let (first, last) = (text(first), text(last));
    if first == last { first } else { format!("{first}-{last}") }
}

fn to_json(rows: &[Row], chip: &Chip, format: Format) -> Value {
    let model = |row: &Row| {
        let peer = |peer: &Peer| {
            let (layer, all) = row.dispatches(peer);
            let seconds = all.map(|count| row.seconds_with(count));
            json!({"name": peer.name, "dispatches_per_layer": layer, "dispatches": all, "seconds": seconds, "composition": peer.composition})
        };
        let token = &row.token;
        json!({
            "name": row.name,
            "layers": row.layers,
            "parameters": row.parameters,
            "length": token.load.length,
            "dispatches_per_layer": row.dispatches_per_layer,
            "dispatches": token.dispatches,
            "barriers": token.barriers,
            "bytes_read": token.cost.read(),
            "bytes_written": token.cost.written(),
            "seconds": token.time.seconds(),
            "time": token.time,
            "limit": token.time.limit(),
            "others": PEERS.iter().map(peer).collect::<Vec<_>>(),
        })
    };
    json!({
        "note": "predicted; others are their dispatches, counted from their sources of August 2026, with the bytes and kernels of this plan",
        "chip": chip.name,
        "format": format,
        "models": rows.iter().map(model).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(length: u64) -> Vec<Row> {
        let configs = own_configs().expect("there are shapes");
        assert!(configs.len() >= 5, "{configs:?}");
        let chip = Chip::from_name("m4-max").expect("it is listed");
        let row = |config: &PathBuf| Row::of(config, chip, Format::Q4_0, length);
        configs.iter().map(row).map(|row| row.unwrap_or_else(|error| panic!("{error}"))).collect()
    }

    #[test]
    fn dispatches_per_layer_are_five_plus_experts_and_kv_splits() {
        for (length, dense) in [(64, 5), (4096, 6)] {
            for row in rows(length) {
                let expected = dense + usize::from(row.name == "Qwen3-30B-A3B");
                assert!(
                    row.dispatches_per_layer.iter().all(|count| *count == expected),
                    "{} at {length}",
                    row.name
                );
                assert_eq!(
                    row.token.dispatches,
                    expected as u64 * row.layers + 3,
                    "{} at {length}",
                    row.name
                );
            }
        }
    }

    #[test]
    fn peer_dispatch_counts_match_published_ones() {
        let rows = rows(64);
        let find = |name: &str| rows.iter().find(|row| row.name == name).expect("it is among the shapes");
        let llama = |peer: usize| find("Llama-3.1-8B").dispatches(&PEERS[peer]).0;
        assert_eq!([llama(0), llama(1), llama(2), llama(3)], [[9, 11], [12, 12], [17, 18], [18, 19]]);
        let qwen = find("Qwen3-0.6B");
        assert!(qwen.head_norms && !qwen.biases);
        assert_eq!(qwen.dispatches(&PEERS[3]), ([20, 21], [28 * 20 + 3, 28 * 21 + 3]));
    }

    #[test]
    fn predicted_time_grows_with_dispatches() {
        for row in rows(64) {
            let own = row.seconds_with(row.token.dispatches);
            let difference = own - row.token.time.seconds();
            // The first dispatch does not wait.
            assert!((0.0..3e-6).contains(&difference), "{}: {difference}", row.name);
            assert!(row.seconds_with(row.token.dispatches + 1) > own);
        }
    }

    #[test]
    fn text_and_json_are_marked_as_predictions() {
        let (rows, chip) = (rows(64), Chip::from_name("m4-max").expect("it is listed"));
        let text = to_text(&rows, chip, Format::Q4_0);
        assert!(
            text.contains("predicted") && text.contains("Qwen3-0.6B") && text.contains("20-21"),
            "{text}"
        );
        let value = to_json(&rows, chip, Format::Q4_0);
        assert!(value["note"].as_str().is_some_and(|note| note.starts_with("predicted")));
        assert_eq!(value["models"].as_array().map(Vec::len), Some(rows.len()));
    }
}
