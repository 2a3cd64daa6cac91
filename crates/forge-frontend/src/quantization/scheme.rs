//! Selects the quantization method that a configuration names.

use crate::checkpoint::files;
use crate::checkpoint::files::Checkpoint;
use crate::config::conventions::Conventions;
use crate::config::file::Config;
use crate::config::section::Section;
use crate::json;
use crate::quantization::module::Module;
use crate::quantization::{awq, bitsandbytes, compressed_tensors, fp8, gptq, mlx, modelopt};
use forge_ir::{Diagnostic, Encoding};
use serde_json::Value;

/// A matrix of a module: how it is stored, and its shape, outputs first.
pub(crate) type Stored = (Encoding, Vec<usize>);

/// How a method stores the matrices of modules.
///
/// Names and types of tensors decide which modules are quantized, and how: lists of modules in the
/// configuration repeat that.
pub(crate) trait Scheme {
    /// Last parts of the names of a quantized module's tensors, or enough of them to find all modules.
    fn parts(&self) -> &'static [&'static str];

    /// Last parts of the names of tensors that only describe others and have been checked.
    fn checked(&self) -> &'static [&'static str] {
        &[]
    }

    /// Last parts of the names of tensors that do not affect weights.
    fn unused(&self) -> &'static [&'static str] {
        &[]
    }

    /// Last parts of the names of tensors that have no effect if all their bytes are 0.
    fn unused_if_zero(&self) -> &'static [&'static str] {
        &[]
    }

    /// The note if no module is quantized.
    fn note_without_modules(&self) -> Option<String> {
        Some("no matrix is quantized, although config.json names a quantization method".to_owned())
    }

    /// The matrix of a module, or why it cannot be read; `None` if the module is not quantized or is bound
    /// without a scheme.
    fn stored(&self, module: &Module<'_>) -> Option<Result<Stored, String>>;
}

/// Configuration key of all methods but MLX's.
pub(crate) const KEY: &str = "quantization_config";

/// Configuration of NVIDIA's ModelOpt in a file of its own.
const MODELOPT: &str = "hf_quant_config.json";

/// Methods that are read, for error messages.
const METHODS: &str = "expected fp8, compressed-tensors, awq, gptq, bitsandbytes, modelopt, mxfp4 (gpt-oss) or MLX quantization";

/// Reads the configuration of a method; `None` without one, and for MLX's and OpenAI's.
pub(crate) fn read(root: &Section<'_>, checkpoint: &dyn Checkpoint) -> Option<Box<dyn Scheme>> {
    if root.contains_key_unread(mlx::KEY) {
        return None;
    }
    let text = root.contains_key_unread("text_config").then(|| root.section("text_config")).flatten();
    let configured = [Some(root.clone()), text].into_iter().flatten().find(names_a_method);
    let Some(section) = configured.and_then(|configured| configured.section(KEY)) else {
        return modelopt_file(checkpoint);
    };
    let method = section.word("quant_method");
    let producer = section.get("producer").and_then(|producer| producer.get("name"));
    let is_modelopt = producer.and_then(Value::as_str) == Some("modelopt");
    let scheme: Option<Box<dyn Scheme>> = match method {
        // gpt-oss reads it; for others an unread key is an error.
        Some("mxfp4") => return None,
        Some("fp8" | "fbgemm_fp8") if !is_modelopt => Some(Box::new(fp8::read(&section))),
        Some("compressed-tensors") => Some(Box::new(compressed_tensors::read(&section))),
        Some("awq") => Some(Box::new(awq::read(&section))),
        Some("gptq") => Some(Box::new(gptq::read(&section))),
        Some("bitsandbytes") => Some(Box::new(bitsandbytes::read(&section))),
        Some(method) if is_modelopt || method.starts_with("modelopt") => Some(Box::new(modelopt::ModelOpt)),
        None if is_modelopt => Some(Box::new(modelopt::ModelOpt)),
        _ => None,
    };
    if scheme.is_none() {
        section.reject("quant_method", METHODS, &["use the original checkpoint in BF16 or F16".to_owned()]);
    }
    section.read_all();
    scheme
}

/// Whether an object has a configuration with a method that this module selects.
pub(crate) fn names_a_method(section: &Section<'_>) -> bool {
    section.get_unread(KEY).and_then(Value::as_object).is_some_and(|config| {
        !config.is_empty() && config.get("quant_method").and_then(Value::as_str) != Some("mxfp4")
    })
}

/// ModelOpt's configuration, if it has a file of its own.
fn modelopt_file(checkpoint: &dyn Checkpoint) -> Option<Box<dyn Scheme>> {
    let text = files::text(checkpoint, MODELOPT).ok()??;
    let config = Config::new(json::parse(MODELOPT, &text).ok()?, Conventions::default());
    let quantization = config.root().section("quantization")?;
    quantization.word("quant_algo").is_some().then(|| Box::new(modelopt::ModelOpt) as Box<dyn Scheme>)
}

/// The error for a module whose matrix cannot be read.
pub(crate) fn unreadable(module: &Module<'_>, message: String) -> Diagnostic {
    let fault = Diagnostic::new("F0304", format!("{}: {message}", module.name));
    fault.note("use a checkpoint with this matrix in BF16, F16 or F32")
}
