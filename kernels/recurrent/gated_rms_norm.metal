// heads = gain * heads / sqrt(mean(heads * heads) + {{ epsilon }}) * silu(gates) for each of {{ heads }}
// heads of {{ values }}, in place. Gates are columns of `inputs`, from {{ first }} on. A threadgroup has one
// row, a simdgroup one head at a time.
struct {{ args }} {
    uint rows;
};

// grid: rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* inputs [[buffer({{ slot() }})]],
    device const float* gain [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint row [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    device const float* gates = inputs + row * {{ pitch }}u + {{ first }}u;
    device float* row_heads = heads + row * {{ heads * values }}u;
    for (uint head = simdgroup_id; head < {{ heads }}u; head += {{ simdgroups }}u) {
        float head_values[{{ each }}];
        float squares = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < {{ each }}u; i++) {
            const uint c = i * 32u + lane;
{% if guarded %}
            head_values[i] = c < {{ values }}u ? row_heads[head * {{ values }}u + c] : 0.0f;
{% else %}
            head_values[i] = row_heads[head * {{ values }}u + c];
{% endif %}
            squares += head_values[i] * head_values[i];
        }
        const float scale = rsqrt(simd_sum(squares) / {{ values_float }} + {{ epsilon }});
        #pragma unroll
        for (uint i = 0u; i < {{ each }}u; i++) {
            const uint c = i * 32u + lane;
{% if guarded %}
            if (c < {{ values }}u) {
                row_heads[head * {{ values }}u + c] = head_values[i] * scale * gain[c] * silu(gates[head * {{ values }}u + c]);
            }
{% else %}
            row_heads[head * {{ values }}u + c] = head_values[i] * scale * gain[c] * silu(gates[head * {{ values }}u + c]);
{% endif %}
        }
    }
}
