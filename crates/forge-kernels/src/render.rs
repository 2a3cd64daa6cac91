//! Renders specs to source and declaration, and assembles instances to a file.

use std::sync::OnceLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};

use crate::catalog::{PARTS, TEMPLATES, template_path};
use crate::context::{context, literal};
use crate::error::KernelError;
use crate::limits;
use crate::spec::Spec;
use crate::support;
use forge_msl::KernelDecl;

/// Headers of products of tensors.
const TENSOR_INCLUDES: &str = "#if __METAL_VERSION__ >= 400
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#endif
";

/// A kernel rendered for one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    /// Name of the kernel in the file.
    pub name: String,
    /// The spec.
    pub spec: Spec,
    /// Support files that the source calls, as paths under `kernels/`.
    pub support: Vec<&'static str>,
    /// Source from its first comment to its last brace, without support functions.
    pub text: String,
    /// The parsed signature.
    pub decl: KernelDecl,
}

/// Renders `spec` as a kernel with this name.
pub fn render(name: &str, spec: &Spec) -> Result<Instance, KernelError> {
    limits::check(name, spec)?;
    let context = context(name, spec);
    let text = render_template(template_path(spec), context)
        .map_err(|source| KernelError::Template { kernel: name.to_owned(), source })?;
    let decl = KernelDecl::parse(&text)
        .map_err(|source| KernelError::Declaration { kernel: name.to_owned(), source })?;
    Ok(Instance { name: name.to_owned(), spec: spec.clone(), support: support::called(&text), text, decl })
}

/// Joins instances to one file: `header` as a comment, Metal includes, support functions, and kernels in
/// order. Names of instances must be unique.
pub fn assemble(instances: &[Instance], header: &str) -> String {
    let mut file = String::new();
    for line in header.lines() {
        file.push_str(format!("// {line}").trim_end());
        file.push('\n');
    }
    if !header.is_empty() {
        file.push('\n');
    }
    file.push_str("#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\n");
    if instances.iter().any(|instance| instance.text.contains("mpp::tensor_ops")) {
        file.push_str(TENSOR_INCLUDES);
    }
    file.push_str("using namespace metal;\n");
    let called: Vec<&str> = instances.iter().flat_map(|instance| instance.support.iter().copied()).collect();
    let kernels = instances.iter().map(|instance| instance.text.as_str());
    for text in support::texts(&called).into_iter().chain(kernels) {
        file.push('\n');
        file.push_str(text);
    }
    file
}

fn render_template(path: &str, variables: Value) -> Result<String, Error> {
    environment()?.get_template(path)?.render(variables)
}

/// Compiled templates and parts. They are compiled once, since plans and tests render thousands of kernels.
fn environment() -> Result<&'static Environment<'static>, Error> {
    static COMPILED: OnceLock<Environment<'static>> = OnceLock::new();
    if let Some(environment) = COMPILED.get() {
        return Ok(environment);
    }
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true);
    environment.set_syntax(syntax.build()?);
    environment.set_formatter(format_value);
    // Optional buffers shift those after them, so signatures call `slot()` for the next number.
    environment.add_function("slot", |state: &mut State| {
        let slot = state.get_temp("slot").map_or(Ok(0), u32::try_from)?;
        state.set_temp("slot", Value::from(slot + 1));
        Ok(slot)
    });
    for source in TEMPLATES.iter().chain(PARTS) {
        environment.add_template(source.path, source.text)?;
    }
    Ok(COMPILED.get_or_init(|| environment))
}

/// Prints floats as literals, and strings and integers unchanged; other values are errors.
fn format_value(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.kind() {
        ValueKind::Number if value.is_integer() => write!(out, "{value}"),
        ValueKind::Number => write!(out, "{}", literal(f64::try_from(value.clone())? as f32)),
        ValueKind::String => write!(out, "{value}"),
        other => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value of kind {other} was printed"),
            ));
        }
    };
    written.map_err(Error::from)
}
