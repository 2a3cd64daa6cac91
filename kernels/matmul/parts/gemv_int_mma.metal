{# Dot products with integer MMA, four blocks of 32 columns at a time. #}
{% set stretches = (blocks + 3) // 4 %}
{% set tiles = rows_per_simdgroup // 16 %}
{% set pieces = per_block * 2 * tiles %}
{% set from_zero = " ^ uint2(0x80808080u)" if offset else "" %}
{% set in_group = " / " ~ per_group // per_block ~ "u" if per_group > per_block else "" %}
{# Loads a lane's packets and scales of four blocks. #}
{% macro take(codes, scales, stretch) %}
{% if blocks % 4 != 0 %}
// Past the last block x is zero, and W repeats that block.
const uint block = min({{ stretch }} * 4u + quarter, {{ blocks - 1 }}u);
{% else %}
const uint block = {{ stretch }} * 4u + quarter;
{% endif %}
#pragma unroll
for (uint r = 0u; r < {{ 2 * tiles }}u; r++) {
{% if ragged %}
    const uint row = min(first + r * 8u + own_row, {{ outputs - 1 }}u);
{% else %}
    const uint row = first + r * 8u + own_row;
{% endif %}
{% if per_block > 1 %}
    #pragma unroll
    for (uint p = 0u; p < {{ per_block }}u; p++) {
        {{ codes }}[r * {{ per_block }}u + p] = weight_codes[row * {{ stride }}u + block * {{ per_block }}u + p];
    }
{% else %}
    {{ codes }}[r] = weight_codes[row * {{ stride }}u + block];
{% endif %}
{% if nested %}
    {{ scales }}[r] = {{ widened }}(weight_scales, row * {{ stride }}u + block);
{% else %}
    {{ scales }}[r] = {{ widened }}(weight_scales[row * {{ groups }}u + block{{ in_group }}]);
{% endif %}
}
{% endmacro %}
    // A lane has one of the four blocks, for row `own_row` of each eight.
    const uint own_row = (lane >> 2u & 4u) | (lane >> 1u & 3u);
    const uint quarter = (lane >> 2u & 2u) | (lane & 1u);

    // Quantized x: for each block the words of the upper bytes, then those of the lower bytes; and the
    // blocks' scales.
    threadgroup uint staged_codes[{{ simdgroups * 64 }}];
    threadgroup float staged_units[{{ simdgroups * 4 }}];
    threadgroup uint* x_codes = staged_codes + simdgroup_id * 64u;
    threadgroup float* x_units = staged_units + simdgroup_id * 4u;
{% if offset %}
    // Sums of quantized x, for the weights' offsets.
    threadgroup int staged_sums[{{ simdgroups * 4 }}];
    threadgroup int* x_sums = staged_sums + simdgroup_id * 4u;
{% endif %}

{% if ahead %}
    // The first packets. In the loop the next packets are in flight while the current ones are multiplied.
    uint4 next[{{ pieces }}];
    {{ scale_type }} next_scales[{{ 2 * tiles }}];
    {
        {{ take("next", "next_scales", "part" if split > 1 else "0u")|indent(8) }}
    }

{% endif %}
    wait_for_others();
{% include "matmul/parts/preload_epilogue" %}

    float sums[{{ 2 * tiles }}] = {0.0f};
{% if own_norm %}
    float squared = 0.0f;
{% endif %}
    for (uint stretch = {{ "part" if split > 1 else "0u" }}; stretch < {{ stretches }}u; stretch += {{ split }}u) {
        uint4 codes[{{ pieces }}];
        {{ scale_type }} scales[{{ 2 * tiles }}];
{% if ahead %}
        const uint following = min(stretch + {{ split }}u, {{ stretches - 1 }}u);
        #pragma unroll
        for (uint i = 0u; i < {{ pieces }}u; i++) {
            codes[i] = next[i];
        }
        #pragma unroll
        for (uint r = 0u; r < {{ 2 * tiles }}u; r++) {
            scales[r] = next_scales[r];
        }
        {{ take("next", "next_scales", "following")|indent(8) }}
{% else %}
        // Weights first: all loads are in flight before the first is used.
        {{ take("codes", "scales", "stretch")|indent(8) }}
{% endif %}

        // Four columns of x per lane, eight lanes per block.
        float4 xs = {{ load }}(x, stretch * 128u + lane * 4u{{ bound }});
{% if own_norm %}
        squared += dot(xs, xs);
{% if own_norm.gain %}
        xs *= {{ load }}(x_gain, stretch * 128u + lane * 4u{{ bound }});
{% endif %}
{% endif %}
        uint upper;
        uint lower;
        int x_sum;
        const float unit = codes_of_block(xs, upper, lower, x_sum);
{% if offset %}
        x_sum += simd_shuffle_xor(x_sum, ushort(1));
        x_sum += simd_shuffle_xor(x_sum, ushort(2));
        x_sum += simd_shuffle_xor(x_sum, ushort(4));
{% endif %}
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const uint place = lane / 8u * 16u + lane % 8u;
        x_codes[place] = upper;
        x_codes[place + 8u] = lower;
        if (lane % 8u == 0u) {
            x_units[lane / 8u] = unit{{ " * 0.0625f" if per_block == 1 else "" }};
{% if offset %}
            x_sums[lane / 8u] = x_sum;
{% endif %}
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const float own_unit = x_units[quarter];
{% if offset %}
        // 8-bit weights are unsigned; half of their range is subtracted as an offset.
        const int taken_away = 128 * x_sums[quarter];
        const float own_sum = float({{ "16 * " if per_block == 1 else "" }}x_sums[quarter]);
{% endif %}

        #pragma unroll
        for (uint t = 0u; t < {{ tiles }}u; t++) {
            uint2 above[4];
            uint2 below[4];
            #pragma unroll
            for (uint i = 0u; i < 4u; i++) {
{% if per_block == 1 %}
                above[i] = nibbles_as_bytes(codes[2u * t][i]);
                below[i] = nibbles_as_bytes(codes[2u * t + 1u][i]);
{% else %}
                above[i] = uint2(codes[4u * t][i], codes[4u * t + 1u][i]){{ from_zero }};
                below[i] = uint2(codes[4u * t + 2u][i], codes[4u * t + 3u][i]){{ from_zero }};
{% endif %}
            }
            const int2 products = block_products(above, below, x_codes, own_row, quarter);
{% if offset %}
            const float2 whole = float2(float(products.x + taken_away), float(products.y + taken_away));
            sums[2u * t] += own_unit * (scales[2u * t].x * whole.x + scales[2u * t].y * own_sum);
            sums[2u * t + 1u] += own_unit * (scales[2u * t + 1u].x * whole.y + scales[2u * t + 1u].y * own_sum);
{% else %}
            sums[2u * t] += scales[2u * t] * own_unit * float(products.x);
            sums[2u * t + 1u] += scales[2u * t + 1u] * own_unit * float(products.y);
{% endif %}
        }
    }
