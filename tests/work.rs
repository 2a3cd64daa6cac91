//! The kernel costs that programs know equal those of the plan: bytes and operations of passes of every
//! model.

use forge_planner::{Options, Workload, plan, step_cost};
use forge_runtime::device::kernel_cost::{DispatchCost, KernelCost};
use tests::{graph, models};

#[test]
fn kernel_cost_tables_match_the_planned_costs() {
    let mut errors = Vec::new();
    let mut steps = 0;
    for name in models() {
        let graph = graph(&name);
        // Enough rows that latents are expanded (MLA).
        let chunk = if name.starts_with("deepseek") { 64 } else { 40 };
        let options = Options { chunk, ..Options::default() };
        let plan = plan(&graph, &options).unwrap_or_else(|faults| panic!("{name}: {faults:?}"));
        let works: Vec<KernelCost> = (0..plan.kernels.len())
            .map(|kernel| {
                let forge_planner::KernelCost { read, written, operations, window, experts } =
                    plan.work(kernel);
                let (window, experts) =
                    (window.map(|window| window as u32), experts.map(|count| count as u32));
                KernelCost { read, written, operations, window, experts }
            })
            .collect();
        // A convolution with fewer rows than taps stores fewer rows.
        let loads = [(1, 20), (1, 70), (4, 30), (16, 90), (17, 40), (chunk as u64, 100)];
        for (rows, length) in loads {
            let load = Workload { rows, sequences: 1, wanted: 1, length, splits: 1, drawn: false };
            for (section, step) in plan.steps_of(load) {
                let instance = plan.instance(section, step, load).expect("it runs");
                let kernel = plan.kernels.iter().position(|kernel| kernel.name == instance.name);
                let head = plan.sections.last().is_some_and(|last| last.name == section.name);
                let rows = match (head, step.of_tile) {
                    (true, _) => 1,
                    (false, true) => length,
                    (false, false) => rows,
                };
                let known = works[kernel.expect("it is the plan's")].of(rows as u32, 1, length as u32);
                let cost = step_cost(&plan, section, step, load);
                let planned =
                    DispatchCost { read: cost.read(), written: cost.written(), operations: cost.operations };
                // The length of the tile list grows in steps.
                let near =
                    |a: u64, b: u64| a == b || instance.name.contains("experts") && a.abs_diff(b) <= 64;
                let equal = near(known.read, planned.read) && near(known.written, planned.written);
                if !equal || known.operations != planned.operations {
                    let what = format!("{name}, {rows} rows to {length}: {}.{}", section.name, instance.name);
                    errors.push(format!("{what}: {known:?} is not {planned:?}"));
                }
                steps += 1;
            }
        }
    }
    assert!(steps > 1000, "{steps}");
    assert!(errors.is_empty(), "{}\n{}", errors.len(), errors[..errors.len().min(20)].join("\n"));
}
