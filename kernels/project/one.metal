{% set start = "part * 32u + lane" if split > 1 else "lane" %}
{% set block = "packet" if per_block == 1 else "packet / " ~ per_block ~ "u" %}
// y = W x for one row of x; W is [{{ outputs }}, {{ inputs }}] in {{ format }}.
//
{% if split > 1 %}
// {{ split }} simdgroups compute {{ rows_per_simdgroup }} rows of W at once, each a part of the columns. A lane takes every {{ 32 * split }}th packet
// of 16 bytes, straight to registers; what it loads of x serves all its rows.
{% else %}
// A simdgroup computes {{ rows_per_simdgroup }} rows of W at once. A lane takes every 32nd packet of 16 bytes, straight to registers;
// what it loads of x serves all its rows.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: ceil({{ outputs }} / {{ group_outputs }})
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% for plane in planes %}
    device const {{ plane.element }}* weight_{{ plane.name }} [[buffer({{ slot() }})]],
{% endfor %}
{% if bias %}
    device const float* bias [[buffer({{ slot() }})]],
{% endif %}
    device const float* x [[buffer({{ slot() }})]],
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint group [[threadgroup_position_in_grid]],
{% if split > 1 %}
    uint thread_id [[thread_index_in_threadgroup]],
{% endif %}
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% if split > 1 %}
    threadgroup float partials[{{ simdgroups * rows_per_simdgroup }}];
    const uint first = group * {{ group_outputs }}u + simdgroup_id / {{ split }}u * {{ rows_per_simdgroup }}u;
    const uint part = simdgroup_id % {{ split }}u;
{% else %}
    const uint first = group * {{ group_outputs }}u + simdgroup_id * {{ rows_per_simdgroup }}u;
{% endif %}

    float sums[{{ rows_per_simdgroup }}] = {0.0f};
    for (uint packet = {{ start }}; packet < {{ packets }}u; packet += {{ 32 * split }}u) {
        // Weights first: all loads are under way before the first is needed.
{% if ragged %}
        // Rows past the last repeat it.
{% endif %}
        uint4 codes[{{ rows_per_simdgroup }}];
{% if scaled %}
        float scales[{{ rows_per_simdgroup }}];
{% endif %}
        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
{% if ragged %}
            const uint row = min(first + r, {{ outputs - 1 }}u);
{% else %}
            const uint row = first + r;
{% endif %}
            codes[r] = weight_{{ planes[0].name }}[row * {{ stride }}u + packet];
{% if scaled %}
            scales[r] = float(weight_scales[row * {{ blocks }}u + {{ block }}]);
{% endif %}
        }

        // The part of x that these packets meet.
        float4 xs[{{ vectors }}];
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
            xs[v] = {{ load }}(x, packet * {{ columns }}u + 4u * v{{ bound }});
        }

        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
            float4 weights[{{ vectors }}];
            {{ format }}_decode(codes[r], weights);
            float sum = 0.0f;
            #pragma unroll
            for (uint v = 0u; v < {{ vectors }}u; v++) {
                sum += dot(weights[v], xs[v]);
            }
            sums[r] += {{ "scales[r] * sum" if scaled else "sum" }};
        }
    }

{% if split > 1 %}
    // One sum a row over lanes, then over the simdgroups that share it.
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
        const float sum = simd_sum(sums[r]);
        if (lane == 0u) {
            partials[simdgroup_id * {{ rows_per_simdgroup }}u + r] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
{% if activation %}

    // Rows alternate gate, up; a thread finishes a pair of them.
    const uint own = thread_id * 2u;
    const uint at = own / {{ rows_per_simdgroup }}u * {{ split * rows_per_simdgroup }}u + own % {{ rows_per_simdgroup }}u;
    const uint output = group * {{ group_outputs }}u + own;
    if (own < {{ group_outputs }}u{% if ragged %} && output < {{ outputs }}u{% endif %}) {
        float gate = {{ "bias[output]" if bias else "0.0f" }};
        float up = {{ "bias[output + 1u]" if bias else "0.0f" }};
        #pragma unroll
        for (uint p = 0u; p < {{ split }}u; p++) {
            gate += partials[at + p * {{ rows_per_simdgroup }}u];
            up += partials[at + p * {{ rows_per_simdgroup }}u + 1u];
        }
        y[output / 2u] = {{ activation }}(gate) * up;
    }
{% else %}

    // A thread finishes a row.
    const uint at = thread_id / {{ rows_per_simdgroup }}u * {{ split * rows_per_simdgroup }}u + thread_id % {{ rows_per_simdgroup }}u;
    const uint output = group * {{ group_outputs }}u + thread_id;
    if (thread_id < {{ group_outputs }}u{% if ragged %} && output < {{ outputs }}u{% endif %}) {
        float sum = {{ "bias[output]" if bias else "0.0f" }};
        #pragma unroll
        for (uint p = 0u; p < {{ split }}u; p++) {
            sum += partials[at + p * {{ rows_per_simdgroup }}u];
        }
        y[output] {{ assign }} sum;
    }
{% endif %}
{% elif activation %}
    // One sum a row over lanes; rows alternate gate, up, and lane r finishes the pair of rows r and r + 1.
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r += 2u) {
        const float gate = simd_sum(sums[r]);
        const float up = simd_sum(sums[r + 1u]);
        const uint output = first + r;
        if (lane == r{% if ragged %} && output < {{ outputs }}u{% endif %}) {
{% if bias %}
            y[output / 2u] = {{ activation }}(gate + bias[output]) * (up + bias[output + 1u]);
{% else %}
            y[output / 2u] = {{ activation }}(gate) * up;
{% endif %}
        }
    }
{% else %}
    // One sum a row over lanes; lane r finishes row r.
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
        const float sum = simd_sum(sums[r]);
        const uint output = first + r;
        if (lane == r{% if ragged %} && output < {{ outputs }}u{% endif %}) {
            y[output] {{ assign }} sum{% if bias %} + bias[output]{% endif %};
        }
    }
{% endif %}
}
