//! The texts that kernels are made of, embedded: one template a kernel, and the units that kernels share.

use crate::context::LINES;
use crate::spec::{Rows, Spec};

/// A template of one kernel, or a unit of plain text that kernels share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path under `kernels/`, without `.metal`.
    pub path: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! source {
    ($path:literal) => {
        Source { path: $path, text: include_str!(concat!("../../../kernels/", $path, ".metal")) }
    };
}

/// Every template.
pub const TEMPLATES: [Source; 37] = [
    source!("embed/embed"),
    source!("norm/norm_add"),
    source!("norm/rms_norm"),
    source!("norm/layer_norm"),
    source!("project/one"),
    source!("project/few"),
    source!("project/many"),
    source!("attention/rotate"),
    source!("attention/append"),
    source!("attention/rotate_append"),
    source!("attention/attend_split"),
    source!("attention/attend_join"),
    source!("attention/attend_tiled"),
    source!("attention/attend_grouped"),
    source!("latent/each_head"),
    source!("latent/each_head_turned"),
    source!("latent/append"),
    source!("latent/rotate_append"),
    source!("latent/attend"),
    source!("latent/share"),
    source!("latent/attend_unfolded"),
    source!("recurrent/convolve"),
    source!("recurrent/delta_rule"),
    source!("recurrent/delta_chunks"),
    source!("recurrent/let_through"),
    source!("recurrent/delta_step"),
    source!("experts/route"),
    source!("experts/inner"),
    source!("experts/sum"),
    source!("experts/group"),
    source!("experts/tiles"),
    source!("experts/join"),
    source!("elementwise/elementwise"),
    source!("elementwise/take"),
    source!("head/argmax"),
    source!("head/sample"),
    source!("head/argmax_join"),
];

/// Text that several templates include.
pub const PARTS: [Source; 29] = [
    source!("attention/score"),
    source!("attention/weigh"),
    source!("attention/add_values"),
    source!("attention/prepare"),
    source!("attention/by_lanes"),
    source!("attention/by_units"),
    source!("attention/finish"),
    source!("experts/choose"),
    source!("experts/groups"),
    source!("experts/weigh"),
    source!("experts/own_planes"),
    source!("experts/products"),
    source!("experts/biased"),
    source!("head/best"),
    source!("project/beforehand"),
    source!("project/by_lanes"),
    source!("project/by_units"),
    source!("project/weights"),
    source!("project/multiply"),
    source!("latent/finish"),
    source!("latent/join"),
    source!("latent/multiply"),
    source!("latent/own"),
    source!("latent/spread"),
    source!("recurrent/recall"),
    source!("recurrent/answer"),
    source!("recurrent/unit"),
    source!("recurrent/alike"),
    source!("recurrent/solve"),
];

/// Every support unit, in the order in which a file gives them.
pub const SUPPORT: [Source; 50] = [
    source!("support/f32"),
    source!("support/f16"),
    source!("support/bf16"),
    source!("support/q8_0"),
    source!("support/q4_0"),
    source!("support/mxfp4"),
    source!("support/affine8"),
    source!("support/affine6"),
    source!("support/affine5"),
    source!("support/affine4"),
    source!("support/affine3"),
    source!("support/affine2"),
    source!("support/bf16_pair"),
    source!("support/q6_k"),
    source!("support/q4_k"),
    source!("support/load4_whole"),
    source!("support/load4_guarded"),
    source!("support/load4_single"),
    source!("support/half8_whole"),
    source!("support/half8_guarded"),
    source!("support/half8_single"),
    source!("support/float8_whole"),
    source!("support/float8_guarded"),
    source!("support/float8_single"),
    source!("support/half4_whole"),
    source!("support/half4_guarded"),
    source!("support/half4_single"),
    source!("support/encode32"),
    source!("support/record4_whole"),
    source!("support/record4_single"),
    source!("support/silu"),
    source!("support/gelu_tanh"),
    source!("support/gelu"),
    source!("support/relu"),
    source!("support/sigmoid"),
    source!("support/gate_clamped"),
    source!("support/softcap"),
    source!("support/softplus"),
    source!("support/turn"),
    source!("support/ordered"),
    source!("support/weight_of"),
    source!("support/long_sums"),
    source!("support/choose"),
    source!("support/wait_for_others"),
    source!("support/products"),
    source!("support/codes_of_block"),
    source!("support/nibbles_as_bytes"),
    source!("support/block_products"),
    source!("support/strips"),
    source!("support/head_products"),
];

/// The path of the template that renders `spec`.
pub fn template_path(spec: &Spec) -> &'static str {
    match spec {
        Spec::Embed(_) => "embed/embed",
        Spec::RmsNorm(_) => "norm/rms_norm",
        Spec::NormAdd(_) => "norm/norm_add",
        Spec::LayerNorm(_) => "norm/layer_norm",
        Spec::Project(project) => match project.rows {
            Rows::One => "project/one",
            Rows::Few => "project/few",
            Rows::Many => "project/many",
        },
        Spec::Rotate(_) => "attention/rotate",
        Spec::Append(_) => "attention/append",
        Spec::RotateAppend(_) => "attention/rotate_append",
        Spec::AttendSplit(_) => "attention/attend_split",
        Spec::AttendJoin(_) => "attention/attend_join",
        Spec::AttendTiled(attend) if attend.knobs.lines == LINES => "attention/attend_grouped",
        Spec::AttendTiled(_) => "attention/attend_tiled",
        Spec::EachHead(each) if each.turned => "latent/each_head_turned",
        Spec::EachHead(_) => "latent/each_head",
        Spec::LatentAppend(append) if append.prepare.is_some() => "latent/rotate_append",
        Spec::LatentAppend(_) => "latent/append",
        Spec::LatentAttend(_) => "latent/attend",
        Spec::LatentShare(_) => "latent/share",
        Spec::AttendUnfolded(_) => "latent/attend_unfolded",
        Spec::Convolve(_) => "recurrent/convolve",
        Spec::DeltaRule(_) => "recurrent/delta_rule",
        Spec::DeltaChunks(_) => "recurrent/delta_chunks",
        Spec::LetThrough(_) => "recurrent/let_through",
        Spec::DeltaStep(_) => "recurrent/delta_step",
        Spec::Route(_) => "experts/route",
        Spec::ExpertsInner(_) => "experts/inner",
        Spec::ExpertsSum(_) => "experts/sum",
        Spec::ExpertsGroup(_) => "experts/group",
        Spec::ExpertsTiles(_) => "experts/tiles",
        Spec::ExpertsJoin(_) => "experts/join",
        Spec::Elementwise(_) => "elementwise/elementwise",
        Spec::Take(_) => "elementwise/take",
        Spec::Argmax(_) => "head/argmax",
        Spec::Sample(_) => "head/sample",
        Spec::ArgmaxJoin(_) => "head/argmax_join",
    }
}

/// The name by which kernels ask for a support unit: the last part of its path.
pub(crate) fn unit_name(unit: &Source) -> &'static str {
    unit.path.rsplit('/').next().unwrap_or(unit.path)
}
