{% set exists = " && output < " ~ outputs ~ "u" if ragged else "" %}
{# Outputs of the first simdgroup's epilogue: one or a pair per lane. #}
{% set whole = group_outputs == (64 if activation else 32) %}
{% set within = "local_output < " ~ group_outputs ~ "u" %}
{% set own_exists = within ~ exists if not whole else "output < " ~ outputs ~ "u" if ragged else "" %}
{# Norm, bias and unary function of a sum, before the epilogue. #}
{% macro finished(sum, output) %}
{{ before }}{{ sum }}{% if norm or own_norm %} * factor{% endif %}{% if bias %} + bias[{{ output }}]{% endif %}{{ after }}
{%- endmacro %}
{# A result times its factor. #}
{% macro multiplied(sum, output) %}
{% if factors %}factors[args.first + {{ output }}] * ({{ finished(sum, output) }}){% else %}{{ finished(sum, output) }}{% endif %}
{%- endmacro %}
{# The sum of a row over the simdgroups that split it. #}
{% macro gathered(name, at) %}
{% if split > 1 %}
float {{ name }} = 0.0f;
#pragma unroll
for (uint p = 0u; p < {{ split }}u; p++) {
    {{ name }} += partials[{{ at }} + p * {{ rows_per_simdgroup }}u];
}
{% else %}
const float {{ name }} = partials[{{ at }}];
{% endif %}
{% endmacro %}
{% macro finish() %}
{% if split > 1 %}
const uint at = local_output / {{ rows_per_simdgroup }}u * {{ split * rows_per_simdgroup }}u + local_output % {{ rows_per_simdgroup }}u;
{{ gathered("sum", "at") }}
{%- else %}
{{ gathered("sum", "local_output") }}
{%- endif %}
{% if activation %}
{{ gathered("second", "at + 1u" if split > 1 else "local_output + 1u") }}
const float gate = {{ finished("sum", "output") }};
const float up = {{ finished("second", "output + 1u") }};
y[output / 2u] = {{ activation }}(gate) * up;
{% elif add_squares %}
const float value = before + {{ finished("sum", "output") }};
y[output] = value;
{% if add_squares.gain %}
gained[output] = own_gain * value;
{% endif %}
square = value * value;
{% elif best %}
const float value = {{ finished("sum", "output") }};
y[output] = value;
key = ordered(value);
{% else %}
y[output] {{ assign }} {{ multiplied("sum", "output") }};
{% endif %}
{% endmacro %}
// y = W x for one row of x; W is [{{ outputs }}, {{ inputs }}] in {{ stored }}.
//
{% if codes %}
// A simdgroup computes {{ rows_per_simdgroup }} rows of W at
// once{{ ", and " ~ split ~ " of them split the columns" if split > 1 else "" }}. For four blocks of 32
// columns at a time, x is quantized to 16 bits with one scale per block, and multiplied with integer MMA.
// Sums of a block are exact until the scales are applied.
{% elif float_mma %}
// A simdgroup computes {{ rows_per_simdgroup }} rows of W at
// once{{ ", and " ~ split ~ " of them split the columns" if split > 1 else "" }}, with MMA: 16 rows of W times eight
// columns, of which one row of x fills two: the upper bits of its values, and the rest.
{% elif split > 1 %}
// {{ split }} simdgroups compute {{ rows_per_simdgroup }} rows of W at once, each a part of the columns. A
// lane loads every {{ 32 * split }}th packet of {{ packet_bytes }} bytes straight to registers, and reuses
// its values of x for all rows.
{% else %}
// A simdgroup computes {{ rows_per_simdgroup }} rows of W at once. A lane loads every 32nd packet of
// {{ packet_bytes }} bytes straight to registers, and reuses its values of x for all rows.
{% endif %}
{% if norm %}
//
// The norm of x is deferred: x has been multiplied by the gain, and results are divided by its root mean
// square.
{% elif own_norm %}
//
{% if own_norm.gain %}
// The norm of x is applied inline: x is multiplied by the gain as it is loaded, and results are divided by
// its root mean square, for which each lane sums the squares of the values that it loads.
{% else %}
// The norm of x is applied inline: results are divided by its root mean square, for which each lane sums the
// squares of the values that it loads.
{% endif %}
{% endif %}
{% if add_squares %}
//
// Results are added to y. For a deferred norm, each threadgroup writes the sum of squares of its part of
// y{{ "," if add_squares.gain else "." }}
{% if add_squares.gain %}
// and y times the norm's gain.
{% endif %}
{% endif %}
{% if factors %}
//
// Results are multiplied by columns of a row of factors.
{% endif %}
{% if best %}
//
// Each threadgroup writes its argmax: an order-preserving key, and the lowest output with it.
{% endif %}
struct {{ args }} {
    uint rows;
{% if factors %}
    uint first;
{% endif %}
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
{% if own_norm and own_norm.gain %}
    device const float* x_gain [[buffer({{ slot() }})]],
{% endif %}
{% if norm %}
    device const float* squares [[buffer({{ slot() }})]],
{% endif %}
{% if factors %}
    device const float* factors [[buffer({{ slot() }})]],
{% endif %}
    device float* y [[buffer({{ slot() }})]],
{% if add_squares %}
{% if add_squares.gain %}
    device const float* gain [[buffer({{ slot() }})]],
    device float* gained [[buffer({{ slot() }})]],
{% endif %}
    device float* squares_out [[buffer({{ slot() }})]],
{% endif %}
{% if best %}
    device uint* candidates [[buffer({{ slot() }})]],
{% endif %}
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% if gather %}
    threadgroup float partials[{{ simdgroups * rows_per_simdgroup }}];
{% endif %}
{% if own_norm and split > 1 %}
    threadgroup float partial_squares[{{ split }}];  // sums of squares of x, by part of the columns
{% endif %}
{% if split > 1 %}
    const uint first = group * {{ group_outputs }}u + simdgroup_id / {{ split }}u * {{ rows_per_simdgroup }}u;
    const uint part = simdgroup_id % {{ split }}u;
{% else %}
    const uint first = group * {{ group_outputs }}u + simdgroup_id * {{ rows_per_simdgroup }}u;
{% endif %}

{% include "matmul/parts/" ~ body %}
{% if norm %}

    // Divisor of the norm.
{% if squares_count > 32 %}
    {{ squares_vector }} squared = {{ squares_vector }}(0.0f);
    for (uint i = lane; i < {{ squares_count }}u; i += 32u) {
        squared += {{ squares_source }}[i];
    }
{% endif %}
{% if squares_vector == "float4" %}
    const float square = simd_sum(squared.x + squared.y + squared.z + squared.w);
{% else %}
    const float square = simd_sum(squared);
{% endif %}
    const float factor = rsqrt(square / {{ inputs_float }} + {{ norm.epsilon }});
{% elif own_norm %}

    // Divisor of the norm.
{% if float_mma %}
    float squared = squares_of_own[0];
{% else %}
    squared = simd_sum(squared);
{% endif %}
{% if split > 1 %}
    if (lane == 0u && simdgroup_id < {{ split }}u) {
        partial_squares[part] = squared;
    }
{% else %}
    const float factor = rsqrt(squared / {{ inputs_float }} + {{ own_norm.epsilon }});
{% endif %}
{% endif %}

{% if gather %}
{% if codes %}
    // Sum each row over the four lanes that have parts of it; the first simdgroup runs the epilogue.
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup // 8 }}u; r++) {
        float sum = sums[r];
        sum += simd_shuffle_xor(sum, ushort(1));
        sum += simd_shuffle_xor(sum, ushort(8));
        if (quarter == 0u) {
            partials[simdgroup_id * {{ rows_per_simdgroup }}u + r * 8u + own_row] = sum;
        }
    }
{% elif float_mma %}
    // The first simdgroup runs the epilogue.
    if (quarter == 0u) {
        #pragma unroll
        for (uint tile = 0u; tile < {{ rows_per_simdgroup // 16 }}u; tile++) {
            const float4 sum = sums[0][0][tile] + sums[1][0][tile];
            partials[simdgroup_id * {{ rows_per_simdgroup }}u + tile * 16u + own_row] = sum.x + sum.y;
            partials[simdgroup_id * {{ rows_per_simdgroup }}u + tile * 16u + 8u + own_row] = sum.z + sum.w;
        }
    }
{% else %}
    // Sum each row over lanes; the first simdgroup runs the epilogue.
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
        const float sum = simd_sum(sums[r]);
        if (lane == 0u) {
            partials[simdgroup_id * {{ rows_per_simdgroup }}u + r] = sum;
        }
    }
{% endif %}
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup_id == 0u) {
{% if own_norm and split > 1 %}
        squared = 0.0f;
        #pragma unroll
        for (uint p = 0u; p < {{ split }}u; p++) {
            squared += partial_squares[p];
        }
        const float factor = rsqrt(squared / {{ inputs_float }} + {{ own_norm.epsilon }});
{% endif %}
{% if add_squares %}
        float square = 0.0f;
{% else %}
        const uint local_output = {{ "2u * lane" if activation else "lane" }};
        const uint output = group * {{ group_outputs }}u + local_output;
{% if best %}
        uint key = 0u;
{% endif %}
{% endif %}
{% if own_exists %}
        if ({{ own_exists }}) {
            {{ finish()|indent(12) }}
        }
{% else %}
        {{ finish()|indent(8) }}
{% endif %}
{% if add_squares %}
        square = simd_sum(square);
        if (lane == 0u) {
            squares_out[group] = square;
        }
{% if grid < add_squares.partials %}
        // Partial sums without a threadgroup.
        if (group == {{ grid - 1 }}u) {
            for (uint i = {{ grid }}u + lane; i < {{ add_squares.partials }}u; i += 32u) {
                squares_out[i] = 0.0f;
            }
        }
{% endif %}
{% elif best %}
        const uint highest = simd_max(key);
        const uint lowest = simd_min(key == highest ? output : 0xffffffffu);
        if (lane == 0u) {
            candidates[2u * group] = highest;
            candidates[2u * group + 1u] = lowest;
        }
{% endif %}
    }
{% elif activation %}
    // Sum each row over lanes. Rows alternate gate and up, and a lane runs the epilogue of a pair.
{% if rows_per_simdgroup == 2 %}
    const float2 row_sum = float2(simd_sum(sums[0]), simd_sum(sums[1]));
{% else %}
    float2 row_sum = float2(0.0f);
    #pragma unroll
    for (uint p = 0u; p < {{ rows_per_simdgroup // 2 }}u; p++) {
        const float2 sum = float2(simd_sum(sums[2u * p]), simd_sum(sums[2u * p + 1u]));
        row_sum = lane == p ? sum : row_sum;
    }
{% endif %}
    const uint output = first + 2u * lane;
    if (lane < {{ rows_per_simdgroup // 2 }}u{{ exists }}) {
        const float gate = {{ finished("row_sum.x", "output") }};
        const float up = {{ finished("row_sum.y", "output + 1u") }};
        y[output / 2u] = {{ activation }}(gate) * up;
    }
{% else %}
    // Sum each row over lanes; a lane runs the epilogue of a row.
{% if rows_per_simdgroup == 1 %}
    const float row_sum = simd_sum(sums[0]);
{% else %}
    float row_sum = 0.0f;
    #pragma unroll
    for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
        const float sum = simd_sum(sums[r]);
        row_sum = lane == r ? sum : row_sum;
    }
{% endif %}
    const uint output = first + lane;
    if (lane < {{ rows_per_simdgroup }}u{{ exists }}) {
        y[output] {{ assign }} {{ multiplied("row_sum", "output") }};
    }
{% endif %}
}
