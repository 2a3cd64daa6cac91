//! Tables of layouts that were measured: what they change of a plan, and what is refused.

mod support;

use forge_ir::Format;
use forge_kernels::Spec;
use forge_kernels::spec::{Knobs, Project, Rows};
use forge_planner::{Options, Plan, Product, Quant, Tuned, plan};
use serde_json::{Value, json};
use support::{EIGHT, ONE, graph, planned};

/// A plan of layouts that were measured.
fn laid_out(tuned: Tuned) -> Plan {
    let options = Options { quant: Quant::To(Format::Q8_0), tuned: Some(tuned), ..Options::default() };
    plan(&graph(&ONE), &options).expect("it can be planned")
}

/// A plan of layouts by rule.
fn by_rule() -> Plan {
    planned(&ONE, Format::Q8_0)
}

fn projects(plan: &Plan) -> impl Iterator<Item = &Project> {
    plan.kernels.iter().filter_map(|kernel| match &kernel.spec {
        Spec::Project(project) => Some(project),
        _ => None,
    })
}

/// A table that has these knobs for a product.
fn table(product: Product, knobs: Knobs) -> Value {
    let mut layout = json!(product);
    layout["knobs"] = json!(knobs);
    layout["seconds"] = json!(1e-5);
    json!({ "model": "one", "device": "a GPU", "layouts": [layout] })
}

#[test]
fn a_plan_has_every_layout_that_it_could_choose() {
    let rules = by_rule();
    let choices = rules.choices();
    // Queries, keys and values, output, gate and up, down, and the head: of one row, few and, the head but for, many.
    assert_eq!(choices.len(), 14);
    for choice in &choices {
        for other in &choice.others {
            let text = table(choice.product, other.knobs).to_string();
            let tuned = Tuned::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(tuned.knobs(&choice.product), Some(other.knobs));
        }
    }
    let last: Vec<_> =
        choices.iter().map(|choice| (choice.product, choice.others[choice.others.len() - 1].knobs)).collect();
    let layouts: Vec<Value> =
        last.iter().map(|(product, knobs)| table(*product, *knobs)["layouts"][0].clone()).collect();
    let text = json!({ "device": "a GPU", "layouts": layouts }).to_string();
    let tuned = Tuned::parse(&text).expect("it is a table");
    let laid_out = laid_out(tuned.clone());
    assert_eq!(tuned.used(&laid_out), (14, 14));
    for project in projects(&laid_out) {
        let (_, knobs) =
            last.iter().find(|(product, _)| *product == Product::of(project)).expect("it has all");
        assert_eq!(project.knobs, *knobs);
    }
    // Nothing else is otherwise.
    let shapes = |plan: &Plan| projects(plan).map(Product::of).collect::<Vec<_>>();
    assert_eq!(shapes(&laid_out), shapes(&rules));
    assert_eq!(laid_out.sections.len(), rules.sections.len());
}

#[test]
fn stand_ins_leave_no_more_than_there_is_room_for() {
    let plan = by_rule();
    for choice in plan.choices().iter().filter(|choice| choice.product.leaves) {
        let groups = |knobs: &Knobs| choice.product.outputs.div_ceil(knobs.outputs_of_group());
        let is_head = choice.product.outputs == ONE.vocabulary;
        let most = projects(&plan)
            .filter(|project| Product::of(project).leaves && project.outputs != ONE.vocabulary)
            .map(|project| project.outputs.div_ceil(project.knobs.outputs_of_group()))
            .max();
        for other in &choice.others {
            let fits = if is_head {
                groups(&other.knobs) == groups(&choice.own)
            } else {
                groups(&other.knobs) <= most.expect("there are some").next_multiple_of(4)
            };
            assert!(fits, "{:?} as {:?}", choice.product, other.knobs);
        }
    }
}

#[test]
fn products_of_other_models_are_counted_and_ignored() {
    let choice = &by_rule().choices()[0];
    let product = Product { outputs: choice.product.outputs + 32, ..choice.product };
    let tuned = Tuned::parse(&table(product, choice.own).to_string()).expect("it is a table");
    let plan = laid_out(tuned.clone());
    assert_eq!(tuned.used(&plan), (1, 0));
    assert_eq!(plan, by_rule());
    assert_eq!(tuned.used(&planned(&EIGHT, Format::Q8_0)), (1, 0));
}

#[test]
fn what_is_no_table_is_refused_with_its_line() {
    let choice = by_rule().choices().into_iter().find(|choice| choice.product.rows == Rows::One);
    let choice = choice.expect("there are products of one row");
    let whole = format!("{:#}", table(choice.product, choice.own));
    let knobs = Knobs { split: 3, ..choice.own };
    let cases = [
        (whole.clone(), ""),
        (whole.replace("\"q8_0\"", "\"q9\""), "there is no format q9"),
        (whole.replace("\"one\"", "\"three\""), "unknown variant `three`"),
        (format!("{:#}", table(choice.product, knobs)), "_s3_"),
        (whole.replace("\"split\"", "\"slit\""), "unknown field `slit`"),
        (whole[..whole.len() / 2].to_owned(), "EOF while parsing"),
        ("{}".to_owned(), "missing field `device`"),
    ];
    for (text, said) in cases {
        match Tuned::parse(&text) {
            Ok(_) => assert_eq!(said, "", "{text}"),
            Err(error) => {
                assert!(!said.is_empty() && error.contains(said), "{error}: {text}");
                assert!(error.contains("line "), "{error}");
            }
        }
    }
}
