//! Tuning tables: their effect on a plan, and rejected tables.

// Other tests use the plans for a chip.
#[allow(dead_code)]
mod support;

use forge_kernels::Spec;
use forge_kernels::spec::{AttentionKnobs, Knobs, LinearKernel, Rows};
use forge_ops::Format;
use forge_planner::{Layout, LinearKey, Options, Plan, Quant, Tuned, TuningKey, TuningProblem, plan};
use serde_json::{Value, json};
use support::{EIGHT, ONE, graph, planned};

/// A plan with the layouts of a tuning table.
fn laid_out(tuned: Tuned) -> Plan {
    let options = Options { quant: Quant::To(Format::Q8_0), tuned: Some(tuned), ..Options::default() };
    plan(&graph(&ONE), &options).expect("it can be planned")
}

/// A plan with the layouts of the rule.
fn by_rule() -> Plan {
    planned(&ONE, Format::Q8_0)
}

fn projects(plan: &Plan) -> impl Iterator<Item = &LinearKernel> {
    plan.kernels.iter().filter_map(|kernel| match &kernel.spec {
        Spec::Linear(linear) => Some(linear),
        _ => None,
    })
}

/// A tuning table with one entry: these knobs for a tuning key.
fn table(subject: TuningKey, knobs: Layout) -> Value {
    let mut layout = json!(subject);
    layout["knobs"] = json!(knobs);
    layout["seconds"] = json!(1e-5);
    json!({ "model": "one", "device": "a GPU", "layouts": [layout] })
}

/// The tuning keys of the kernels, in order, with their layouts.
fn subjects(plan: &Plan) -> Vec<(TuningKey, Layout)> {
    plan.kernels.iter().filter_map(|kernel| TuningKey::of(&kernel.spec)).collect()
}

/// A tuning table with the last layout of each problem, as data and as JSON.
fn last_of(choices: &[TuningProblem]) -> (Tuned, Vec<(TuningKey, Layout)>) {
    let last =
        |choice: &TuningProblem| (choice.subject, choice.candidates[choice.candidates.len() - 1].layout);
    let last: Vec<_> = choices.iter().map(last).collect();
    let layouts: Vec<Value> =
        last.iter().map(|(subject, layout)| table(*subject, *layout)["layouts"][0].clone()).collect();
    let text = json!({ "device": "a GPU", "layouts": layouts }).to_string();
    (Tuned::parse(&text).expect("it is a table"), last)
}

#[test]
fn plans_list_all_candidate_layouts() {
    let rules = by_rule();
    let choices = rules.choices();
    // The matmuls qkv, output, gate_up, down and head: for one row, small batches and, except the head, many
    // rows. And attention for one row, small batches and many rows.
    assert_eq!(choices.len(), 14 + 3);
    for choice in &choices {
        for other in &choice.candidates {
            let text = table(choice.subject, other.layout).to_string();
            let tuned = Tuned::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(tuned.layout(&choice.subject), Some(other.layout));
        }
    }
    let (tuned, last) = last_of(&choices);
    let laid_out = laid_out(tuned.clone());
    assert_eq!(tuned.used(&laid_out), (17, 17));
    for (subject, layout) in subjects(&laid_out) {
        let found = last.iter().find(|(other, _)| *other == subject).expect("it has all");
        assert_eq!(layout, found.1, "{subject:?}");
    }
    // Nothing else differs.
    let of = |plan: &Plan| subjects(plan).into_iter().map(|(subject, _)| subject).collect::<Vec<_>>();
    assert_eq!(of(&laid_out), of(&rules));
    assert_eq!(laid_out.sections.len(), rules.sections.len());
}

#[test]
fn candidates_write_no_more_partials_than_allocated() {
    let plan = by_rule();
    let mut met = 0;
    for choice in plan.choices() {
        let (TuningKey::Projection(product), Layout::Projection(own)) = (choice.subject, choice.default)
        else {
            continue;
        };
        if !product.writes_partials {
            continue;
        }
        met += 1;
        let groups = |knobs: &Knobs| product.outputs.div_ceil(knobs.outputs_of_group());
        let is_head = product.outputs == ONE.vocabulary;
        let most = projects(&plan)
            .filter(|linear| LinearKey::of(linear).writes_partials && linear.op.outputs != ONE.vocabulary)
            .map(|linear| linear.op.outputs.div_ceil(linear.layout.knobs.outputs_of_group()))
            .max();
        for other in &choice.candidates {
            let Layout::Projection(knobs) = &other.layout else { panic!("{other:?} is of a projection") };
            let fits = if is_head {
                groups(knobs) == groups(&own)
            } else {
                groups(knobs) <= most.expect("there are some").next_multiple_of(4)
            };
            assert!(fits, "{product:?} as {knobs:?}");
        }
    }
    assert_eq!(met, 3);
}

/// The first tuning problem of this batch-size class, of a matmul or of attention.
fn choice_of(rows: Rows, is_attention: bool) -> TuningProblem {
    let is_meant = |choice: &TuningProblem| {
        choice.subject.rows() == rows && is_attention == matches!(choice.subject, TuningKey::Attention(_))
    };
    by_rule().choices().into_iter().find(is_meant).expect("there is one")
}

#[test]
fn tuning_keys_of_other_models_are_counted_and_ignored() {
    for is_attention in [false, true] {
        let choice = choice_of(Rows::One, is_attention);
        let subject = match choice.subject {
            TuningKey::Projection(product) => {
                TuningKey::Projection(LinearKey { outputs: product.outputs + 32, ..product })
            }
            TuningKey::Attention(mut attention) => {
                attention.window = Some(64);
                TuningKey::Attention(attention)
            }
            TuningKey::Experts(_) => unreachable!("the model has none"),
        };
        let tuned = Tuned::parse(&table(subject, choice.default).to_string()).expect("it is a table");
        let plan = laid_out(tuned.clone());
        assert_eq!(tuned.used(&plan), (1, 0));
        assert_eq!(plan, by_rule());
        assert_eq!(tuned.used(&planned(&EIGHT, Format::Q8_0)), (1, 0));
    }
}

#[test]
fn entries_without_a_key_are_projections() {
    let choice = choice_of(Rows::One, false);
    let mut older = table(choice.subject, choice.candidates[0].layout);
    older["layouts"][0].as_object_mut().expect("it is an entry").remove("subject");
    let tuned = Tuned::parse(&older.to_string()).expect("it is a table");
    assert_eq!(tuned.layout(&choice.subject), Some(choice.candidates[0].layout));
}

#[test]
fn rejects_invalid_tuning_tables_with_their_line() {
    let [product, attention] = [false, true].map(|is_attention| choice_of(Rows::One, is_attention));
    let [whole, attends] =
        [&product, &attention].map(|choice| format!("{:#}", table(choice.subject, choice.default)));
    let (Layout::Projection(knobs), Layout::Attention(of_attention)) = (product.default, attention.default)
    else {
        panic!("they are of their subjects")
    };
    let other = |subject, layout| format!("{:#}", table(subject, layout));
    let three_split = other(product.subject, Layout::Projection(Knobs { split: 3, ..knobs }));
    let loads = Layout::Attention(AttentionKnobs { loads: 3, ..of_attention });
    let cases = [
        (whole.clone(), ""),
        (attends.clone(), ""),
        (whole.replace("\"q8_0\"", "\"q9\""), "unknown format q9"),
        (whole.replace("\"one\"", "\"three\""), "unknown variant `three`"),
        (whole.replace("\"projection\"", "\"injection\""), "unknown variant `injection`"),
        // The first reported field depends on whether JSON maps keep their order.
        (whole.replace("\"projection\"", "\"attention\""), "expected one of `simdgroups`, `heads_each`"),
        (three_split, "_s3_"),
        (whole.replace("\"split\"", "\"slit\""), "unknown field `slit`"),
        (whole.replace("\"knobs\"", "\"nobs\""), "missing field `knobs`"),
        (attends.replace("\"query_heads\"", "\"heads\""), "missing field `query_heads`"),
        (other(attention.subject, loads), "_l3"),
        (whole[..whole.len() / 2].to_owned(), "EOF while parsing"),
        ("{}".to_owned(), "missing field `device`"),
    ];
    for (text, expected) in cases {
        match Tuned::parse(&text) {
            Ok(_) => assert_eq!(expected, "", "{text}"),
            Err(error) => {
                assert!(!expected.is_empty() && error.contains(expected), "{error}: {text}");
                assert!(error.contains("line "), "{error}");
            }
        }
    }
}

#[test]
fn tables_with_the_former_name_of_mma_are_read() {
    let one_row = |(key, layout)| match (key, layout) {
        (TuningKey::Projection(LinearKey { rows: Rows::One, .. }), Layout::Projection(knobs)) => {
            let mma =
                Knobs { rows_per_simdgroup: 16, simdgroups: 2, split: 2, packets: 1, mma: true, ..knobs };
            Some((key, Layout::Projection(mma)))
        }
        _ => None,
    };
    let (key, layout) = subjects(&by_rule()).into_iter().find_map(one_row).expect("it has matmuls");
    let text = table(key, layout).to_string();
    assert!(text.contains(r#""mma":true"#), "{text}");
    let former = text.replace(r#""mma":"#, r#""codes":"#);
    assert_eq!(Tuned::parse(&former).unwrap(), Tuned::parse(&text).unwrap());
}
