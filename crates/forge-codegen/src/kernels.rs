//! Template context of `kernels.rs`: a typed wrapper for each function of the plan, generated from the parsed signatures
//! of its kernels, and a record of each kernel.

use crate::names;
use crate::rust_expression::expression;
use forge_kernels::{Instance, KernelDecl, Spec};
use forge_ops::{Format, KernelOp};
use forge_planner::{Function, KernelCost, Plan, Regime};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Context {
    pub(crate) functions: Vec<FunctionText>,
    kernels: Vec<KernelText>,
    pub(crate) weight_types: Vec<String>,
    /// Whether a function selects an attention kernel for many rows.
    selects_attention: bool,
    /// Whether a parameter has type `f16`.
    half: bool,
    /// Whether a shape contains a list.
    lists: bool,
}

#[derive(Serialize)]
pub(crate) struct FunctionText {
    pub(crate) name: String,
    formula: String,
    parameters: Vec<String>,
    body: String,
    /// Parameter names in order, without `pass`.
    #[serde(skip)]
    pub(crate) takes: Vec<String>,
}

#[derive(Serialize)]
struct KernelText {
    name: String,
    constant: String,
    buffers: Vec<String>,
    threads: usize,
    strips: Option<[usize; 2]>,
    work: String,
    cpu: String,
}

impl Context {
    pub(crate) fn new(plan: &Plan) -> Context {
        let functions: Vec<FunctionText> =
            plan.functions.iter().map(|function| function_text(plan, function)).collect();
        let kernels = plan.kernels.iter().enumerate().map(|(number, instance)| KernelText {
            name: instance.name.clone(),
            constant: constant(&instance.name),
            buffers: instance.decl.buffers.iter().map(|buffer| buffer.name.clone()).collect(),
            threads: instance.decl.threads as usize,
            strips: strips(&instance.spec),
            work: work(&plan.work(number)),
            cpu: cpu(&instance.spec.op()),
        });
        let mut weight_types: Vec<String> = plan
            .kernels
            .iter()
            .filter_map(|instance| instance.spec.op().weight_format())
            .map(|format| format.rust_type().split('<').next().unwrap_or_default().to_owned())
            .collect();
        weight_types.sort_unstable();
        weight_types.dedup();
        let half = functions
            .iter()
            .any(|function| function.parameters.iter().any(|parameter| parameter.contains("<f16>")));
        let kernels: Vec<KernelText> = kernels.collect();
        let lists = kernels.iter().any(|kernel| kernel.cpu.contains("Cow::"));
        let is_tiled = |instance: &Instance| matches!(instance.spec, Spec::AttendTiled(_));
        let selects_attention = plan.kernels.iter().any(is_tiled);
        Context { functions, kernels, weight_types, selects_attention, half, lists }
    }
}

/// Outputs of one strip of a repacked matrix.
const OUTPUTS: usize = 16;

/// Rows and stored columns of a kernel's matrix, or of each expert's, if the CPU can repack it into strips.
fn strips(spec: &Spec) -> Option<[usize; 2]> {
    let (format, [rows, columns], is_whole) = match spec {
        Spec::Linear(of) if !of.op.chooses => (of.op.format, [of.op.outputs, of.op.inputs], true),
        Spec::Embed(of) => (of.format, [of.vocabulary, of.width], true),
        Spec::ExpertsInner(of) => (of.op.format, [of.op.outputs, of.op.inputs], of.op.outputs % OUTPUTS == 0),
        Spec::ExpertsSum(of) => (of.op.format, [of.op.outputs, of.op.inputs], of.op.outputs % OUTPUTS == 0),
        Spec::ExpertsTiles(of) => (of.op.format, [of.op.outputs, of.op.inputs], of.op.outputs % OUTPUTS == 0),
        _ => return None,
    };
    (format.has_integers() && is_whole).then_some([rows, columns.next_multiple_of(format.group())])
}

/// The CPU implementation of an operation as a Rust expression: `cpu::linear::<Q4_0>(call, &ops::Linear { .. })`.
fn cpu(op: &KernelOp) -> String {
    // Functions that read weights are generic over the weight format.
    let format = op.weight_format().map_or_else(String::new, |format| format!("::<{}>", format.rust_type()));
    format!("cpu::{}{format}(call, &{})", op.name(), expression(op))
}

/// The cost of a kernel as a Rust expression.
fn work(work: &KernelCost) -> String {
    let KernelCost { read, written, operations, window, experts } = work;
    format!(
        "KernelCost {{ read: {read:?}, written: {written:?}, operations: {operations:?}, window: {window:?}, experts: {experts:?} }}"
    )
}

/// The name of a kernel's record in `kernels.rs`.
fn constant(kernel: &str) -> String {
    kernel.to_ascii_uppercase()
}

/// The runtime's type of a matrix in this format.
pub(crate) fn matrix_type(format: Format) -> String {
    format!("Matrix<{}>", format.rust_type())
}

/// A parameter of a wrapper: the buffers of one name, or all planes of one matrix.
#[derive(Clone, PartialEq)]
struct Parameter {
    name: String,
    rust_type: String,
}

/// The parameter that a buffer belongs to, and the expression that yields the buffer.
fn parameter_of(instance: &Instance, buffer: &forge_kernels::Buffer) -> (Parameter, String) {
    for plane in ["values", "codes", "scales"] {
        if let (Some(matrix), Some(format)) =
            (buffer.name.strip_suffix(&format!("_{plane}")), instance.spec.op().weight_format())
        {
            let parameter = Parameter { name: matrix.to_owned(), rust_type: matrix_type(format) };
            return (parameter, format!("{matrix}.{plane}()"));
        }
    }
    let element = match buffer.element.as_str() {
        "half" => "f16",
        "uint" => "u32",
        "uchar" => "u8",
        _ => "f32",
    };
    let name = names::identifier(&buffer.name);
    (Parameter { name: name.clone(), rust_type: format!("Span<{element}>") }, name)
}

fn function_text(plan: &Plan, function: &Function) -> FunctionText {
    let mut parameters: Vec<Parameter> = Vec::new();
    let mut scalars: Vec<String> = Vec::new();
    for variant in &function.variants {
        let instance = &plan.kernels[variant.kernel];
        for buffer in &instance.decl.buffers {
            let (parameter, _) = parameter_of(instance, buffer);
            if !parameters.contains(&parameter) {
                parameters.push(parameter);
            }
        }
        for scalar in &instance.decl.scalars {
            if !scalars.contains(scalar) {
                scalars.push(scalar.clone());
            }
        }
    }
    let mut takes: Vec<String> = parameters.iter().map(|parameter| parameter.name.clone()).collect();
    takes.extend(scalars.iter().cloned());
    let mut text = vec!["pass: &mut dyn Pass".to_owned()];
    text.extend(parameters.iter().map(|parameter| format!("{}: {}", parameter.name, parameter.rust_type)));
    text.extend(scalars.iter().map(|scalar| format!("{scalar}: u32")));
    let body = body(plan, function);
    FunctionText {
        name: names::identifier(&function.name),
        formula: function.formula.clone(),
        parameters: text,
        body,
        takes,
    }
}

/// The dispatch, or a `match` on the number of rows with one dispatch per kernel.
fn body(plan: &Plan, function: &Function) -> String {
    let runs: Vec<(&[Regime], String)> = function
        .variants
        .iter()
        .map(|variant| (variant.regimes.as_slice(), dispatch(&plan.kernels[variant.kernel])))
        .collect();
    if let [(_, only)] = &runs[..] {
        return format!("{only};");
    }
    // Attention for many rows has a simpler kernel, which takes any number of rows.
    let is_attention = function
        .variants
        .iter()
        .any(|variant| matches!(plan.kernels[variant.kernel].spec, Spec::AttendTiled(_)));
    let rows = if is_attention { "attention_rows(rows)" } else { "rows" };
    let mut text = format!("match {rows} {{\n");
    for (index, (regimes, dispatch)) in runs.iter().enumerate() {
        // The last kernel takes the remaining counts: a function is never called with more rows than it supports.
        let pattern = match (index + 1 == runs.len(), regimes) {
            (true, _) => "_".to_owned(),
            (_, [Regime::One]) => "1".to_owned(),
            (_, [.., last]) => format!("..={}", last.max_rows().unwrap_or(plan.chunk)),
            (_, []) => "_".to_owned(),
        };
        text.push_str(&format!("    {pattern} => {dispatch},\n"));
    }
    text.push('}');
    text
}

fn dispatch(instance: &Instance) -> String {
    let KernelDecl { buffers, scalars, grid, .. } = &instance.decl;
    let bindings: Vec<String> = buffers
        .iter()
        .map(|buffer| {
            let (_, expression) = parameter_of(instance, buffer);
            format!("{expression}.{}()", if buffer.written { "write" } else { "read" })
        })
        .collect();
    let grid: Vec<String> = grid.iter().map(ToString::to_string).collect();
    format!(
        "pass.dispatch(&{}, &[{}], &[{}], [{}])",
        constant(&instance.name),
        bindings.join(", "),
        scalars.join(", "),
        grid.join(", ")
    )
}
