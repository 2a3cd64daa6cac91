//! The feed-forward network of a layer with experts: a router gives each row to a few of them, and some that are shared
//! have every row.
//!
//! Checkpoints store the experts of a layer apart, each under its number; as one tensor for each projection, which is what MLX's
//! converters make of all; or as one for gates and ups together. Which of these it is, its tensors' names say; whether gates and ups
//! alternate there or lie one below the other, the architecture knows.

use crate::builder::Layer;
use crate::config::Section;
use crate::mlp::Mlp;
use crate::mxfp4;
use forge_ir::{Activation, Gating, Groups, ParamId, Routing, Scores, Stack, ValueId, WeightSlice};

/// A description of such layers.
pub(crate) struct Experts {
    /// Width of what they read and of what they give.
    pub(crate) hidden: usize,
    /// How many there are.
    pub(crate) count: usize,
    /// Width between.
    pub(crate) inner: usize,
    /// What becomes of a gate and its up.
    pub(crate) gating: Gating,
    /// Whether the router and all experts' projections have a bias.
    pub(crate) bias: bool,
    /// How a row's are chosen.
    pub(crate) choice: Choice,
    /// Those that have every row.
    pub(crate) shared: Option<Shared>,
    /// What it is called in a layer: `mlp`.
    pub(crate) module: &'static str,
    /// What the router is called.
    pub(crate) router: &'static str,
    /// What gates, ups and downs are called.
    pub(crate) projections: [&'static str; 3],
    /// Whether gates and ups alternate in one tensor.
    pub(crate) alternate: bool,
    /// Whether gates and ups of all experts are one tensor, and downs another, and nothing else is known.
    pub(crate) joined: bool,
    /// Layers whose feed-forward network is an ordinary one.
    pub(crate) dense: Vec<bool>,
}

/// How a row's experts are chosen: a routing but for its tensors.
pub(crate) struct Choice {
    /// What scores are made of.
    pub(crate) scores: Scores,
    /// Experts of a row.
    pub(crate) chosen: usize,
    /// The vector that is added to scores for the choice.
    pub(crate) correction: Option<&'static str>,
    /// Groups of experts.
    pub(crate) groups: Option<Groups>,
    /// Whether weights are divided by the sum of those chosen.
    pub(crate) shares: bool,
    /// Multiplies every weight.
    pub(crate) factor: f32,
}

/// Experts that have every row: one network, as wide as they are together.
pub(crate) struct Shared {
    /// The network.
    pub(crate) mlp: Mlp,
    /// What it is called.
    pub(crate) module: &'static str,
    /// The module of the one number for each row whose sigmoid multiplies its result.
    pub(crate) gate: Option<&'static str>,
}

/// The module of all experts where each projection of them is one tensor.
const STACKED: [&str; 3] = ["switch_mlp", "experts", "experts.switch_glu"];

/// What gates, ups and downs are called there, whatever the architecture calls them.
const OF_STACKED: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// Published models have 512 at most.
const MOST: usize = 1024;

impl Experts {
    /// So many experts as one of these keys says, the first being the architecture's own, each `inner` wide, of which
    /// `num_experts_per_tok` are a row's. There are no groups, corrections and shared experts.
    pub(crate) fn read(
        config: &Section<'_>,
        mlp: &Mlp,
        (keys, inner): (&[&str], usize),
        scores: Scores,
    ) -> Experts {
        Experts::of_a_row(config, mlp, (keys, inner), scores, "num_experts_per_tok")
    }

    /// The same where another key tells how many are a row's.
    pub(crate) fn of_a_row(
        config: &Section<'_>,
        mlp: &Mlp,
        (keys, inner): (&[&str], usize),
        scores: Scores,
        of_a_row: &str,
    ) -> Experts {
        let chosen = config.count(of_a_row);
        let count = count(config, keys);
        if chosen > count {
            let message = format!("{chosen} of {count} experts cannot be chosen");
            config.contradiction(of_a_row, message);
        }
        let (correction, groups, shares, factor) = (None, None, false, 1.0);
        Experts {
            hidden: mlp.hidden,
            count,
            inner,
            gating: Gating::Plain(mlp.activation),
            bias: false,
            choice: Choice { scores, chosen, correction, groups, shares, factor },
            shared: None,
            module: "mlp",
            router: "gate",
            projections: ["gate_proj", "up_proj", "down_proj"],
            alternate: false,
            joined: false,
            dense: Vec::new(),
        }
    }

    /// Adds what DeepSeek's models and those like them have: `n_shared_experts` experts that every row has, and ordinary
    /// networks in the first `first_k_dense_replace` of so many layers. Absent, these are what is usual.
    pub(crate) fn share(&mut self, config: &Section<'_>, mlp: &Mlp, layers: usize, usual: [usize; 2]) {
        let inner = self.inner * config.count_or("n_shared_experts", usual[0]);
        let mlp = Mlp { inner, ..*mlp };
        self.shared = Some(Shared { mlp, module: "shared_experts", gate: None });
        // Not a count: 0 is a value of it.
        let first = config.number_or("first_k_dense_replace", usual[1] as f64);
        self.dense = (0..layers).map(|layer| (layer as f64) < first).collect();
    }

    /// From the normed stream to the branch's result. `module` is the tensors' prefix.
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

    /// What the experts that a router's logits choose make of x; they may be corrected for the choice, and each scaled.
    pub(crate) fn routed(
        &self,
        layer: &mut Layer<'_, '_>,
        [x, logits]: [ValueId; 2],
        module: &str,
        [correction, scale]: [Option<ParamId>; 2],
    ) -> ValueId {
        let Choice { scores, chosen, groups, shares, factor, .. } = self.choice;
        let routing = Routing { scores, chosen, correction, groups, shares, factor, scale };
        let weights = layer.route("weights", logits, routing);
        let stacked = STACKED.map(|name| format!("{module}.{name}"));
        let stacked = stacked.iter().find(|name| layer.has(&format!("{name}.{}.weight", OF_STACKED[0])));
        let [gate, up, down] = match stacked {
            Some(stacked) => self.stacked(layer, stacked),
            None if self.alternate => self.alternating(layer, &format!("{module}.experts")),
            None => self.joined_or_apart(layer, module),
        };
        let biases = self.bias.then(|| match stacked {
            Some(stacked) => self.biases(layer, stacked),
            None => self.alternating_biases(layer, &format!("{module}.experts")),
        });
        let experts = forge_ir::Experts { gate, up, down, biases, gating: self.gating };
        layer.experts("routed", [x, weights], experts)
    }

    /// Gates, ups and downs of all experts where gates and ups alternate: matrices that have a column for each output, or codes of
    /// such that have a row.
    fn alternating(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
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

    /// What is added to gates, ups and downs, those of gates and ups alternating.
    fn alternating_biases(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
        let both = format!("{module}.gate_up_proj_bias");
        let mut part = |role, first| {
            let cut = Some(WeightSlice::Groups { first, rows: 1, of: 2 });
            layer.stacked_vectors(role, (&both, cut), [self.count, self.inner])
        };
        let [gate, up] = [part("routed_gate_bias", 0), part("routed_up_bias", 1)];
        let down = format!("{module}.down_proj_bias");
        [gate, up, layer.stacked_vectors("routed_down_bias", (&down, None), [self.count, self.hidden])]
    }

    /// Gates, ups and downs of all experts where each projection is one tensor.
    fn stacked(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
        let inward = [self.count, self.inner, self.hidden];
        let outward = [self.count, self.hidden, self.inner];
        let [gate, up, down] = OF_STACKED.map(|projection| format!("{module}.{projection}.weight"));
        let mut one = |role, tensor: &str, shape| layer.stack(role, (tensor, Stack::Whole, None), shape);
        [one("routed_gate", &gate, inward), one("routed_up", &up, inward), one("routed_down", &down, outward)]
    }

    /// What is added to these.
    fn biases(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
        let [gate, up, down] = OF_STACKED.map(|projection| format!("{module}.{projection}.bias"));
        let mut one =
            |role, tensor: &str, width| layer.stacked_vectors(role, (tensor, None), [self.count, width]);
        let [gate, up] = [one("routed_gate_bias", &gate, self.inner), one("routed_up_bias", &up, self.inner)];
        [gate, up, one("routed_down_bias", &down, self.hidden)]
    }

    /// Gates, ups and downs of all experts where gates and ups are one tensor, or where each expert has its own.
    fn joined_or_apart(&self, layer: &mut Layer<'_, '_>, module: &str) -> [ParamId; 3] {
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

/// The number that any of some keys says; all that are there have to say the same.
fn count(config: &Section<'_>, keys: &[&str]) -> usize {
    let there: Vec<&str> = keys.iter().filter(|key| config.get(key).is_some()).copied().collect();
    let first = there.first().or(keys.first()).copied().unwrap_or_default();
    let count = config.count(first);
    if count > MOST {
        config.contradiction(first, format!("there are {count} experts, and forge takes {MOST} at most"));
    }
    for key in there.iter().skip(1) {
        if config.count(key) != count {
            config.contradiction(key, format!("{key} and {first} are not the same number of experts"));
        }
    }
    count
}

/// Groups of which `topk_group` of `n_group`, or what is usual, are kept by their best experts; none where there is one.
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
        let message = format!("{} experts are no {count} groups of {best} or more", experts.count);
        config.contradiction("n_group", message);
    } else if kept > count || kept * size < chosen {
        let message = format!("{chosen} experts cannot be chosen from {kept} of {count} groups of {size}");
        config.contradiction("topk_group", message);
    }
    (count > 1).then_some(Groups { count, kept, best })
}
