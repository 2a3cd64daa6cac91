{% set row_of_t = "t" if x_rows == 2 else "min(t, rows - 1u)" %}
{% set counts = {2: "2", 4: "3 to 8"}[x_rows] if not mma else {4: "2 to 4", 8: "5 to 8", 16: "9 to 16"}[x_rows] %}
{% set exists = "output < " ~ outputs ~ "u" if ragged else "" %}
{% set outputs_each = 2 if activation else 1 %}
{# Norm, bias and unary function of a sum, before the epilogue. #}
{% macro finished(sum, output) %}
{{ before }}{{ sum }}{% if norm or own_norm %} * factor{% endif %}{% if bias %} + bias[{{ output }}]{% endif %}{{ after }}
{%- endmacro %}
{# The sum of output `at` of the threadgroup over the simdgroups that split its columns. #}
{% macro gathered(name, at) %}
{% if split > 1 %}
const uint {{ name }}_place = ({{ at }}) / {{ rows_per_simdgroup }}u * {{ split * rows_per_simdgroup }}u + ({{ at }}) % {{ rows_per_simdgroup }}u;
float {{ name }} = 0.0f;
#pragma unroll
for (uint p = 0u; p < {{ split }}u; p++) {
    {{ name }} += row_partials[{{ name }}_place + p * {{ rows_per_simdgroup }}u];
}
{% else %}
const float {{ name }} = row_partials[{{ at }}];
{% endif %}
{% endmacro %}
{% macro finish() %}
{{ gathered("sum", "local_output") }}
{%- if activation %}
{{ gathered("second", "local_output + 1u") }}
{%- endif %}
{% if activation %}
const float gate = {{ finished("sum", "output") }};
const float up = {{ finished("second", "output + 1u") }};
{% if quantizes %}
next = {{ activation }}(gate) * up;
y[row * {{ outputs // 2 }}u + output / 2u] = next;
{% else %}
y[row * {{ outputs // 2 }}u + output / 2u] = {{ activation }}(gate) * up;
{% endif %}
{% elif add_squares %}
const float value = y[row * {{ outputs }}u + output] + {{ finished("sum", "output") }};
y[row * {{ outputs }}u + output] = value;
{% if add_squares.gain and quantizes %}
next = gain[output] * value;
gained[row * {{ outputs }}u + output] = next;
{% elif add_squares.gain %}
gained[row * {{ outputs }}u + output] = gain[output] * value;
{% elif quantizes %}
next = value;
{% endif %}
square = value * value;
{% elif best %}
const float value = {{ finished("sum", "output") }};
y[row * {{ outputs }}u + output] = value;
key = ordered(value);
{% elif factors %}
y[row * {{ outputs }}u + output] {{ assign }} factors[row * {{ factors_pitch }}u + args.first + output] * ({{ finished("sum", "output") }});
{% else %}
y[row * {{ outputs }}u + output] {{ assign }} {{ finished("sum", "output") }};
{% endif %}
{% endmacro %}
// y = W x for {{ counts }} rows of x; W is [{{ outputs }}, {{ inputs }}] in {{ stored }}.
//
// A threadgroup computes {{ x_rows }} rows of x, so that each weight is loaded and decoded once for all of
// them. The sums of a row are added in the same order as by the kernel for one row, with the same split of
// the columns, so that results are bitwise identical to its.{{ " Rows past the last repeat it." if x_rows > 2 and not mma else "" }}
struct {{ args }} {
    uint rows;
{% if factors %}
    uint first;
{% endif %}
};

// grid: ceil(rows / {{ x_rows }}), ceil({{ outputs }} / {{ group_outputs }})
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% for plane in planes %}
    device const {{ plane.element }}* weight_{{ plane.name }} [[buffer({{ slot() }})]],
{% endfor %}
{% if bias %}
    device const float* bias [[buffer({{ slot() }})]],
{% endif %}
{% if codes %}
    device const uint* quantized_x [[buffer({{ slot() }})]],
{% if own_norm %}
    device const float* squares_of_x [[buffer({{ slot() }})]],
{% endif %}
{% else %}
    device const float* x [[buffer({{ slot() }})]],
{% if own_norm and own_norm.gain %}
    device const float* x_gain [[buffer({{ slot() }})]],
{% endif %}
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
{% if quantizes %}
    device uint* quantized_y [[buffer({{ slot() }})]],
{% endif %}
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group_position [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    // The sums of {{ x_rows }} rows of x.
    threadgroup float partials[{{ x_rows * simdgroups * rows_per_simdgroup }}];
{% if own_norm and not codes %}
    threadgroup float squares_of_x[{{ x_rows * split }}];  // by row, then by part of the columns
{% endif %}
    const uint first_row = group_position.x * {{ x_rows }}u;
{% if x_rows == 2 %}
    const uint rows = 2u;
{% else %}
    const uint rows = min(args.rows - first_row, {{ x_rows }}u);
{% endif %}
    const uint group = group_position.y;
{% if split > 1 %}
    const uint first = group * {{ group_outputs }}u + simdgroup_id / {{ split }}u * {{ rows_per_simdgroup }}u;
    const uint part = simdgroup_id % {{ split }}u;
{% else %}
    const uint first = group * {{ group_outputs }}u + simdgroup_id * {{ rows_per_simdgroup }}u;
{% endif %}

{% include "matmul/parts/" ~ body %}

{% if codes %}
    // Sum each row of W over blocks.
    #pragma unroll
    for (uint q = 0u; q < {{ x_rows // 4 }}u; q++) {
        threadgroup float* row_partials = partials + ((4u * q + quarter) * {{ simdgroups }}u + simdgroup_id) * {{ rows_per_simdgroup }}u;
        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup // 8 }}u; r++) {
            const uint tile = r / 2u;
            const uint half_of = r % 2u;
            row_partials[r * 8u + own_row] = (sums[q][tile][0][half_of] + sums[q][tile][1][half_of])
                + (sums[q][tile][2][half_of] + sums[q][tile][3][half_of]);
        }
    }
{% elif float_mma %}
    #pragma unroll
    for (uint q = 0u; q < {{ x_rows // 4 }}u; q++) {
        threadgroup float* row_partials = partials + ((4u * q + quarter) * {{ simdgroups }}u + simdgroup_id) * {{ rows_per_simdgroup }}u;
        #pragma unroll
        for (uint tile = 0u; tile < {{ rows_per_simdgroup // 16 }}u; tile++) {
            const float4 sum = sums[0][q][tile] + sums[1][q][tile];
            row_partials[tile * 16u + own_row] = sum.x + sum.y;
            row_partials[tile * 16u + 8u + own_row] = sum.z + sum.w;
        }
{% if own_norm %}
        if (quarter == 0u && own_row % 2u == 0u && simdgroup_id < {{ split }}u) {
            squares_of_x[(4u * q + own_row / 2u) * {{ split }}u + {{ "part" if split > 1 else "0u" }}] = squares_of_own[q];
        }
{% endif %}
    }
{% else %}
    // Sum each row of W over lanes.
    #pragma unroll
    for (uint t = 0u; t < {{ x_rows }}u; t++) {
        threadgroup float* row_partials = partials + (t * {{ simdgroups }}u + simdgroup_id) * {{ rows_per_simdgroup }}u;
        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
            const float sum = simd_sum(sums[t][r]);
            if (lane == 0u) {
                row_partials[r] = sum;
            }
        }
{% if own_norm %}
        const float square_of_x = simd_sum(squared[t]);
        if (lane == 0u && simdgroup_id < {{ split }}u) {
            squares_of_x[t * {{ split }}u + {{ "part" if split > 1 else "0u" }}] = square_of_x;
        }
{% endif %}
    }
{% endif %}
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // A simdgroup runs the epilogue of a row of x.
    for (uint t = simdgroup_id; t < rows; t += {{ simdgroups }}u) {
        const uint row = first_row + t;
        threadgroup const float* row_partials = partials + t * {{ simdgroups * rows_per_simdgroup }}u;
{% if norm %}
        // Divisor of the norm.
        {{ squares_vector }} squared = {{ squares_vector }}(0.0f);
{% if squares_vector == "float4" %}
        device const float4* row_squares = (device const float4*)(squares + row * {{ norm.partials }}u);
{% else %}
        device const float* row_squares = squares + row * {{ norm.partials }}u;
{% endif %}
        for (uint i = lane; i < {{ squares_count }}u; i += 32u) {
            squared += row_squares[i];
        }
{% if squares_vector == "float4" %}
        const float square_of_x = simd_sum(squared.x + squared.y + squared.z + squared.w);
{% else %}
        const float square_of_x = simd_sum(squared);
{% endif %}
        const float factor = rsqrt(square_of_x / {{ inputs_float }} + {{ norm.epsilon }});
{% elif own_norm %}
        // Divisor of the norm.
{% if split > 1 %}
        float square_of_x = 0.0f;
        #pragma unroll
        for (uint p = 0u; p < {{ split }}u; p++) {
            square_of_x += squares_of_x[{{ "row" if codes else "t" }} * {{ split }}u + p];
        }
{% else %}
        const float square_of_x = squares_of_x[{{ "row" if codes else "t" }}];
{% endif %}
        const float factor = rsqrt(square_of_x / {{ inputs_float }} + {{ own_norm.epsilon }});
{% endif %}
{% if add_squares or best %}
{% if add_squares %}
        float square = 0.0f;
{% if quantizes %}
        float next = 0.0f;
{% endif %}
{% else %}
        uint key = 0u;
{% endif %}
        const uint local_output = lane;
        const uint output = group * {{ group_outputs }}u + local_output;
{% if group_outputs < 32 %}
        if (local_output < {{ group_outputs }}u{{ " && " ~ exists if exists else "" }}) {
            {{ finish()|indent(12) }}
        }
{% elif exists %}
        if ({{ exists }}) {
            {{ finish()|indent(12) }}
        }
{% else %}
        {{ finish()|indent(8) }}
{% endif %}
{% if add_squares %}
        square = simd_sum(square);
        if (lane == 0u) {
            squares_out[row * {{ add_squares.partials }}u + group] = square;
        }
{% if quantizes %}
        store_quantized(quantized_y, {{ outputs // 128 }}u, row, group, lane, next);
{% endif %}
{% if grid < add_squares.partials %}
        // Partial sums without a threadgroup.
        if (group == {{ grid - 1 }}u) {
            for (uint i = {{ grid }}u + lane; i < {{ add_squares.partials }}u; i += 32u) {
                squares_out[row * {{ add_squares.partials }}u + i] = 0.0f;
            }
        }
{% endif %}
{% else %}
        const uint highest = simd_max(key);
        const uint lowest = simd_min(key == highest ? output : 0xffffffffu);
        if (lane == 0u) {
            candidates[row * {{ 2 * candidates_count }}u + 2u * group] = highest;
            candidates[row * {{ 2 * candidates_count }}u + 2u * group + 1u] = lowest;
        }
{% endif %}
{% elif quantizes %}
        const uint local_output = 2u * lane;
        const uint output = group * {{ group_outputs }}u + local_output;
        float next;
        {{ finish()|indent(8) }}
        store_quantized(quantized_y, {{ outputs // 256 }}u, row, group, lane, next);
{% else %}
        for (uint local_output = {{ outputs_each }}u * lane; local_output < {{ group_outputs }}u; local_output += {{ 32 * outputs_each }}u) {
            const uint output = group * {{ group_outputs }}u + local_output;
{% if exists %}
            if ({{ exists }}) {
                {{ finish()|indent(16) }}
            }
{% else %}
            {{ finish()|indent(12) }}
{% endif %}
        }
{% endif %}
    }
}
