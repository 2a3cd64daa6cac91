//! The runtime features that a generated crate enables.

use crate::crate_files::CrateOptions;
use crate::kernels::weight_format;
use forge_ir::Format;
use forge_kernels::Spec;
use forge_planner::Plan;
use std::collections::BTreeSet;

/// Names of the enabled features.
pub(crate) fn features(plan: &Plan, options: &CrateOptions) -> BTreeSet<&'static str> {
    let kernels = || plan.kernels.iter().map(|kernel| &kernel.spec);
    let families = kernels().filter_map(family);
    let formats = kernels().filter_map(weight_format).map(format);
    let backend = [("cuda", options.cuda), ("tune", options.tunable)];
    let backend = backend.into_iter().filter_map(|(name, is_needed)| is_needed.then_some(name));
    families.chain(formats).chain(backend).collect()
}

/// The runtime feature of a kernel family; `None` for kernels that are always included.
fn family(spec: &Spec) -> Option<&'static str> {
    match spec {
        Spec::Rotate(_)
        | Spec::Append(_)
        | Spec::RotateAppend(_)
        | Spec::AttendSplit(_)
        | Spec::AttendJoin(_)
        | Spec::AttendTiled(_) => Some("attention"),
        Spec::EachHead(_)
        | Spec::LatentAppend(_)
        | Spec::LatentAttend(_)
        | Spec::LatentShare(_)
        | Spec::AttendUnfolded(_) => Some("mla"),
        Spec::Convolve(_)
        | Spec::DeltaRule(_)
        | Spec::DeltaChunks(_)
        | Spec::LetThrough(_)
        | Spec::DeltaStep(_) => Some("recurrent"),
        Spec::Route(_)
        | Spec::ExpertsInner(_)
        | Spec::ExpertsSum(_)
        | Spec::ExpertsGroup(_)
        | Spec::ExpertsTiles(_)
        | Spec::ExpertsJoin(_) => Some("moe"),
        Spec::Embed(_)
        | Spec::RmsNorm(_)
        | Spec::NormAdd(_)
        | Spec::LayerNorm(_)
        | Spec::Project(_)
        | Spec::Elementwise(_)
        | Spec::Take(_)
        | Spec::Argmax(_)
        | Spec::Sample(_)
        | Spec::ArgmaxJoin(_) => None,
    }
}

/// The runtime feature of a weight format.
fn format(format: Format) -> &'static str {
    match format {
        Format::F32 => "f32",
        Format::F16 => "f16",
        Format::Bf16 => "bf16",
        Format::Q8_0 => "q8_0",
        Format::Q4_0 => "q4_0",
        Format::Q4K | Format::Q5K | Format::Q6K => "k-quants",
        Format::Mxfp4 => "mxfp4",
        Format::Affine(_) => "affine",
    }
}
