//! The checker's `metal_stdlib` against plain arithmetic: simdgroup operations, matrices, vectors,
//! conversions and bits.

use forge_sim::{Program, Sim};

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\n";

/// Runs `body` on 32 threads with `v` = one element of `values` each, and returns their `r`.
fn lanes(declarations: &str, body: &str, values: &[f32]) -> Vec<f32> {
    let text = format!(
        "{HEAD}{declarations}\n[[max_total_threads_per_threadgroup(32)]]\nkernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {{\n float v = x[lane]; float r = 0.0f;\n {body}\n y[lane] = r;\n}}\n"
    );
    let program = Program::compile(&text).unwrap_or_else(|error| panic!("{body}: {error}"));
    let mut sim = Sim::new(&program).unwrap_or_else(|error| panic!("{body}: {error}"));
    let x = sim.memory.floats(values).unwrap_or_else(|error| panic!("{error}"));
    let y = sim.memory.unwritten(128).unwrap_or_else(|error| panic!("{error}"));
    sim.dispatch("k", &[x.read(), y.write()], &[], [1, 1, 1]);
    assert!(sim.faults().is_empty(), "{body}: {:?}", sim.faults());
    sim.memory.read_floats(y)
}

/// An MSL expression, and its expected result for a lane, given the values of all lanes.
type Case<'c> = (&'c str, &'c dyn Fn(usize, &[f32]) -> f32);

/// Compiles many expressions as one source, because compilation dominates the time.
fn check(declarations: &str, cases: &[Case<'_>]) {
    let values: Vec<f32> = (0..32).map(|i| ((i * 37 + 11) % 32) as f32 - 9.0).collect();
    let kernels: String = cases
        .iter()
        .enumerate()
        .map(|(index, (expression, _))| {
            format!(
                "[[max_total_threads_per_threadgroup(32)]]\nkernel void k{index}(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {{ float v = x[lane]; y[lane] = float({expression}); }}\n"
            )
        })
        .collect();
    let program = Program::compile(&format!("{HEAD}{declarations}\n{kernels}"))
        .unwrap_or_else(|error| panic!("{error}"));
    let mut wrong = Vec::new();
    for (index, (expression, expected)) in cases.iter().enumerate() {
        let mut sim = Sim::new(&program).unwrap_or_else(|error| panic!("{error}"));
        let x = sim.memory.floats(&values).unwrap_or_else(|error| panic!("{error}"));
        let y = sim.memory.unwritten(128).unwrap_or_else(|error| panic!("{error}"));
        sim.dispatch(&format!("k{index}"), &[x.read(), y.write()], &[], [1, 1, 1]);
        let found = sim.memory.read_floats(y);
        let wanted: Vec<f32> = (0..32).map(|lane| expected(lane, &values)).collect();
        let close = |a: f32, b: f32| a == b || (a - b).abs() <= 1e-5 * b.abs() || (a.is_nan() && b.is_nan());
        if !sim.faults().is_empty() || !found.iter().zip(&wanted).all(|(a, b)| close(*a, *b)) {
            wrong.push(format!("{expression}: {found:?}, wanted {wanted:?}, faults {:?}", sim.faults()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn simdgroup_operations() {
    let bit = |v: &[f32], i: usize| (v[i] + 9.0) as u32;
    check(
        "",
        &[
            ("simd_sum(v)", &|_, v| v.iter().sum()),
            ("simd_sum(float4(v, 1.0f, -v, 2.0f * v)).w", &|_, v| 2.0 * v.iter().sum::<f32>()),
            ("simd_sum(half(1.0h))", &|_, _| 32.0),
            ("simd_sum(int(v))", &|_, v| v.iter().sum()),
            ("simd_max(v)", &|_, v| v.iter().fold(f32::MIN, |a, b| a.max(*b))),
            ("simd_min(v)", &|_, v| v.iter().fold(f32::MAX, |a, b| a.min(*b))),
            ("simd_max(uint(v + 9.0f))", &|_, _| 31.0),
            ("simd_min(float2(v, -v)).y", &|_, v| -v.iter().fold(f32::MIN, |a, b| a.max(*b))),
            ("simd_product(lane < 2u ? 3.0f : 1.0f)", &|_, _| 9.0),
            ("simd_and(uint(v + 9.0f) | 64u)", &|_, _| 64.0),
            ("simd_or(uint(v + 9.0f))", &|_, _| 31.0),
            ("simd_xor(uint(v + 9.0f))", &move |_, v| (0..32).fold(0, |a, i| a ^ bit(v, i)) as f32),
            ("simd_all(v > -10.0f)", &|_, _| 1.0),
            ("simd_all(v > 0.0f)", &|_, _| 0.0),
            ("simd_any(v > 21.0f)", &|_, _| 1.0),
            ("simd_any(v > 22.0f)", &|_, _| 0.0),
            ("popcount(uint(ulong(simd_ballot(v > 0.0f))))", &|_, v| {
                v.iter().filter(|x| **x > 0.0).count() as f32
            }),
            ("uint(ulong(simd_ballot(lane == 3u)))", &|_, _| 8.0),
            ("simd_broadcast(v, 7)", &|_, v| v[7]),
            ("simd_broadcast_first(v)", &|_, v| v[0]),
            ("simd_shuffle(v, ushort(31u - lane))", &|i, v| v[31 - i]),
            ("simd_shuffle_xor(v, 5)", &|i, v| v[i ^ 5]),
            ("simd_shuffle_xor(float2(v, lane), 16).y", &|i, _| (i ^ 16) as f32),
            ("simd_shuffle_up(v, 3)", &|i, v| if i >= 3 { v[i - 3] } else { v[i] }),
            ("simd_shuffle_down(v, 3)", &|i, v| if i + 3 < 32 { v[i + 3] } else { v[i] }),
            ("simd_shuffle_rotate_up(v, 3)", &|i, v| v[(i + 29) % 32]),
            ("simd_shuffle_rotate_down(v, 3)", &|i, v| v[(i + 3) % 32]),
            ("simd_shuffle_and_fill_up(v, 5.0f, 1)", &|i, v| if i == 0 { 5.0 } else { v[i - 1] }),
            ("simd_shuffle_and_fill_down(v, 5.0f, 1)", &|i, v| if i == 31 { 5.0 } else { v[i + 1] }),
            ("simd_prefix_inclusive_sum(v)", &|i, v| v[..=i].iter().sum()),
            ("simd_prefix_exclusive_sum(v)", &|i, v| v[..i].iter().sum()),
            ("simd_prefix_inclusive_product(2.0f)", &|i, _| 2f32.powi(i as i32 + 1)),
            ("simd_prefix_exclusive_product(2.0f)", &|i, _| 2f32.powi(i as i32)),
            ("simd_is_first() ? 1.0f : 0.0f", &|i, _| f32::from(i == 0)),
            ("popcount(uint(ulong(simd_active_threads_mask())))", &|_, _| 32.0),
            ("quad_sum(v)", &|i, v| v[i / 4 * 4..i / 4 * 4 + 4].iter().sum()),
            ("quad_max(v)", &|i, v| v[i / 4 * 4..i / 4 * 4 + 4].iter().fold(f32::MIN, |a, b| a.max(*b))),
            ("quad_min(v)", &|i, v| v[i / 4 * 4..i / 4 * 4 + 4].iter().fold(f32::MAX, |a, b| a.min(*b))),
            ("quad_broadcast(v, 2)", &|i, v| v[i / 4 * 4 + 2]),
            ("quad_shuffle(v, ushort(3u - (lane & 3u)))", &|i, v| v[i / 4 * 4 + 3 - i % 4]),
            ("quad_shuffle_xor(v, 1)", &|i, v| v[i ^ 1]),
            ("simd_sum(simd_max(v) + v)", &|_, v| {
                32.0 * v.iter().fold(f32::MIN, |a, b| a.max(*b)) + v.iter().sum::<f32>()
            }),
        ],
    );
}

#[test]
fn thread_arithmetic() {
    check(
        "constant float table[4] = {1.0f, 2.0f, 4.0f, 8.0f};\nconstant constexpr uint SIZE = 3;\nstruct Pair { float a; float2 b; };",
        &[
            ("exp(v * 0.1f)", &|i, v| (v[i] * 0.1).exp()),
            ("exp2(v)", &|i, v| v[i].exp2()),
            ("log(v + 10.0f)", &|i, v| (v[i] + 10.0).ln()),
            ("log2(v + 10.0f)", &|i, v| (v[i] + 10.0).log2()),
            ("precise::sin(v)", &|i, v| v[i].sin()),
            ("precise::cos(v)", &|i, v| v[i].cos()),
            ("fast::exp(v)", &|i, v| v[i].exp()),
            ("tanh(v * 0.1f)", &|i, v| (v[i] * 0.1).tanh()),
            ("sqrt(v + 9.0f)", &|i, v| (v[i] + 9.0).sqrt()),
            ("rsqrt(v + 10.0f)", &|i, v| 1.0 / (v[i] + 10.0).sqrt()),
            ("precise::rsqrt(float2(v + 10.0f)).y", &|i, v| 1.0 / (v[i] + 10.0).sqrt()),
            ("pow(v + 10.0f, 1.5f)", &|i, v| (v[i] + 10.0).powf(1.5)),
            ("fma(v, 2.0f, 1.0f)", &|i, v| v[i] * 2.0 + 1.0),
            ("fabs(v) + abs(v) + float(abs(int(v)))", &|i, v| v[i].abs() * 3.0),
            ("floor(v * 0.3f) + ceil(v * 0.3f)", &|i, v| (v[i] * 0.3).floor() + (v[i] * 0.3).ceil()),
            ("round(v * 0.5f) - trunc(v * 0.5f)", &|i, v| (v[i] * 0.5).round() - (v[i] * 0.5).trunc()),
            ("rint(v * 0.5f)", &|i, v| (v[i] * 0.5).round_ties_even()),
            ("clamp(v, -2.0f, 3.0f) + saturate(v)", &|i, v| v[i].clamp(-2.0, 3.0) + v[i].clamp(0.0, 1.0)),
            ("min(max(v, 1.0f), 4.0f) + float(min(lane, SIZE))", &|i, v| {
                v[i].clamp(1.0, 4.0) + i.min(3) as f32
            }),
            ("max(float4(v), 0.0f).x + fmax(v, NAN)", &|i, v| v[i].max(0.0) + v[i]),
            ("mix(v, 10.0f, 0.25f) + step(0.0f, v) + sign(v)", &|i, v| {
                let sign = if v[i] == 0.0 { 0.0 } else { v[i].signum() };
                v[i] + (10.0 - v[i]) * 0.25 + f32::from(v[i] >= 0.0) + sign
            }),
            ("select(1.0f, 2.0f, v > 0.0f)", &|i, v| if v[i] > 0.0 { 2.0 } else { 1.0 }),
            ("select(float2(1.0f), float2(v), float2(v) > float2(0.0f)).y", &|i, v| {
                if v[i] > 0.0 { v[i] } else { 1.0 }
            }),
            ("dot(float4(v, 1.0f, 2.0f, 3.0f), float4(2.0f))", &|i, v| 2.0 * (v[i] + 6.0)),
            ("length(float2(3.0f, 4.0f)) * v", &|i, v| v[i] * 5.0),
            ("float4(float2(v, 1.0f), float2(2.0f, 3.0f)).zyxw.z", &|i, v| v[i]),
            ("float4(uint4(lane)).w + float4(int2(int(v)).xy.x, 0.0f, 0.0f, 0.0f).x", &|i, v| {
                i as f32 + v[i]
            }),
            ("float4(half4(half(v))).y", &|i, v| v[i]),
            ("half(2049.0f)", &|_, _| 2048.0),
            ("half(1.0h) / 3.0h * 3.0h", &|_, _| 1.0),
            ("as_type<float>(as_type<uint>(v) ^ 0x80000000u)", &|i, v| -v[i]),
            ("as_type<half2>(0x40003c00u).y", &|_, _| 2.0),
            ("as_type<float>(uint(ushort(0x4049)) << 16)", &|_, _| 3.140625),
            ("isnan(v) ? 1.0f : (isinf(INFINITY * 2.0f) ? 2.0f : 3.0f)", &|_, _| 2.0),
            ("popcount(lane) + clz(lane) + ctz(lane)", &|i, _| {
                let i = i as u32;
                (i.count_ones() + i.leading_zeros() + i.trailing_zeros()) as f32
            }),
            ("mulhi(lane << 28, 64u) + rotate(0x80000001u, 1u) + extract_bits(0xf0u, 4u, 4u)", &|i, _| {
                (((((i as u64) << 28) & 0xffff_ffff) * 64) >> 32) as f32 + 3.0 + 15.0
            }),
            ("table[lane & 3u] * 2.0f", &|i, _| 2f32.powi(i as i32 % 4 + 1)),
            ("any(float4(v, 0.0f, 0.0f, 0.0f) > float4(5.0f)) ? 1.0f : 0.0f", &|i, v| f32::from(v[i] > 5.0)),
            ("all(int2(1, int(lane))) ? 1.0f : 0.0f", &|i, _| f32::from(i != 0)),
            ("char(int(lane) * 8) + uchar(lane * 16u) + short(int(v))", &|i, v| {
                f32::from((i * 8) as u8 as i8) + f32::from((i * 16) as u8) + v[i]
            }),
            ("float(packed_float3(float3(v, 2.0f, 3.0f))[0]) + float(sizeof(packed_half3))", &|i, v| {
                v[i] + 6.0
            }),
            ("Pair{v, float2(1.0f, 2.0f)}.b.y + float(sizeof(float3)) + float(alignof(half4))", &|_, _| {
                2.0 + 16.0 + 8.0
            }),
            (
                "float(int4(as_type<char4>(lane)).x) + float(uint4(as_type<uchar4>(0x04030201u)).w)",
                &|i, _| i as f32 + 4.0,
            ),
            ("numeric_limits<float>::infinity() > v ? 1.0f : M_PI_F", &|_, _| 1.0),
        ],
    );
}

/// Operands and initial value of a matrix product, and a matrix stored with a stride.
#[test]
fn simdgroup_matrix_multiply() {
    let text = format!(
        "{HEAD}[[max_total_threads_per_threadgroup(64)]]
kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint sg [[simdgroup_index_in_threadgroup]],
              uint lane [[thread_index_in_simdgroup]]) {{
    threadgroup half h[64];
    simdgroup_float8x8 a, b, c;
    simdgroup_load(a, x, 11);
    simdgroup_load(b, x, 11, ulong2(2, 1));
    simdgroup_load(c, x, 11, ulong2(0, 2), true);
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_store(c, y + sg * 256u, 8);
    simdgroup_multiply(c, a, b);
    simdgroup_store(c, y + sg * 256u + 64u, 8, ulong2(0, 0), true);
    if (sg == 0u) for (uint i = lane; i < 64u; i += 32u) h[i] = half(x[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_half8x8 d;
    simdgroup_load(d, h, 8);
    c = make_filled_simdgroup_matrix<float, 8, 8>(0.5f);
    simdgroup_multiply_accumulate(c, d, simdgroup_half8x8(2.0h), c);
    c.thread_elements() *= 2.0f;
    simdgroup_store(c, y + sg * 256u + 128u, 8);
    simdgroup_store(simdgroup_float8x8(3.0f), y + sg * 256u + 192u, 8);
}}\n"
    );
    let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
    let mut sim = Sim::new(&program).unwrap_or_else(|error| panic!("{error}"));
    let values: Vec<f32> = (0..128).map(|i| ((i * 29) % 17) as f32 - 8.0).collect();
    let x = sim.memory.floats(&values).unwrap_or_else(|error| panic!("{error}"));
    let y = sim.memory.unwritten(2048).unwrap_or_else(|error| panic!("{error}"));
    sim.dispatch("k", &[x.read(), y.write()], &[], [1, 1, 1]);
    assert!(sim.faults().is_empty(), "{:?}", sim.faults());
    let found = sim.memory.read_floats(y);
    let a = |r: usize, c: usize| values[r * 11 + c];
    let b = |r: usize, c: usize| values[(r + 1) * 11 + c + 2];
    let start = |r: usize, c: usize| values[(c + 2) * 11 + r];
    let product = |r: usize, c: usize| (0..8).map(|k| a(r, k) * b(k, c)).sum::<f32>();
    for sg in 0..2 {
        for r in 0..8 {
            for c in 0..8 {
                let at = |part: usize| found[sg * 256 + part * 64 + r * 8 + c];
                assert_eq!(at(0), start(r, c) + product(r, c), "product and sum at {r}, {c}");
                assert_eq!(at(1), product(c, r), "transposed store at {r}, {c}");
                assert_eq!(at(2), (values[r * 8 + c] * 2.0 + 0.5) * 2.0, "halves at {r}, {c}");
                assert_eq!(at(3), if r == c { 3.0 } else { 0.0 }, "a diagonal at {r}, {c}");
            }
        }
    }
}

/// The elements of a matrix that a lane holds are those of Apple's hardware, for loads, stores and
/// assignments.
#[test]
fn simdgroup_matrix_elements_are_in_hardware_order() {
    let text = format!(
        "{HEAD}[[max_total_threads_per_threadgroup(32)]]
kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {{
    const uint quad = lane / 4u;
    const uint row = (quad & 4u) + (lane / 2u) % 4u;
    const uint column = (quad & 2u) * 2u + (lane % 2u) * 2u;
    simdgroup_float8x8 set, loaded, identity = simdgroup_float8x8(1.0f);
    set.thread_elements()[0] = x[row * 8u + column];
    set.thread_elements()[1] = x[row * 8u + column + 1u];
    simdgroup_store(set, y, 8);
    simdgroup_load(loaded, x, 8);
    y[64u + row * 8u + column] = loaded.thread_elements()[0];
    y[64u + row * 8u + column + 1u] = loaded.thread_elements()[1];
    simdgroup_load(loaded, x, 8, ulong2(0, 0), true);
    y[128u + column * 8u + row] = loaded.thread_elements()[0];
    y[128u + (column + 1u) * 8u + row] = loaded.thread_elements()[1];
    simdgroup_multiply(loaded, set, identity);
    y[192u + row * 8u + column] = loaded.thread_elements()[0];
    y[192u + row * 8u + column + 1u] = loaded.thread_elements()[1];
}}\n"
    );
    let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
    let mut sim = Sim::new(&program).unwrap_or_else(|error| panic!("{error}"));
    let values: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let x = sim.memory.floats(&values).unwrap_or_else(|error| panic!("{error}"));
    let y = sim.memory.unwritten(1024).unwrap_or_else(|error| panic!("{error}"));
    sim.dispatch("k", &[x.read(), y.write()], &[], [1, 1, 1]);
    assert!(sim.faults().is_empty(), "{:?}", sim.faults());
    assert_eq!(sim.memory.read_floats(y), values.repeat(4));
}

#[test]
fn atomics_and_array_shapes() {
    let values: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let body = "threadgroup atomic_uint hits[2], most;
        threadgroup float4 rows[2][16];
        threadgroup float one;
        if (lane < 2u) atomic_store_explicit(&hits[lane], 0u, memory_order_relaxed);
        if (lane == 0u) { atomic_store_explicit(&most, 0u, memory_order_relaxed); one = 3.0f; }
        rows[lane / 16u][lane % 16u] = float4(v);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        atomic_fetch_add_explicit(&hits[lane & 1u], lane, memory_order_relaxed);
        atomic_fetch_max_explicit(&most, lane, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        r = float(atomic_load_explicit(&hits[0], memory_order_relaxed)) + float(atomic_load_explicit(&most, memory_order_relaxed)) + rows[1][15].w + one;";
    assert_eq!(lanes("", body, &values), vec![240.0 + 31.0 + 31.0 + 3.0; 32]);
}

#[test]
fn rejects_ambiguous_code_and_poisons_unset_variables() {
    let values = [1.0; 32];
    // A variable of a thread that is read before it is set shows in the results.
    let found = lanes("", "float unset; if (v > 5.0f) unset = 1.0f; r = unset;", &values);
    assert!(found.iter().all(|value| value.is_nan()), "{found:?}");
    // Unobservable accesses, calls that are ambiguous in Metal, and declarations hidden in macros.
    let cases = [
        ("ulong4 wide = ulong4(1ul);", "ulong4"),
        ("uint n = min(lane, 3);", "ambiguous"),
        ("float2 two = float2(1.0f, 2.0f, 3.0f);", "exactly as many components"),
        ("TILE", "declare it outside macros"),
    ];
    for (body, message) in cases {
        let text = format!(
            "{HEAD}{}\n[[max_total_threads_per_threadgroup(32)]]\nkernel void k(uint lane [[thread_index_in_simdgroup]]) {{ {body} }}\n",
            if body == "TILE" { "#define TILE threadgroup float tile[8];" } else { "" }
        );
        let error = Program::compile(&text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(message), "{body}: {error}");
    }
}

/// A threadgroup with an incomplete last simdgroup, on several system threads at once.
#[test]
fn incomplete_simdgroups_on_several_threads() {
    let text = format!(
        "{HEAD}[[max_total_threads_per_threadgroup(40)]]\nkernel void k(device uint* y [[buffer(0)]], uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {{\n threadgroup uint sums[2];\n uint sum = simd_sum(1u) + simd_shuffle_down(lane, 1);\n if (lane == 0u) sums[(i % 40u) / 32u] = sum;\n threadgroup_barrier(mem_flags::mem_threadgroup);\n y[i] = sum + 100u * sums[1];\n}}\n"
    );
    let run = || {
        let program = Program::compile(&text).unwrap_or_else(|error| panic!("{error}"));
        let mut sim = Sim::new(&program).unwrap_or_else(|error| panic!("{error}"));
        let y = sim.memory.unwritten(120 * 4).unwrap_or_else(|error| panic!("{error}"));
        for _ in 0..20 {
            sim.dispatch("k", &[y.write()], &[], [3, 1, 1]);
            sim.barrier();
        }
        assert_eq!(sim.faults(), []);
        for (i, found) in sim.memory.read_words(y).into_iter().enumerate() {
            let (count, lane) = if i % 40 < 32 { (32, i % 40) } else { (8, i % 40 - 32) };
            let next = if lane + 1 < count { lane + 1 } else { lane };
            assert_eq!(found as usize, count + next + 100 * 9, "thread {i}");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(run);
        }
    });
}
