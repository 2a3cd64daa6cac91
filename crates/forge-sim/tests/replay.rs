//! Replay of recordings: values that the host reads, required barriers, and invalid launches.

use forge_sim::recording::{
    Binding, BufferSize, Command, Dispatch, Pass, Read, ReadKind, TokenPosition, Write,
};
use forge_sim::{FaultKind, Program, Recording, Replay, Report, Traffic, Weights};
use std::collections::BTreeMap;

const TEXT: &str = "#include <metal_stdlib>
using namespace metal;
struct Count { uint n; };
// y = 2 x
[[max_total_threads_per_threadgroup(32)]]
kernel void twice(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant Count& args [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    if (i < args.n) y[i] = 2.0f * x[i];
}
// y = w + x
[[max_total_threads_per_threadgroup(32)]]
kernel void add(device const float* w [[buffer(0)]], device const float* x [[buffer(1)]], device float* y [[buffer(2)]],
                constant Count& args [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    if (i < args.n) y[i] = w[i] + x[i];
}
[[max_total_threads_per_threadgroup(32)]]
kernel void large(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float a[8192];
    threadgroup float b[1];
    a[i] = 1.0f;
    if (i == 0u) b[0] = 1.0f;
    y[i] = a[i];
}
";

fn program() -> Program {
    Program::compile(TEXT).unwrap_or_else(|error| panic!("{error}"))
}

/// A binding of 40 floats at element `at` of scratch.
fn numbers(at: usize, written: bool) -> Binding {
    Binding { buffer: "scratch".to_owned(), offset: at * 4, bytes: 160, written }
}

fn dispatch(kernel: &str, bindings: &[Binding]) -> Command {
    Command::Dispatch(Dispatch {
        kernel: kernel.to_owned(),
        bindings: bindings.to_vec(),
        scalars: vec![40],
        groups: [2, 1, 1],
        threads: 32,
    })
}

fn barrier() -> Command {
    Command::Barrier(Default::default())
}

fn recording(commands: Vec<Command>) -> Recording {
    let buffers = BTreeMap::from([
        ("weights".to_owned(), BufferSize { file: Some("weights.safetensors".to_owned()), bytes: 160 }),
        ("scratch".to_owned(), BufferSize { file: None, bytes: 1000 * 4 }),
        ("rows".to_owned(), BufferSize { file: None, bytes: 160 }),
    ]);
    let words = (0..40).map(|i| (i as f32).to_bits()).collect();
    let write = Write { buffer: "rows".to_owned(), offset: 0, words };
    let what = ReadKind::Logits(TokenPosition { sequence: 0, position: 39 });
    let read = Read { buffer: "scratch".to_owned(), offset: 0, bytes: 160, what: Some(what) };
    let pass = Pass { label: "first".to_owned(), writes: vec![write], commands, reads: vec![read] };
    Recording { buffers, passes: vec![pass] }
}

fn run(program: &Program, recording: &Recording) -> Report {
    let weights: Vec<u8> = (0..40).flat_map(|_| 1.0f32.to_le_bytes()).collect();
    let mut replay =
        Replay::new(program, recording, Weights::Bytes(&weights)).unwrap_or_else(|error| panic!("{error}"));
    replay.run(&mut |_, _| ())
}

/// The dependencies: rows -> 0 -> 100 -> 0, and rows -> 200.
fn chain() -> Vec<Command> {
    let rows = Binding { buffer: "rows".to_owned(), ..numbers(0, false) };
    let weights = Binding { buffer: "weights".to_owned(), ..numbers(0, false) };
    vec![
        dispatch("twice", &[rows.clone(), numbers(0, true)]),
        dispatch("twice", &[rows, numbers(200, true)]),
        barrier(),
        dispatch("add", &[weights, numbers(0, false), numbers(100, true)]),
        barrier(),
        barrier(),
        dispatch("twice", &[numbers(200, false), numbers(300, true)]),
        barrier(),
        dispatch("twice", &[numbers(100, false), numbers(0, true)]),
    ]
}

#[test]
fn replays_values_and_barriers() {
    let program = program();
    let recording = recording(chain());
    let report = run(&program, &recording);
    assert_eq!(report.faults, vec![]);
    assert_eq!(report.steps, 5);
    let expected: Vec<f32> = (0..40).map(|i| 2.0 * (2.0 * i as f32 + 1.0)).collect();
    assert_eq!(report.reads[0].values, expected);
    assert_eq!(report.reads[0].what, Some(ReadKind::Logits(TokenPosition { sequence: 0, position: 39 })));
    assert_eq!(report.counters["twice"].dispatches, 4);
    assert_eq!(report.counters["add"].loaded, 40 * 8);
    assert_eq!(report.counters["add"].stored, 40 * 4);
    let again = Recording::parse(&serde_json::to_string(&recording).unwrap_or_default());
    assert_eq!(again.ok(), Some(recording));
}

#[test]
fn traffic_of_equal_dispatches_is_counted_once() {
    let program = program();
    let recording = recording(chain());
    let mut replay =
        Replay::new(&program, &recording, Weights::Bytes(&[0; 160])).expect("it can be replayed");
    replay.counting_traffic();
    let report = replay.run(&mut |_, _| ());
    let (twice, add) = (report.counters["twice"], report.counters["add"]);
    // Two simdgroups load and store 40 floats: one 32 of them, the other 8.
    assert_eq!((twice.traffic.loaded, twice.traffic.stored), (4 * 160, 4 * 160));
    assert_eq!((twice.loaded, twice.stored), (4 * 160, 4 * 160));
    assert_eq!((add.traffic.loaded, add.traffic.stored), (320, 160));
    assert_eq!((twice.traffic.instructions, add.traffic.instructions), (4 * 4, 6));
    assert_eq!((twice.traffic.least_lines, add.traffic.least_lines), (4 * 4, 6));
    let uncounted = run(&program, &recording);
    assert_eq!(uncounted.counters["twice"].traffic, Traffic::default());
    assert_eq!(uncounted.counters["twice"].loaded, twice.loaded);
}

/// The replay's report of required barriers equals the effect of removing each.
#[test]
fn required_barriers_equal_those_whose_removal_is_a_hazard() {
    let program = program();
    let whole = run(&program, &recording(chain()));
    let mut reported = Vec::new();
    let mut shown = Vec::new();
    for wait in &whole.waits {
        let mut commands = chain();
        commands.remove(wait.command);
        let report = run(&program, &recording(commands));
        reported.push(wait.required);
        shown.push(report.faults.iter().any(|fault| fault.kind == FaultKind::Hazard));
    }
    // The first barrier orders a write and a read. Either of two consecutive barriers is enough. After 200 ->
    // 300 none is required.
    assert_eq!(reported, vec![true, false, false, false]);
    assert_eq!(shown, reported);
}

#[test]
fn detects_every_hazard() {
    let program = program();
    let cases = [
        ("read after write", [0, 100], [100, 200], true),
        ("write after read", [0, 100], [300, 0], true),
        ("write after write", [0, 100], [300, 100], true),
        ("one number shared", [0, 100], [139, 200], true),
        ("none", [0, 100], [140, 200], false),
        ("both read", [0, 100], [0, 200], false),
    ];
    let ready = |at| {
        let rows = Binding { buffer: "rows".to_owned(), ..numbers(0, false) };
        dispatch("twice", &[rows, numbers(at, true)])
    };
    for (name, first, second, wrong) in cases {
        let mut commands: Vec<Command> = [0, 300, 140].into_iter().map(ready).collect();
        commands.push(barrier());
        commands.push(ready(179));
        commands.push(barrier());
        for [from, to] in [first, second] {
            commands.push(dispatch("twice", &[numbers(from, false), numbers(to, true)]));
        }
        let report = run(&program, &recording(commands));
        let hazards: Vec<_> = report.faults.iter().filter(|fault| fault.kind == FaultKind::Hazard).collect();
        assert_eq!(hazards.len() == 1, wrong, "{name}: {:?}", report.faults);
        assert!(
            hazards.iter().all(|fault| fault.line == 8 && fault.message.contains("a dispatch of `twice`"))
        );
    }
}

#[test]
fn rejects_invalid_launches() {
    let program = program();
    let rows = Binding { buffer: "rows".to_owned(), ..numbers(0, false) };
    let right = Dispatch {
        kernel: "twice".to_owned(),
        bindings: vec![rows, numbers(0, true)],
        scalars: vec![40],
        groups: [2, 1, 1],
        threads: 32,
    };
    let wrong = |change: &dyn Fn(&mut Dispatch)| {
        let mut dispatch = right.clone();
        change(&mut dispatch);
        dispatch
    };
    let cases = [
        ("declares 32", wrong(&|it| it.threads = 64)),
        ("empty launch", wrong(&|it| it.groups[1] = 0)),
        ("2 buffers and is given 1", wrong(&|it| it.bindings.truncate(1))),
        ("its scalars are 4 bytes", wrong(&|it| it.scalars.push(1))),
        ("exceed its buffer of 4000", wrong(&|it| it.bindings[1].offset = 3900)),
        ("there is no kernel `thrice`", wrong(&|it| it.kernel = "thrice".to_owned())),
        ("there is no buffer `attic`", wrong(&|it| it.bindings[0].buffer = "attic".to_owned())),
    ];
    for (message, dispatch) in cases {
        let report = run(&program, &recording(vec![Command::Dispatch(dispatch)]));
        let found = report
            .faults
            .iter()
            .any(|fault| fault.kind == FaultKind::Launch && fault.message.contains(message));
        assert!(found, "{message}: {:?}", report.faults);
    }
    let mut read_only = wrong(&|_| ());
    read_only.bindings[1].written = false;
    let report = run(&program, &recording(vec![Command::Dispatch(read_only)]));
    assert_eq!(report.faults[0].kind, FaultKind::ReadOnly);
    // The host reads uninitialized memory.
    let report = run(&program, &recording(Vec::new()));
    assert_eq!((report.faults[0].kind, report.faults[0].kernel.as_str()), (FaultKind::NeverWritten, "host"));
    let mut large = wrong(&|it| it.kernel = "large".to_owned());
    large.bindings.remove(0);
    large.scalars.clear();
    large.groups = [1, 1, 1];
    let report = run(&program, &recording(vec![Command::Dispatch(large)]));
    let kinds: Vec<_> = report.faults.iter().map(|fault| (fault.kind, fault.line)).collect();
    assert!(kinds.contains(&(FaultKind::ThreadgroupMemory, 17)), "{:?}", report.faults);
}
