//! Predicted memory traffic equals measured traffic. Every step of small models runs by itself in the kernel
//! checker, which counts distinct bytes.

use forge_ir::{Graph, Record};
use forge_kernels::spec::MOST_EXPERTS;
use forge_kernels::{Buffer, Instance, Spec};
use forge_ops::{ExpertsGroup, ExpertsTiles, Format, Route};
use forge_planner::{
    BatchColumn, Field, FieldKind, Fusion, Operand, Options, Plan, Quant, Section, Step, Workload, plan,
    step_cost,
};
use forge_sim::{Bound, Program, Sim, Traffic};
use tests::{graph, rows_of};

/// Small models with passes of 40 rows, so that layers with a window of 16 positions have ring buffers in a
/// context of 256. MLA models have passes of more rows, so that latents are expanded.
fn planned(graph: &Graph, format: Format, cache: Option<Format>, disabled: &[Fusion]) -> Plan {
    let disabled = disabled.iter().copied().collect();
    let chunk = if graph.model.name.starts_with("deepseek") { 64 } else { 40 };
    let options = Options { quant: Quant::To(format), cache, chunk, disabled, ..Options::default() };
    plan(graph, &options).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// Runs a single step in its own memory and returns its accesses.
fn run(
    program: &Program,
    plan: &Plan,
    section: &Section,
    step: &Step,
    instance: &Instance,
    load: Workload,
) -> Traffic {
    let mut sim = Sim::new(program).expect("there is memory");
    sim.count_traffic(true);
    let is_head = plan.sections.last().is_some_and(|last| last.name == section.name);
    let rows = match (is_head, step.of_tile) {
        (true, _) => load.wanted as usize,
        // One tile of all positions.
        (false, true) => load.length as usize,
        (false, false) => load.rows as usize,
    };
    let bindings: Vec<Bound> = instance
        .decl
        .buffers
        .iter()
        .map(|buffer| {
            let bytes = match &instance.spec {
                Spec::ExpertsInner(inner) if buffer.name == "routes" && !buffer.written => {
                    read_words(routes(rows, inner.op.experts, inner.op.chosen, inner.op.shared))
                }
                Spec::ExpertsInner(inner) if buffer.name == "logits" => {
                    read_words(inner.op.route.as_ref().map_or(Vec::new(), |route| logits(rows, route)))
                }
                Spec::ExpertsSum(sum) if buffer.name == "routes" => {
                    read_words(routes(rows, sum.op.experts, sum.op.chosen, sum.op.shared))
                }
                // The traffic does not depend on which experts are selected, shared experts included.
                Spec::ExpertsGroup(group) if buffer.name == "routes" => {
                    read_words(routes(rows, group.experts, group.chosen, 0))
                }
                Spec::ExpertsTiles(tiles) if buffer.name == "pairs" => grouped(&tiles.op, rows)[0].clone(),
                Spec::ExpertsTiles(tiles) if buffer.name == "tiles" => grouped(&tiles.op, rows)[1].clone(),
                _ => content(plan, section, step, buffer, load, rows),
            };
            let id = sim.memory.bytes(&bytes).expect("there is memory");
            if buffer.written { id.write() } else { id.read() }
        })
        .collect();
    let capacity = section.state.map_or(0, |state| state.capacity(plan.context));
    let known = [
        ("rows", rows as u32),
        ("kept", rows as u32),
        ("context", plan.context as u32),
        ("capacity", capacity as u32),
        ("splits", load.splits as u32),
        // Every row has all splits.
        ("split_positions", 1),
        ("appends", 1),
        ("first", 8),
        ("begin", 0),
        ("end", load.length as u32),
    ];
    let scalar = |name: &String| known.iter().find(|(known, _)| known == name).expect("a scalar").1;
    let scalars: Vec<u32> = instance.decl.scalars.iter().map(scalar).collect();
    let groups = instance.decl.grid.each_ref().map(|side| side.eval(&known).expect("a grid"));
    let ran = sim.dispatch(&instance.name, &bindings, &scalars, groups);
    assert!(ran && sim.faults().is_empty(), "{}: {:?}", step.name, sim.faults());
    sim.traffic()
}

/// Routes of rows that select experts as differently as possible, besides the shared experts.
fn routes(rows: usize, experts: usize, chosen: usize, shared: usize) -> Vec<u32> {
    let (others, own) = (experts - shared, chosen - shared);
    let row = |row: usize| {
        let own = (0..own).map(move |place| (row * own + place) % others);
        own.chain(others..experts).map(|expert| expert as u32).chain(vec![0; chosen])
    };
    (0..rows).flat_map(row).collect()
}

/// Router logits with which rows select these experts.
fn logits(rows: usize, route: &Route) -> Vec<u32> {
    let own = routes(rows, route.experts, route.chosen, 0);
    let mut logits = vec![0.0_f32; rows * route.logits()];
    for (row, own) in own.chunks(2 * route.chosen).enumerate() {
        for expert in &own[..route.chosen] {
            logits[row * route.logits() + *expert as usize] = 1.0;
        }
    }
    logits.into_iter().map(f32::to_bits).collect()
}

fn read_words(read_words: Vec<u32>) -> Vec<u8> {
    read_words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Pairs and tiles of those routes.
fn grouped(spec: &ExpertsTiles, rows: usize) -> [Vec<u8>; 2] {
    let ExpertsTiles { experts, chosen, shared, tile_rows, .. } = *spec;
    let routes = routes(rows, experts, chosen, shared);
    let has =
        |pair: &usize, expert: usize| routes[pair / chosen * 2 * chosen + pair % chosen] as usize == expert;
    let (mut pairs, mut tiles) = (Vec::new(), Vec::new());
    for expert in 0..experts {
        let own = (0..rows * chosen).filter(|pair| has(pair, expert));
        let own: Vec<u32> = own.map(|pair| pair as u32).collect();
        for some in own.chunks(tile_rows) {
            tiles.extend([expert as u32, pairs.len() as u32, some.len() as u32]);
            pairs.extend(some);
        }
    }
    tiles.resize(3 * ExpertsGroup { experts, chosen, tile_rows }.tiles(rows), 0);
    [pairs, tiles].map(read_words)
}

/// Bytes from one expert's matrix to the next one's.
fn record(section: &Section) -> usize {
    let matrix = |field: &Field| match field.kind {
        FieldKind::Experts { format, rows, columns, .. } => Some((format, [rows, columns])),
        FieldKind::Matrix { .. } | FieldKind::Vector { .. } => None,
    };
    Record::of(&section.fields.iter().filter_map(matrix).collect::<Vec<_>>()).bytes
}

/// The contents of a step's buffer: zeros, except for the batch columns that the host writes.
fn content(
    plan: &Plan,
    section: &Section,
    step: &Step,
    buffer: &Buffer,
    load: Workload,
    rows: usize,
) -> Vec<u8> {
    let whole = step.arguments.iter().find(|argument| argument.parameter == buffer.name);
    let plane = buffer.name.rsplit_once('_');
    let part =
        || step.arguments.iter().find(|argument| plane.is_some_and(|(name, _)| argument.parameter == name));
    let operand = whole.or_else(part).unwrap_or_else(|| panic!("{}: {}", step.name, buffer.name)).operand;
    let plane_of = |format: Format, rows: usize, columns: usize| {
        let plane = format.planes().iter().position(|plane| buffer.name.ends_with(plane.name));
        rows * format.plane_bytes(columns)[plane.expect("a kernel has its format's planes")]
    };
    let sequences = load.sequences as usize;
    match operand {
        Operand::Field(field) => match section.fields[field].kind {
            FieldKind::Vector { width } => vec![0; width * 4],
            FieldKind::Matrix { format, rows, columns } => vec![0; plane_of(format, rows, columns)],
            FieldKind::Experts { experts, format, rows, columns } => {
                vec![0; (experts - 1) * record(section) + plane_of(format, rows, columns)]
            }
        },
        Operand::Scratch(scratch) => {
            let scratch = &plan.scratch[scratch];
            vec![0; scratch.width * rows_of(scratch, load) * 4]
        }
        Operand::Keys | Operand::Values | Operand::Latents => {
            let state = section.state.expect("it has a cache");
            vec![0; sequences * state.heads * state.capacity(plan.context) * plan.head_bytes(state.width)]
        }
        Operand::RecurrentState(recurrent_state) => {
            vec![0; sequences * section.recurrent_states[recurrent_state].elements() * 4]
        }
        Operand::ExpertSlots => read_words((0..MOST_EXPERTS as u32).collect()),
        Operand::Batch(column) => {
            let last = load.length as u32 - 1;
            let (slots, positions) = match load.sequences {
                1 => (vec![0; rows], (last + 1 - load.rows as u32..=last).collect()),
                _ => ((0..rows as u32).collect(), vec![last; rows]),
            };
            read_words(match column {
                BatchColumn::Ids => (0..rows as u32).collect(),
                BatchColumn::Slots => slots,
                BatchColumn::Positions => positions,
                BatchColumn::Wanted => (0..rows as u32).collect(),
                BatchColumn::Draws => [1.0_f32.to_bits(), 3, 1 << 31, 0, 7, 0, 0, 0].repeat(rows),
                BatchColumn::Next => vec![0; rows],
            })
        }
    }
}

/// Every step of a pass accesses the planned number of bytes.
fn check(plan: &Plan, program: &Program, load: Workload, differing: &mut Vec<String>) -> usize {
    let mut checked = 0;
    let mut seen: Vec<*const Step> = Vec::new();
    for (section, step) in plan.steps_of(load) {
        // Layers of one section have the same steps.
        if seen.contains(&std::ptr::from_ref(step)) {
            continue;
        }
        seen.push(step);
        let instance = plan.instance(section, step, load).expect("it runs");
        let cost = step_cost(plan, section, step, load);
        let traffic = run(program, plan, section, step, instance, load);
        checked += 1;
        if (cost.read(), cost.written()) != (traffic.loaded, traffic.stored) {
            differing.push(format!(
                "{} {}.{} ({}) {load:?}: plan {} and {}, touched {} and {}",
                plan.model.name,
                section.name,
                step.name,
                instance.name,
                cost.read(),
                cost.written(),
                traffic.loaded,
                traffic.stored
            ));
        }
    }
    checked
}

fn check_all(disabled: &[Fusion]) {
    let mut differing = Vec::new();
    let mut checked = 0;
    for name in [
        "llama_bias",
        "qwen3",
        "gemma2",
        "gemma4_text",
        "qwen2_moe",
        "glm4_moe",
        "deepseek_v2",
        "deepseek_v3",
        "gpt_oss",
    ] {
        let graph = graph(name);
        // The last one also has a q8_0 KV cache, if head sizes are multiples of 32.
        let coded = ["qwen3", "gemma2"].contains(&name).then_some((Format::F32, Some(Format::Q8_0)));
        let formats = [Format::F32, Format::Bf16, Format::Q8_0, Format::Q4_0].map(|format| (format, None));
        let floats = (name == "gpt_oss").then_some((Format::Mxfp4, None));
        for (format, cache) in formats.into_iter().chain(coded).chain(floats) {
            let plan = planned(&graph, format, cache, disabled);
            let has_windows = name.starts_with("gemma") || name == "gpt_oss";
            assert_eq!(plan.rings().is_empty(), !has_windows);
            let text = forge_kernels::assemble(&plan.kernels, "");
            let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
            let loads = [
                Workload::decode(1),
                Workload::decode(70),
                Workload { splits: 2, drawn: true, ..Workload::decode(70) },
                Workload::decode_batch(3, 70),
                Workload { splits: 2, ..Workload::decode_batch(8, 70) },
                Workload { rows: 5, sequences: 1, wanted: 3, length: 9, splits: 1, drawn: true },
                Workload { rows: 3, sequences: 1, wanted: 1, length: 70, splits: 2, drawn: false },
                Workload {
                    rows: plan.chunk as u64,
                    sequences: 1,
                    wanted: 1,
                    length: 64,
                    splits: 1,
                    drawn: false,
                },
            ];
            for load in loads {
                checked += check(&plan, &program, load, &mut differing);
            }
        }
    }
    assert!(checked > 500, "{checked} steps were checked");
    assert!(differing.is_empty(), "{} of {checked} differ:\n{}", differing.len(), differing.join("\n"));
}

#[test]
fn steps_access_the_planned_bytes() {
    check_all(&[]);
}

#[test]
fn steps_without_fusions_access_the_planned_bytes() {
    check_all(&Fusion::ALL);
}
