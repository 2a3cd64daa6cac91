{% set exists = "row < args.rows && output < " ~ outputs ~ "u" if ragged else "row < args.rows" %}
{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
{# What becomes of a sum before the epilogue. #}
{% macro finished(sum, output) %}
{% if softcap %}{{ softcap }} * precise::tanh(({% endif %}
{{- sum }}{% if bias %} + bias[{{ output }}]{% endif %}
{%- if softcap %}) / {{ softcap }}){% endif %}
{%- endmacro %}
// y = W x for a few rows of x; W is [{{ outputs }}, {{ inputs }}] in {{ stored }}.
//
// A simdgroup computes {{ rows_per_simdgroup }} rows of W against {{ tile_rows }} rows of x. A lane takes every 32nd packet of 16 bytes,
// and decodes it once for all rows of x.
struct {{ args }} {
    uint rows;
};

// grid: ceil({{ outputs }} / {{ group_outputs }}), ceil(rows / {{ tile_rows }})
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
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    const uint first = group.x * {{ group_outputs }}u + simdgroup_id * {{ rows_per_simdgroup }}u;
    const uint first_row = group.y * {{ tile_rows }}u;

    float sums[{{ rows_per_simdgroup }}][{{ tile_rows }}] = {};
    for (uint packet = lane; packet < {{ packets }}u; packet += 32u) {
        // Decode, once.
{% if ragged %}
        // Rows past the last repeat it.
{% endif %}
        float4 weights[{{ rows_per_simdgroup }}][{{ vectors }}];
        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
{% if ragged %}
            const uint row = min(first + r, {{ outputs - 1 }}u);
{% else %}
            const uint row = first + r;
{% endif %}
            {{ decoder }}_decode(weight_{{ planes[0].name }}[row * {{ stride }}u + packet], weights[r]);
{% if scaled %}
{% if offset %}
            const float2 scale = float2(weight_scales[row * {{ groups }}u + packet{{ in_group }}]);
{% else %}
            const float scale = float(weight_scales[row * {{ groups }}u + packet{{ in_group }}]);
{% endif %}
            #pragma unroll
            for (uint v = 0u; v < {{ vectors }}u; v++) {
                weights[r][v] = weights[r][v] * {{ "scale.x + scale.y" if offset else "scale" }};
            }
{% endif %}
        }

        // Every row of x against all of them.
        #pragma unroll
        for (uint t = 0u; t < {{ tile_rows }}u; t++) {
            device const float* source = x + min(first_row + t, args.rows - 1u) * {{ inputs }}u;
            #pragma unroll
            for (uint v = 0u; v < {{ vectors }}u; v++) {
                const float4 part = {{ load }}(source, packet * {{ columns }}u + 4u * v{{ bound }});
                #pragma unroll
                for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
                    sums[r][t] += dot(weights[r][v], part);
                }
            }
        }
    }

    // One sum over lanes for each pair of rows; the lane of that number finishes it.
    #pragma unroll
    for (uint t = 0u; t < {{ tile_rows }}u; t++) {
        const uint row = first_row + t;
{% if activation %}
        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r += 2u) {
            const float gate = simd_sum(sums[r][t]);
            const float up = simd_sum(sums[r + 1u][t]);
            const uint output = first + r;
            if (lane == t * {{ rows_per_simdgroup }}u + r && {{ exists }}) {
                const float gate_value = {{ finished("gate", "output") }};
                const float up_value = {{ finished("up", "output + 1u") }};
                y[row * {{ outputs // 2 }}u + output / 2u] = {{ activation }}(gate_value) * up_value;
            }
        }
{% else %}
        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
            const float sum = simd_sum(sums[r][t]);
            const uint output = first + r;
            if (lane == t * {{ rows_per_simdgroup }}u + r && {{ exists }}) {
                y[row * {{ outputs }}u + output] {{ assign }} {{ finished("sum", "output") }};
            }
        }
{% endif %}
    }
}
