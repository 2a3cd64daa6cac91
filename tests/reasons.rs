//! Every decode dispatch extra the five of a minimal layer has a reason.

use forge_ir::Graph;
use forge_planner::{Condition, Fusion, Options, Plan, Section, Step, plan};
use tests::{graph, models};

fn planned(graph: &Graph, disabled: &[Fusion]) -> Plan {
    let options = Options { disabled: disabled.iter().copied().collect(), ..Options::default() };
    plan(graph, &options).expect("models can be planned")
}

/// Steps of each section that need no reason. Sampling replaces the argmax.
fn least(plan: &Plan) -> Vec<(&str, usize)> {
    let is_plain = |step: &&Step| step.reason.is_none() && step.condition != Condition::Drawn;
    let count = |section: &Section| section.decode.iter().filter(is_plain).count();
    plan.sections.iter().map(|section| (section.name.as_str(), count(section))).collect()
}

#[test]
fn steps_beyond_the_minimum_have_a_reason() {
    let mut errors = Vec::new();
    for name in models() {
        let graph = graph(&name);
        // For each disabled fusion, only the plan with the most kinds of steps.
        let varied =
            ["llama", "gemma4_text", "gemma4_moe", "qwen3_next", "deepseek_v3"].contains(&name.as_str());
        let each = Fusion::ALL.iter().map(std::slice::from_ref).filter(|_| varied);
        for disabled in [&[][..], &Fusion::ALL].into_iter().chain(each) {
            let plan = planned(&graph, disabled);
            let expected = |section: &str| match section {
                "embed" => 1,
                // The argmax is one.
                "head" => 2,
                _ => 5,
            };
            let odd = least(&plan).into_iter().filter(|(section, count)| *count != expected(section));
            errors.extend(
                odd.map(|(section, count)| format!("{name} {section} without {disabled:?}: {count}")),
            );
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn reasons_of_every_model() {
    let mut text = String::new();
    for name in models() {
        text += &format!("{name}\n");
        for (step, reason) in planned(&graph(&name), &[]).extra_dispatches() {
            text += &format!("  {step:<14} {reason}\n");
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn disabled_fusions_are_given_as_reasons() {
    let graph = graph("llama");
    for (fusion, step) in [
        (Fusion::FuseGateUp, "up"),
        (Fusion::FuseQkv, "key"),
        (Fusion::FuseRopeKvAppend, "rotated_key"),
        (Fusion::Residual, "stream"),
        (Fusion::AttentionPrologue, "rope_append"),
        (Fusion::DeferredNorm, "attention_norm"),
    ] {
        let plan = planned(&graph, &[fusion]);
        let expected = format!("fusion `{}` is disabled", fusion.name());
        let extra = plan.extra_dispatches();
        assert!(extra.contains(&(step.to_owned(), expected)), "{}: {extra:?}", fusion.name());
    }
}
