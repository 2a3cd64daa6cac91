{# Sum over all threads. #}
{% macro total(name, value, partials) %}
{% if simdgroups > 1 %}
    {{ value }} = simd_sum({{ value }});
    if (lane == 0u) {
        {{ partials }}[simdgroup_id] = {{ value }};
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float {{ name }} = 0.0f;
    #pragma unroll
    for (uint i = 0u; i < {{ simdgroups }}u; i++) {
        {{ name }} += {{ partials }}[i];
    }
{% else %}
    const float {{ name }} = simd_sum({{ value }});
{% endif %}
{% endmacro %}
// y = gain * (x - mean(x)) / sqrt(variance(x) + {{ epsilon }}){{ " + bias" if bias else "" }} for each row of
// {{ width }}. One threadgroup per row.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* x [[buffer({{ slot() }})]],
    device const float* gain [[buffer({{ slot() }})]],
{% if bias %}
    device const float* bias [[buffer({{ slot() }})]],
{% endif %}
{% if gather %}
    device const uint* wanted [[buffer({{ slot() }})]],
{% endif %}
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
{% if simdgroups > 1 %}
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partial_sums[{{ simdgroups }}];
    threadgroup float partial_squares[{{ simdgroups }}];
{% else %}
    uint thread_id [[thread_index_in_threadgroup]]) {
{% endif %}
{% if gather %}
    device const {{ vector }}* source = (device const {{ vector }}*)(x + wanted[row] * {{ width }}u);
{% else %}
    device const {{ vector }}* source = (device const {{ vector }}*)(x + row * {{ width }}u);
{% endif %}
    device const {{ vector }}* gains = (device const {{ vector }}*)gain;
{% if bias %}
    device const {{ vector }}* biases = (device const {{ vector }}*)bias;
{% endif %}
    device {{ vector }}* target = (device {{ vector }}*)(y + row * {{ width }}u);

    // Mean: over a thread's elements, then over
    // lanes{{ ", then over simdgroups" if simdgroups > 1 else "" }}.
    float sum = 0.0f;
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
{% if vector == "float4" %}
        const float4 v = source[i];
        sum += v.x + v.y + v.z + v.w;
{% else %}
        sum += source[i];
{% endif %}
    }
{{ total("all", "sum", "partial_sums") }}    const float mean = all / {{ width_float }};

    // Sum of squares after subtracting the mean. Subtracting from the mean of squares would lose digits for
    // values far from 0.
    float square = 0.0f;
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
        const {{ vector }} v = source[i] - mean;
        square += {{ "dot(v, v)" if vector == "float4" else "v * v" }};
    }
{{ total("squares", "square", "partial_squares") }}    const float scale = rsqrt(squares / {{ width_float }} + {{ epsilon }});
    for (uint i = thread_id; i < {{ count }}u; i += {{ threads }}u) {
        target[i] = (source[i] - mean) * scale * gains[i]{{ " + biases[i]" if bias else "" }};
    }
}
