//! Small kernels with one fault each, which the checker must report with its kind and line; and kernels
//! without faults, for which it must report none.

use forge_sim::{FaultKind, Program, Sim};

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\nstruct Count { uint n; };\n";

/// A kernel of 128 threads over `x` (128 floats) and `y` (512 floats, uninitialized). `//!` marks the line of
/// the fault.
fn text(body: &str) -> String {
    format!(
        "{HEAD}[[max_total_threads_per_threadgroup(128)]]\nkernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant Count& args [[buffer(2)]], uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]], uint gid [[thread_position_in_grid]], uint tg [[threadgroup_position_in_grid]]) {{\n    const uint n = args.n;\n{body}\n}}\n"
    )
}

fn check(name: &str, body: &str, kind: Option<FaultKind>) -> Option<String> {
    let text = text(body);
    let program = Program::compile(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut sim = Sim::new(&program).unwrap_or_else(|error| panic!("{name}: {error}"));
    let values: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let x = sim.memory.floats(&values).unwrap_or_else(|error| panic!("{name}: {error}"));
    let y = sim.memory.unwritten(2048).unwrap_or_else(|error| panic!("{name}: {error}"));
    sim.limit(1_000_000);
    sim.dispatch("k", &[x.read(), y.write()], &[100], [2, 1, 1]);
    let faults: Vec<String> = sim.faults().iter().map(|fault| fault.to_string()).collect();
    let line = text.lines().position(|line| line.contains("//!")).map_or(0, |line| line + 1);
    match kind {
        None if faults.is_empty() => None,
        // A missing barrier causes several faults: races at the write and at the read, and uninitialized
        // bytes.
        Some(kind) if sim.faults().iter().any(|fault| fault.kind == kind && fault.line == line) => {
            println!("{name}:\n    {}", faults.join("\n    "));
            None
        }
        _ => Some(format!("{name}: wanted {kind:?} at line {line}, found {faults:#?}")),
    }
}

#[test]
fn detects_every_kind_of_fault() {
    let cases: &[(&str, Option<FaultKind>, &str)] = &[
        (
            "right",
            None,
            "threadgroup float s[128];
             s[tid] = x[tid];
             threadgroup_barrier(mem_flags::mem_threadgroup);
             float sum = simd_sum(s[127u - tid]);
             y[gid] = sum + s[sg * 32u + (31u - lane)];",
        ),
        (
            "race in a threadgroup",
            Some(FaultKind::Race),
            "threadgroup float s[128];
             s[tid] = x[tid];
             y[gid] = s[127u - tid]; //!",
        ),
        (
            "race in a simdgroup",
            Some(FaultKind::Race),
            "threadgroup float s[128];
             s[tid] = x[tid];
             y[gid] = s[sg * 32u + (31u - lane)]; //!",
        ),
        (
            "race with the next turn of a loop",
            Some(FaultKind::Race),
            "threadgroup float s[128];
             float sum = 0.0f;
             for (uint i = 0; i < 2u; i++) {
              s[tid] = x[tid] + float(i); //!
              threadgroup_barrier(mem_flags::mem_threadgroup);
              sum += s[127u - tid];
             }
             y[gid] = sum;",
        ),
        (
            "a simdgroup barrier does not order simdgroups",
            Some(FaultKind::Race),
            "threadgroup float s[128];
             s[tid] = x[tid];
             simdgroup_barrier(mem_flags::mem_threadgroup);
             y[gid] = s[127u - tid]; //!",
        ),
        (
            "a barrier for the other memory",
            Some(FaultKind::Race),
            "threadgroup float s[128];
             s[tid] = x[tid];
             threadgroup_barrier(mem_flags::mem_device);
             y[gid] = s[127u - tid]; //!",
        ),
        (
            "device memory behind a barrier for threadgroup memory",
            Some(FaultKind::Race),
            "y[gid] = x[tid];
             threadgroup_barrier(mem_flags::mem_threadgroup);
             y[256u + gid] = y[tg * 128u + 127u - tid]; //!",
        ),
        (
            "race of writes",
            Some(FaultKind::Race),
            "threadgroup float s[4];
             s[tid / 64u] = x[tid]; //!
             threadgroup_barrier(mem_flags::mem_threadgroup);
             y[gid] = s[tid / 64u];",
        ),
        ("read beyond a buffer", Some(FaultKind::OutOfBounds), "y[gid] = x[tid + 1u]; //!"),
        ("write before a buffer", Some(FaultKind::OutOfBounds), "y[int(gid) - 1] = x[tid]; //!"),
        ("far beyond a buffer", Some(FaultKind::OutOfBounds), "y[gid] = x[tid * 100000000u]; //!"),
        ("beyond the scalars", Some(FaultKind::OutOfBounds), "y[gid] = float((&args.n)[tid / 100u]); //!"),
        (
            "beyond an array",
            Some(FaultKind::OutOfBounds),
            "threadgroup float s[128];
             threadgroup float t[128];
             threadgroup float* p = s;
             t[tid] = 0.0f;
             p[tid + 8u] = x[tid]; //!
             threadgroup_barrier(mem_flags::mem_threadgroup);
             y[gid] = s[max(tid, 8u)];",
        ),
        (
            "beyond an array of known size",
            Some(FaultKind::OutOfBounds),
            "threadgroup float s[100];
             s[tid] = x[tid]; //!
             threadgroup_barrier(mem_flags::mem_threadgroup);
             y[gid] = s[tid % 100u];",
        ),
        (
            "beyond an array of the thread's own",
            Some(FaultKind::OutOfBounds),
            "float own[4] = {1.0f, 2.0f, 3.0f, 4.0f};
             y[gid] = own[tid / 16u]; //!",
        ),
        (
            "return before a barrier",
            Some(FaultKind::Divergence),
            "threadgroup float s[128];
             if (tid >= n) return;
             s[tid] = x[tid];
             threadgroup_barrier(mem_flags::mem_threadgroup); //!
             y[gid] = s[n - 1u - tid];",
        ),
        (
            "a barrier in a branch",
            Some(FaultKind::Divergence),
            "threadgroup float s[128];
             s[tid] = x[tid];
             if (tid < 48u) threadgroup_barrier(mem_flags::mem_threadgroup); //!
             y[gid] = s[tid];",
        ),
        (
            "two barriers for one",
            Some(FaultKind::Divergence),
            "if (tid < 48u) threadgroup_barrier(mem_flags::mem_threadgroup); //!
             else threadgroup_barrier(mem_flags::mem_device);
             y[gid] = x[tid];",
        ),
        (
            "a simdgroup operation in a branch",
            Some(FaultKind::Divergence),
            "float v = x[tid];
             if (lane < 20u) v = simd_sum(v); //!
             y[gid] = v;",
        ),
        (
            "two simdgroup operations for one",
            Some(FaultKind::Divergence),
            "float v = x[tid];
             if (lane < 20u) v = simd_sum(v); //!
             else v = simd_max(v);
             y[gid] = v;",
        ),
        (
            "a matrix stored by some lanes",
            Some(FaultKind::Divergence),
            "simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
             if (lane < 16u) simdgroup_store(m, y + gid / 32u * 64u, 8); //!",
        ),
        (
            "a vector where a number was",
            Some(FaultKind::Misaligned),
            "float4 v = *(device const float4*)(x + 1u + (tid & 3u) * 4u); //!
             y[gid] = v.x;",
        ),
        (
            "a word at an odd byte",
            Some(FaultKind::Misaligned),
            "y[gid] = float(*(device const ushort*)((device const uchar*)x + tid)); //!",
        ),
        ("two threadgroups write one place", Some(FaultKind::GroupRace), "y[tid] = x[tid] + float(gid); //!"),
        (
            "a threadgroup reads what another writes",
            Some(FaultKind::GroupRace),
            "y[gid] = x[tid];
             if (tg == 1u) y[256u + gid] = y[tid]; //!",
        ),
        (
            "threadgroup memory never written",
            Some(FaultKind::NeverWritten),
            "threadgroup float s[128];
             if (tid < 64u) s[tid] = x[tid];
             threadgroup_barrier(mem_flags::mem_threadgroup);
             y[gid] = s[tid]; //!",
        ),
        ("a buffer never written", Some(FaultKind::NeverWritten), "y[gid] = x[tid] + y[256u + gid]; //!"),
        ("a sum that starts from nothing", Some(FaultKind::NeverWritten), "y[gid] += x[tid]; //!"),
        (
            "write through a pointer made writable",
            Some(FaultKind::ReadOnly),
            "((device float*)x)[tid] = 1.0f; //!
             y[gid] = 1.0f;",
        ),
        (
            "plain beside atomic",
            Some(FaultKind::Race),
            "threadgroup atomic_uint hits;
             if (tid == 0u) atomic_store_explicit(&hits, 0u, memory_order_relaxed);
             threadgroup_barrier(mem_flags::mem_threadgroup);
             atomic_fetch_add_explicit(&hits, 1u, memory_order_relaxed);
             threadgroup uint* plain = (threadgroup uint*)&hits;
             if (tid == 5u) *plain = 7u; //!
             y[gid] = x[tid];",
        ),
        (
            "division by zero",
            Some(FaultKind::Arithmetic),
            "y[gid] = float(100u / (tid - 5u * (n / 100u))); //!",
        ),
        (
            "no end",
            Some(FaultKind::Arithmetic),
            "for (uint i = 0; i < n; i += n / 200u) y[gid] = x[tid]; //!",
        ),
    ];
    let wrong: Vec<String> = cases.iter().filter_map(|(name, kind, body)| check(name, body, *kind)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn memory_windows_are_reused_when_there_are_more_bindings() {
    let text = format!(
        "{HEAD}[[max_total_threads_per_threadgroup(32)]]\nkernel void k(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]], device float* y [[buffer(2)]], uint tid [[thread_index_in_threadgroup]]) {{ y[tid] = a[tid] + b[tid]; }}\n"
    );
    let program = Program::compile(&text).unwrap();
    let mut sim = Sim::new(&program).unwrap();
    let values: Vec<f32> = (0..2200).map(|i| i as f32).collect();
    let x = sim.memory.floats(&values).unwrap();
    let y = sim.memory.unwritten(128).unwrap();
    // Each dispatch opens two new windows, after one that stays open.
    for first in 0..2100 {
        let [a, b] = [x.span(first * 4, 128, false), x.span(first * 4, 132, false)];
        sim.dispatch("k", &[a, b, y.write()], &[], [1, 1, 1]);
        assert!(sim.faults().is_empty(), "{:?}", sim.faults());
        sim.barrier();
        assert_eq!(sim.memory.read_floats(y)[31], 2.0 * (first as f32 + 31.0));
    }
}
