//! Mixture of experts: a router assigns each row to a few experts; shared experts process every row.
//!
//! Checkpoints store a layer's experts in one of three ways, recognized by tensor names: one tensor per
//! expert and projection, one per projection (MLX), or one for gate and up together. The architecture
//! determines whether gate and up rows alternate or are stacked.

use crate::config::section::Section;
use crate::graph::builder::Layer;
use crate::layers::mlp::Mlp;
use crate::quantization::mxfp4;
use forge_ir::{Activation, Gating, Groups, ParamId, Routing, Scores, Stack, ValueId, WeightSlice};

/// Description of MoE layers.
pub(crate) struct Experts {
    /// Hidden size.
    pub(crate) hidden: usize,
    /// Number of experts.
    pub(crate) count: usize,
    /// Intermediate size of an expert.
    pub(crate) inner: usize,
    /// How gate and up are combined.
    pub(crate) gating: Gating,
    /// Whether the router and all projections have a bias.
    pub(crate) bias: bool,
    /// Routing.
    pub(crate) choice: Router,
    /// Shared experts.
    pub(crate) shared: Option<Shared>,
    /// Module name in a layer, such as `mlp`.
    pub(crate) module: &'static str,
    /// Name of the router.
    pub(crate) router: &'static str,
    /// Names of gate, up and down projections.
    pub(crate) projections: [&'static str; 3],
    /// Whether gate and up rows alternate in one tensor.
    pub(crate) alternate: bool,
    /// Whether the only supported storage is one gate-up tensor and one down tensor for all experts.
    pub(crate) joined: bool,
    /// Layers with a dense MLP.
    pub(crate) dense: Vec<bool>,
}

/// Routing without its tensors.
pub(crate) struct Router {
    /// Score function.
    pub(crate) scores: Scores,
    /// Experts per token (top-k).
    pub(crate) chosen: usize,
    /// Correction bias added to scores for the selection only.
    pub(crate) correction: Option<&'static str>,
    /// Expert groups.
    pub(crate) groups: Option<Groups>,
    /// Whether weights are normalized over the selected experts.
    pub(crate) renormalize: bool,
    /// Multiplies every weight.
    pub(crate) factor: f32,
}

/// Shared experts: one MLP, as wide as all of them together.
pub(crate) struct Shared {
    /// The MLP.
    pub(crate) mlp: Mlp,
    /// Module name.
    pub(crate) module: &'static str,
    /// Module of the scalar gate whose sigmoid multiplies the output.
    pub(crate) gate: Option<&'static str>,
}

/// Possible module names of experts stored as one tensor per projection.
const STACKED: [&str; 3] = ["switch_mlp", "experts", "experts.switch_glu"];

/// Names of gate, up and down in such a module, for every architecture.
const OF_STACKED: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Maximum number of experts. Published models have at most 512.
const MAX_EXPERTS: usize = 1024;

impl Experts {
    /// Reads a configuration: the number of experts from one of `keys`, the first being the architecture's
    /// own, each of intermediate size `inner`, and top-k from `num_experts_per_tok`. No groups, correction
    /// bias or shared experts.
    pub(crate) fn read(
        config: &Section<'_>,
        mlp: &Mlp,
        (keys, inner): (&[&str], usize),
        scores: Scores,
    ) -> Experts {
        Experts::read_with_top_k(config, mlp, (keys, inner), scores, "num_experts_per_tok")
    }

    /// Like [`Experts::read`], with another key for top-k.
    pub(crate) fn read_with_top_k(
        config: &Section<'_>,
        mlp: &Mlp,
        (keys, inner): (&[&str], usize),
        scores: Scores,
        read_with_top_k: &str,
    ) -> Experts {
        let chosen = config.count(read_with_top_k);
        let count = count(config, keys);
        if chosen > count {
            let message = format!("cannot select {chosen} of {count} experts");
            config.report_inconsistency(read_with_top_k, message);
        }
        let (correction, groups, renormalize, factor) = (None, None, false, 1.0);
        Experts {
            hidden: mlp.hidden,
            count,
            inner,
            gating: Gating::Plain(mlp.activation),
            bias: false,
            choice: Router { scores, chosen, correction, groups, renormalize, factor },
            shared: None,
            module: "mlp",
            router: "gate",
            projections: ["gate_proj", "up_proj", "down_proj"],
            alternate: false,
            joined: false,
            dense: Vec::new(),
        }
    }

    /// Reads DeepSeek's options: `n_shared_experts` shared experts and dense MLPs in the first
    /// `first_k_dense_replace` of `layers` layers. `usual` has their defaults.
    pub(crate) fn read_deepseek(
        &mut self,
        config: &Section<'_>,
        mlp: &Mlp,
        layers: usize,
        usual: [usize; 2],
    ) {
        let inner = self.inner * config.count_or("n_shared_experts", usual[0]);
        let mlp = Mlp { inner, ..*mlp };
        self.shared = Some(Shared { mlp, module: "shared_experts", gate: None });
        // May be 0, so it is not read as a count.
        let first = config.number_or("first_k_dense_replace", usual[1] as f64);
        self.dense = (0..layers).map(|layer| (layer as f64) < first).collect();
    }

    /// Builds the block: from the normed stream to the branch output. `module` is the prefix of tensor names.
    pub(crate) fn build(&self, layer: &mut Layer<'_, '_>, x: ValueId, module: &str) -> ValueId {
        let router = format!("{module}.{}", self.router);
        let logits = layer.linear("router", x, &router, [self.count, self.hidden], self.bias);
        let correction = self
            .choice
            .correction
            .map(|name| layer.weight("correction", &format!("{router}.{name}"), &[self.count]));
        let routed = self.routed(layer, [x, logits], module, [correction, None]);
        let Some(shared) = &self.shared else { return routed };
        let mut result = shared.mlp.build(layer, x, &format!("{module}.{}", shared.module));
        if let Some(gate) = shared.gate {
            let gate = layer.linear("shared_gate", x, &format!("{module}.{gate}"), [1, self.hidden], false);
            let gate = layer.activate("gated", gate, Activation::Sigmoid);
            result = layer.multiply("shared", result, gate);
        }
        layer.add("both", routed, result)
    }

    /// The routed experts' output from router logits, with optional correction bias and per-expert scale.
    pub(crate) fn routed(
        &self,
        layer: &mut Layer<'_, '_>,
        [x, logits]: [ValueId; 2],
        module: &str,
        [correction, scale]: [Option<ParamId>; 2],
    ) -> ValueId {
        let Router { scores, chosen, groups, renormalize, factor, .. } = self.choice;
        let routing = Routing { scores, chosen, correction, groups, renormalize, factor, scale };
        let weights = layer.route("weights", logits, routing);
        let stacked = STACKED.map(|name| format!("{module}.{name}"));
        let stacked = stacked.iter().find(|name| layer.has(&format!("{name}.{}.weight", OF_STACKED[0])));
        let [gate, up, down] = match stacked {
            Some(stacked) => self.stacked(layer, stacked),
            None if self.alternate => self.interleaved(layer, &format!("{module}.experts")),
            None => self.fused_or_separate(layer, module),
        };
        let biases = self.bias.then(|| match stacked {
            Some(stacked) => self.biases(layer, stacked),
            None => self.interleaved_biases(layer, &format!("{module}.experts")),
        });
        let experts = forge_ir::Experts { gate, up, down, biases, gating: self.gating };
        layer.experts("routed", [x, weights], experts)
    }

    /// Gate, up and down stacks if gate and up alternate: transposed float matrices, or quantized ones in row
    /// order.
    fn interleaved(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
        let (inner, hidden) = (self.inner, self.hidden);
        let [both, down] = ["gate_up_proj", "down_proj"].map(|name| format!("{module}.{name}"));
        let is_coded = |layer: &Layer<'_, '_>, matrix: &str| layer.has(&mxfp4::blocks(matrix));
        let coded = is_coded(layer, &both);
        let mut part = |role, first| {
            let (tensor, cut) = match coded {
                true => (mxfp4::blocks(&both), WeightSlice::Groups { first, rows: 1, of: 2 }),
                false => (both.clone(), WeightSlice::ColumnGroups { first, columns: 1, of: 2 }),
            };
            layer.stack(role, (&tensor, Stack::Whole, Some(cut)), [self.count, inner, hidden])
        };
        let [gate, up] = [part("routed_gate", 0), part("routed_up", 1)];
        let (down, cut) = match is_coded(layer, &down) {
            true => (mxfp4::blocks(&down), None),
            false => (down, Some(WeightSlice::Columns { first: 0, of: hidden })),
        };
        [gate, up, layer.stack("routed_down", (&down, Stack::Whole, cut), [self.count, hidden, inner])]
    }

    /// Biases of gate, up and down if those of gate and up alternate.
    fn interleaved_biases(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
        let both = format!("{module}.gate_up_proj_bias");
        let mut part = |role, first| {
            let cut = Some(WeightSlice::Groups { first, rows: 1, of: 2 });
            layer.stacked_vectors(role, (&both, cut), [self.count, self.inner])
        };
        let [gate, up] = [part("routed_gate_bias", 0), part("routed_up_bias", 1)];
        let down = format!("{module}.down_proj_bias");
        [gate, up, layer.stacked_vectors("routed_down_bias", (&down, None), [self.count, self.hidden])]
    }

    /// Gate, up and down stacks with one tensor per projection.
    fn stacked(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
        let inward = [self.count, self.inner, self.hidden];
        let outward = [self.count, self.hidden, self.inner];
        let [gate, up, down] = OF_STACKED.map(|projection| format!("{module}.{projection}.weight"));
        let mut one = |role, tensor: &str, shape| layer.stack(role, (tensor, Stack::Whole, None), shape);
        [one("routed_gate", &gate, inward), one("routed_up", &up, inward), one("routed_down", &down, outward)]
    }

    /// Biases of these.
    fn biases(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
        let [gate, up, down] = OF_STACKED.map(|projection| format!("{module}.{projection}.bias"));
        let mut one =
            |role, tensor: &str, width| layer.stacked_vectors(role, (tensor, None), [self.count, width]);
        let [gate, up] = [one("routed_gate_bias", &gate, self.inner), one("routed_up_bias", &up, self.inner)];
        [gate, up, one("routed_down_bias", &down, self.hidden)]
    }

    /// Gate, up and down stacks with one gate-up tensor, or with tensors per expert.
    fn fused_or_separate(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
        let inward = [self.count, self.inner, self.hidden];
        let outward = [self.count, self.hidden, self.inner];
        let joined = format!("{module}.experts.gate_up_proj");
        if self.joined || layer.has(&joined) {
            let cut = |first| Some(WeightSlice::Rows { first, of: 2 * self.inner });
            let mut part = |role, first| layer.stack(role, (&joined, Stack::Whole, cut(first)), inward);
            let [gate, up] = [part("routed_gate", 0), part("routed_up", self.inner)];
            let down = format!("{module}.experts.down_proj");
            return [gate, up, layer.stack("routed_down", (&down, Stack::Whole, None), outward)];
        }
        let [gate, up, down] =
            self.projections.map(|projection| format!("{module}.experts.*.{projection}.weight"));
        let mut one = |role, tensor: &str, shape| layer.stack(role, (tensor, Stack::Apart, None), shape);
        [one("routed_gate", &gate, inward), one("routed_up", &up, inward), one("routed_down", &down, outward)]
    }
}

/// The number given by any of several keys; all that are present must agree.
fn count(config: &Section<'_>, keys: &[&str]) -> usize {
    let there: Vec<&str> = keys.iter().filter(|key| config.get(key).is_some()).copied().collect();
    let first = there.first().or(keys.first()).copied().unwrap_or_default();
    let count = config.count(first);
    if count > MAX_EXPERTS {
        config.report_inconsistency(first, format!("{count} experts; the maximum is {MAX_EXPERTS}"));
    }
    for key in there.iter().skip(1) {
        if config.count(key) != count {
            config.report_inconsistency(key, format!("{key} and {first} differ"));
        }
    }
    count
}

/// Group-limited routing: `topk_group` of `n_group` groups are kept, ranked by their best experts; `None` for
/// one group.
pub(crate) fn groups(
    config: &Section<'_>,
    experts: &Experts,
    best: usize,
    usual: [usize; 2],
) -> Option<Groups> {
    let [count, kept] =
        [("n_group", usual[0]), ("topk_group", usual[1])].map(|(key, usual)| config.count_or(key, usual));
    let (size, chosen) = (experts.count / count, experts.choice.chosen);
    if !experts.count.is_multiple_of(count) || size < best {
        let message =
            format!("{} experts cannot be divided into {count} groups of at least {best}", experts.count);
        config.report_inconsistency("n_group", message);
    } else if kept > count || kept * size < chosen {
        let message = format!("cannot select {chosen} experts from {kept} of {count} groups of {size}");
        config.report_inconsistency("topk_group", message);
    }
    (count > 1).then_some(Groups { count, kept, best })
}
