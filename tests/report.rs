//! report.html of small and large models: complete, readable and self-contained.

use forge_frontend::{Checkpoint, DummyWeights, MemoryCheckpoint, Options as Reading, read_model};
use forge_ir::Graph;
use forge_ops::Format;
use forge_planner::{Chip, Fusion, Options, Plan, Quant, Workload, plan, predict};
use forge_report::{Measurement, ReportFacts, Verdict, report, with_measurements};
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::BTreeMap;
use tests::{model, models, root};

fn read(checkpoint: &dyn Checkpoint, name: &str) -> Graph {
    let reading = Reading { name: name.to_owned(), ..Reading::default() };
    read_model(checkpoint, &reading).unwrap_or_else(|faults| panic!("{name}: {faults:?}")).graph
}

/// Every model of the tests, of two layers or so.
fn small() -> Vec<(String, Graph)> {
    let graph = |name: String| {
        let file = |file: &str| {
            let bytes = std::fs::read(model(&name).join(file)).expect("models have this file");
            (file.to_owned(), bytes)
        };
        let checkpoint = MemoryCheckpoint(BTreeMap::from(["config.json", "model.safetensors"].map(file)));
        let graph = read(&checkpoint, &name);
        (name, graph)
    };
    models().into_iter().map(graph).collect()
}

/// Models of real shapes, without their weights.
fn large() -> Vec<(String, Graph)> {
    let entries = std::fs::read_dir(root().join("tests/shapes")).expect("there are shapes").flatten();
    let graph = |path: std::path::PathBuf| {
        let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        let config = std::fs::read_to_string(&path).expect("it is a file");
        let shapes =
            DummyWeights::new(&config, &Reading::default()).unwrap_or_else(|faults| panic!("{faults:?}"));
        let graph = read(&shapes, &name);
        (name, graph)
    };
    entries.map(|entry| graph(entry.path())).collect()
}

fn planned(graph: &Graph, disabled: &[Fusion]) -> Plan {
    let disabled = disabled.iter().copied().collect();
    let options = Options { quant: Quant::To(Format::Q4_0), disabled, ..Options::default() };
    plan(graph, &options).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn page(name: &str, graph: &Graph, plan: &Plan) -> String {
    let errors = plan.weights.iter().map(|weight| (weight.name.clone(), 0.0123)).collect();
    let layers = vec![("embed".to_owned(), 0.01), ("layer 1".to_owned(), 0.02), ("layer 0".to_owned(), 0.0)];
    let facts = ReportFacts {
        parameters: 1234,
        command: format!("forge compile {name} --quant q4_0 && echo \"<done>\""),
        version: "0",
        errors,
        layers,
        golden: Some((4, 99)),
    };
    report(graph, plan, Chip::common(), &facts).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"))
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    let text = node.attribute(name).unwrap_or_else(|| panic!("{node:?} has a {name}"));
    let value: f64 = text.parse().unwrap_or_else(|_| panic!("{name} of {node:?} is {text}"));
    assert!(value.is_finite(), "{name} of {node:?}");
    value
}

/// The bounding box of a text: left, top, right, bottom. Letters are 0.602 of the 12-pixel font size wide, as
/// in the requested fonts.
fn bounding_box(text: Node<'_, '_>) -> [f64; 4] {
    let (x, y) = (number(text, "x"), number(text, "y"));
    let length = text.text().unwrap_or_default().chars().count() as f64 * 12.0 * 0.602;
    if text.attribute("transform").is_some() {
        // The text is vertical, and ends at its position.
        return [x - 9.0, y, x + 2.0, y + length];
    }
    // Attributes may be inherited from the group.
    let left = match text.ancestors().find_map(|node| node.attribute("text-anchor")) {
        None => x,
        Some("middle") => x - length / 2.0,
        Some("end") => x - length,
        Some(other) => panic!("anchor {other}"),
    };
    [left, y - 9.0, left + length, y + 2.0]
}

/// No label leaves its picture or overlaps another.
fn check_picture(name: &str, svg: Node<'_, '_>) {
    let label = svg.attribute("aria-label").unwrap_or_default();
    assert!(!label.is_empty(), "{name}: a picture says what it shows");
    let size: Vec<f64> = svg
        .attribute("viewBox")
        .unwrap_or_default()
        .split(' ')
        .map(|number| number.parse().unwrap_or(f64::NAN))
        .collect();
    let inside = |[left, top, right, bottom]: [f64; 4]| {
        left >= -0.5 && top >= -0.5 && right <= size[2] + 0.5 && bottom <= size[3] + 0.5
    };
    let texts: Vec<(&str, [f64; 4])> = svg
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .map(|text| (text.text().unwrap_or_default(), bounding_box(text)))
        .collect();
    for (index, (text, own)) in texts.iter().enumerate() {
        assert!(inside(*own), "{name}, {label}: `{text}` at {own:?} leaves {size:?}");
        for (other, taken) in &texts[..index] {
            let apart = own[0] >= taken[2] || taken[0] >= own[2] || own[1] >= taken[3] || taken[1] >= own[3];
            assert!(apart, "{name}, {label}: `{text}` at {own:?} lies on `{other}` at {taken:?}");
        }
    }
    for rect in svg.descendants().filter(|node| node.has_tag_name("rect")) {
        let (x, y) = (number(rect, "x"), number(rect, "y"));
        let (width, height) = (number(rect, "width"), number(rect, "height"));
        assert!(width > 0.0 && height > 0.0, "{name}, {label}: {rect:?}");
        assert!(inside([x, y, x + width, y + height]), "{name}, {label}: {:?}", rect.attributes());
    }
}

fn check(name: &str, plan: &Plan, page: &str, document: &Document<'_>) {
    // The size of a page depends on the number of distinct steps and chips, not on how often a step runs.
    let steps: usize = plan.sections.iter().map(|section| section.decode.len()).sum();
    let (bytes, most) = (page.len(), 100_000 + 6_000 * steps);
    assert!(bytes < most, "{name}: {bytes} bytes for {steps} steps, of {most}");
    for word in ["NaN", "inf", "<script", "http", "src=", "url(", "@import", "{{", "{%"] {
        let strange = page.match_indices(word).next();
        let near = strange.map(|(at, _)| &page[at.saturating_sub(40)..(at + 40).min(page.len())]);
        assert!(strange.is_none(), "{name} has `{word}`: {near:?}");
    }
    let pictures: Vec<Node<'_, '_>> =
        document.descendants().filter(|node| node.has_tag_name("svg")).collect();
    assert!(pictures.len() >= 3 + 2 * 6 + 4, "{name}: {} pictures", pictures.len());
    pictures.into_iter().for_each(|svg| check_picture(name, svg));
    let says =
        |text: &str| document.descendants().any(|node| node.text().is_some_and(|it| it.contains(text)));
    assert!(says("Largest errors by layer: layer 1 2.00%, embed 1.00%; by weight:"), "{name}");
    assert!(says("predicted") && says("None was measured") && says("No measurements yet"), "{name}");
    // If the timeline has more dispatches than the heading of the page, the heading has both numbers and the
    // reason.
    let shown = predict(plan, Chip::common(), Workload::decode(plan.context.min(1024) as u64)).dispatches;
    let counted = plan.counts(Workload::decode(1)).dispatches as u64;
    assert!(
        says(&format!(": {shown} dispatches")) || says(&format!(", {shown} dispatches")),
        "{name}: the timeline"
    );
    assert_eq!(says(&format!("; {shown} at position ")), shown > counted, "{name}: the reason");
    assert!(says("not in every pass") && says("Colors only distinguish buffers"), "{name}: legends");
    let chosen: Vec<Node<'_, '_>> =
        document.descendants().filter(|node| node.attribute("checked").is_some()).collect();
    assert!(chosen.len() == 1 && chosen[0].attribute("id") == Some("chip-m4-max"), "{name}");
}

/// Every node of the graph is computed by a dispatch of each side, and nearly every dispatch computes one.
fn check_links(name: &str, graph: &Graph, plan: &Plan, document: &Document<'_>) {
    let pictures = document.descendants().filter(|node| node.has_tag_name("svg"));
    for (svg, section) in pictures.zip(&plan.sections) {
        let first = plan.applications.iter().position(|it| plan.sections[it.section].name == section.name);
        let apply = graph.applications().nth(first.expect("it is applied")).expect("as often as planned");
        let nodes = graph.body(apply).nodes.len();
        let of = |class: &str| {
            let has = |node: &Node<'_, '_>| {
                node.attribute("class").is_some_and(|classes| classes.split(' ').any(|it| it == class))
            };
            svg.descendants().filter(has).count()
        };
        assert_eq!(of("node"), nodes, "{name} {}", section.name);
        assert_eq!(of("box"), nodes + section.decode.len() + section.batch.len(), "{name} {}", section.name);
        // Each node has a line to the left and one to the right, and more if several dispatches share it.
        let ends = |left: bool| {
            let mut ends: Vec<&str> = svg
                .descendants()
                .filter(|node| node.attribute("class") == Some("link"))
                .filter_map(|link| link.attribute("d")?.rsplit_once(' '))
                .filter(|(rest, _)| rest.ends_with(" 350") == left)
                .map(|(_, y)| y)
                .collect();
            ends.sort_unstable();
            ends.dedup();
            ends.len()
        };
        assert_eq!((ends(true), ends(false)), (nodes, nodes), "{name} {}: nodes with lines", section.name);
    }
}

#[test]
fn reports_of_small_models_are_complete() {
    for (name, graph) in small() {
        for disabled in [&[][..], &Fusion::ALL] {
            let plan = planned(&graph, disabled);
            let page = page(&name, &graph, &plan);
            let document = parsed(&page);
            check(&name, &plan, &page, &document);
            check_links(&name, &graph, &plan, &document);
        }
    }
}

#[test]
fn reports_of_large_models_are_complete() {
    let large = large();
    assert!(large.iter().any(|(_, graph)| graph.layers.len() >= 32), "one has 32 layers");
    for (name, graph) in large {
        let plan = planned(&graph, &[]);
        let page = page(&name, &graph, &plan);
        let document = parsed(&page);
        check(&name, &plan, &page, &document);
        check_links(&name, &graph, &plan, &document);
    }
}

#[test]
fn performance_page_contains_the_measurements() {
    let (name, graph) = small().remove(0);
    let page = page(&name, &graph, &planned(&graph, &[]));
    let row = Measurement { kernel: "qkv_one".to_owned(), loaded: (30, 10), ..Measurement::default() };
    let verdict = Verdict { dispatches: 77, distance: (1e-3, 1e-2), ..Verdict::default() };
    let measured = with_measurements(&page, &verdict, &[row]).expect("the page has a place for them");
    let document = parsed(&measured);
    let cells: Vec<&str> = document
        .descendants()
        .filter(|node| node.has_tag_name("td"))
        .filter_map(|cell| cell.text())
        .collect();
    assert!(
        cells.contains(&"3.00")
            && measured.contains("77 dispatches")
            && !measured.contains("No measurements yet")
    );
}
