{% set product = " * norm_gains[i]" if gain else "" %}
{% set times = "factor[0] * " if factor else "" %}
{% set opened = "(" if factor else "" %}
{% set closed = ")" if factor else "" %}
// stream = {{ "factor * " if factor else "" }}{{ opened }}stream + {{ "norm_gain * " if gain else "" }}x /
// sqrt(mean(x * x) + {{ epsilon }}){{ closed }} for each row of {{ width }}. One threadgroup per row.
{% if squares %}
//
// For a deferred norm, the sum of squares of the row is
// written{{ ", and the row times the norm's gain" if squares.gain else "" }}.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* x [[buffer({{ slot() }})]],
{% if gain %}
    device const float* norm_gain [[buffer({{ slot() }})]],
{% endif %}
{% if factor %}
    device const float* factor [[buffer({{ slot() }})]],
{% endif %}
{% if squares and squares.gain %}
    device const float* gain [[buffer({{ slot() }})]],
{% endif %}
    device float* stream [[buffer({{ slot() }})]],
{% if squares and squares.gain %}
    device float* gained [[buffer({{ slot() }})]],
{% endif %}
{% if squares %}
    device float* squares_out [[buffer({{ slot() }})]],
{% endif %}
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
{% if simdgroups > 1 %}
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partials[{{ simdgroups }}];
{% if squares %}
    threadgroup float left[{{ simdgroups }}];
{% endif %}
{% else %}
    uint thread_id [[thread_index_in_threadgroup]]) {
{% endif %}
    device const {{ vector }}* source = (device const {{ vector }}*)(x + row * {{ width }}u);
{% if gain %}
    device const {{ vector }}* norm_gains = (device const {{ vector }}*)norm_gain;
{% endif %}
    device {{ vector }}* target = (device {{ vector }}*)(stream + row * {{ width }}u);
{% if squares and squares.gain %}
    device const {{ vector }}* gains = (device const {{ vector }}*)gain;
    device {{ vector }}* gained_target = (device {{ vector }}*)(gained + row * {{ width }}u);
{% endif %}

    // Sum of squares: over a thread's elements, then over
    // lanes{{ ", then over simdgroups" if simdgroups > 1 else "" }}.
    float squares = 0.0f;
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
        squares += {{ "dot(source[i], source[i])" if vector == "float4" else "source[i] * source[i]" }};
    }
{% if simdgroups > 1 %}
    squares = simd_sum(squares);
    if (lane == 0u) {
        partials[simdgroup_id] = squares;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    #pragma unroll
    for (uint i = 0u; i < {{ simdgroups }}u; i++) {
        total += partials[i];
    }
{% else %}
    const float total = simd_sum(squares);
{% endif %}

    // Scale and add.
    const float scale = rsqrt(total / {{ width_float }} + {{ epsilon }});
{% if squares %}
    float square = 0.0f;
{% endif %}
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
        const {{ vector }} sum = {{ times }}{{ opened }}target[i] + source[i] * scale{{ product }}{{ closed }};
        target[i] = sum;
{% if squares %}
{% if squares.gain %}
        gained_target[i] = sum * gains[i];
{% endif %}
        square += {{ "dot(sum, sum)" if vector == "float4" else "sum * sum" }};
{% endif %}
    }
{% if squares %}

    // Sum of squares of the result, in the same way: the first partial sum is the total.
    square = simd_sum(square);
{% if simdgroups > 1 %}
    if (lane == 0u) {
        left[simdgroup_id] = square;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_id == 0u) {
        float whole = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < {{ simdgroups }}u; i++) {
            whole += left[i];
        }
        squares_out[row * {{ squares.partials }}u] = whole;
    }
{% else %}
    if (thread_id == 0u) {
        squares_out[row * {{ squares.partials }}u] = square;
    }
{% endif %}
{% if squares.partials > 1 %}
    for (uint i = 1u + thread_id; i < {{ squares.partials }}u; i += {{ threads }}u) {
        squares_out[row * {{ squares.partials }}u + i] = 0.0f;
    }
{% endif %}
{% endif %}
}
