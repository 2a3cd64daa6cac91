{# Weights in bf16 are staged as their bits. Only then is a factor of products of another type. #}
{% set element = "float" if operand in ("f32", "ranged") else "ushort" if format == "bf16" else "half" %}
{% set factor = "float" if element == "ushort" else element %}
{% set x_element = "half" if operand == "f16" else "float" %}
{% set vector = element ~ "4" %}
{% set staged = "memory" if element == "float" else "(threadgroup " ~ element ~ "*)memory" %}
{% set is_mixed = factor != x_element %}
{% set names = {"float": "f32", "half": "f16", "ushort": "bf16"} %}
{% set x_block = "(start + k_split)" if clamped else "block" %}
{% set of_planes = "weight" %}
{# Bias and unary function of a sum, before the epilogue. #}
{% macro finished(sum, output) %}
{{ before }}{{ sum }}{% if bias %} + bias[{{ output }}]{% endif %}{{ after }}
{%- endmacro %}
{% macro stored_as(values) %}{{ "half4(" ~ values ~ ")" if element == "half" else values }}{% endmacro %}
{# Writes this simdgroup's sums to threadgroup memory, adding to the content if there is any. #}
{% macro store(adds) %}
threadgroup float* own_results = memory + {{ "" if parts > 1 else "own_row * " ~ (tile_outputs + 4) ~ "u + " }}own_output;
#pragma unroll
for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
    #pragma unroll
    for (uint j = 0u; j < {{ tile_outputs // 16 }}u; j++) {
        threadgroup float* place = own_results + i * {{ 8 * (tile_outputs + 4) }}u + j * 8u;
{% if adds %}
        simdgroup_matrix<float, 8, 8> other;
        simdgroup_load(other, place, {{ tile_outputs + 4 }}ul);
        sums[i][j].thread_elements()[0] += other.thread_elements()[0];
        sums[i][j].thread_elements()[1] += other.thread_elements()[1];
{% endif %}
        simdgroup_store(sums[i][j], place, {{ tile_outputs + 4 }}ul);
    }
}
{% endmacro %}
{# Stages results in threadgroup memory, so that those past the edges can be skipped, and writes y. #}
{% macro results() %}
{% if split > 1 %}
{% set first_part = " && own_row == begin" if parts > 1 else "" %}
if (k_split == 1u{{ first_part }}) {
    {{ store(false)|indent(4) }}
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (k_split == 0u{{ first_part }}) {
    {{ store(true)|indent(4) }}
}
{% else %}
{% if has_tensors %}
#if __METAL_VERSION__ >= 400
{% include "matmul/parts/store_tensor" %}
#else
{% endif %}
{% if parts > 1 %}
if (own_row == begin) {
    {{ store(false)|indent(4) }}
}
{% else %}
{{ store(false) }}
{%- endif %}
{% if has_tensors %}
#endif
{% endif %}
{% endif %}
threadgroup_barrier(mem_flags::mem_threadgroup);
{% if activation %}
// Outputs alternate gate and up.
for (uint i = thread_id; i < {{ part_rows * tile_outputs // 2 }}u; i += {{ threads }}u) {
    const uint tile_row = i / {{ tile_outputs // 2 }}u;
    const uint column = i % {{ tile_outputs // 2 }}u * 2u;
{% else %}
for (uint i = thread_id; i < {{ part_rows * tile_outputs }}u; i += {{ threads }}u) {
    const uint tile_row = i / {{ tile_outputs }}u;
    const uint column = i % {{ tile_outputs }}u;
{% endif %}
    const uint row = first_row + tile_row{{ " + begin" if parts > 1 else "" }};
    const uint output = first_output + column;
    threadgroup const float* sum = memory + tile_row * {{ tile_outputs + 4 }}u + column;
    if (row < args.rows{% if ragged %} && output < {{ outputs }}u{% endif %}) {
{% if activation %}
        const float gate = {{ finished("sum[0]", "output") }};
        const float up = {{ finished("sum[1]", "output + 1u") }};
        y[row * {{ outputs // 2 }}u + output / 2u] = {{ activation }}(gate) * up;
{% else %}
        y[row * {{ outputs }}u + output] {{ assign }} {{ finished("sum[0]", "output") }};
{% endif %}
    }
}
{% endmacro %}
// y = W x for many rows of x; W is [{{ outputs }}, {{ inputs }}] in {{ stored }}.
//
// A threadgroup computes {{ tile_rows }} rows of x times {{ tile_outputs }} outputs, 32 columns at a time.
// Both are staged in threadgroup memory as {{ names[element] }}{{ ", x as " ~ names[x_element] if x_element != element else "" }}, and each of 4
// simdgroups multiplies its quarter of the tile as 8 by 8 matrices.
{% if split > 1 %}
// Two such groups of simdgroups share the tile; each processes every second block of 32 columns.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: ceil(rows / {{ tile_rows }}), ceil({{ outputs }} / {{ tile_outputs }})
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
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]]{{ "," if element == "ushort" else ") {" }}
{% if element == "ushort" %}
    uint lane [[thread_index_in_simdgroup]]) {
{% endif %}
    // The row stride of {{ pitch }} elements avoids bank conflicts. The results replace the tile at the end.
    threadgroup float memory[{{ memory_floats }}];
{% if split > 1 %}
    const uint k_split = simdgroup_id / 4u;
    const uint quarter = simdgroup_id % 4u;
    const uint own_thread = thread_id % 128u;
    threadgroup {{ element }}* tile_weights = {{ staged }} + k_split * {{ staged_elements }}u;
{% else %}
    const uint own_thread = thread_id;
    threadgroup {{ element }}* tile_weights = {{ staged }};
{% endif %}
{% if x_element != element %}
    threadgroup {{ x_element }}* tile_x = (threadgroup {{ x_element }}*)(tile_weights + {{ tile_outputs * pitch }}u);
{% else %}
    threadgroup {{ x_element }}* tile_x = tile_weights + {{ tile_outputs * pitch }}u;
{% endif %}
    const uint first_row = group.x * {{ tile_rows }}u;
    const uint first_output = group.y * {{ tile_outputs }}u;
{% if has_tensors %}
#if __METAL_VERSION__ >= 400
{% include "matmul/parts/tensors" %}
#else
{% endif %}
{% if element == "ushort" %}
    // A lane's row of a matrix, and the first of its two columns.
    const uint line = ((lane >> 2u) & 4u) + ((lane >> 1u) & 3u);
    const uint pair = ((lane >> 2u) & 2u) * 2u + (lane & 1u) * 2u;
{% endif %}
{% if split == 1 %}
    const uint quarter = simdgroup_id;
{% endif %}
    const uint own_row = quarter / 2u * {{ tile_rows // 2 }}u;
    const uint own_output = quarter % 2u * {{ tile_outputs // 2 }}u;

    simdgroup_matrix<float, 8, 8> sums[{{ tile_rows // 16 }}][{{ tile_outputs // 16 }}];
    #pragma unroll
    for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
        #pragma unroll
        for (uint j = 0u; j < {{ tile_outputs // 16 }}u; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
{% if has_tensors %}
#endif
{% endif %}

{% if split > 1 %}
    for (uint start = 0u; start < {{ blocks }}u; start += {{ split }}u) {
{% if clamped %}
        // Past the last 32 columns x is 0, and W repeats the last block.
        const uint block = min(start + k_split, {{ blocks - 1 }}u);
{% else %}
        const uint block = start + k_split;
{% endif %}
{% else %}
    for (uint block = 0u; block < {{ blocks }}u; block++) {
{% endif %}
{% include "matmul/parts/dequantize_tile" %}
        // The same columns of {{ tile_rows }} rows of x. Rows past the last repeat it.
{% if tile_rows == 16 %}
        {
            const uint i = own_thread;
{% else %}
        #pragma unroll
        for (uint n = 0u; n < {{ tile_rows // 16 }}u; n++) {
            const uint i = own_thread + n * 128u;
{% endif %}
            const uint row = i / 8u;
            const uint column = i % 8u * 4u;
            device const float* source = x + min(first_row + row, args.rows - 1u) * {{ inputs }}u;
            const float4 values = {{ load }}(source, {{ x_block }} * 32u + column{{ bound }});
            *(threadgroup {{ x_element }}4*)(tile_x + row * {{ tile_x_pitch }}u + column) = {{ "half4(values)" if x_element == "half" else "values" }};
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "matmul/parts/multiply" %}
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // Stage results in threadgroup memory, so that rows and outputs past the edges can be skipped.
{% if split > 1 %}
    // The second group of simdgroups writes its results, then the first adds its own.
{% endif %}
{% if parts > 1 %}
    for (uint begin = 0u; begin < {{ tile_rows }}u; begin += {{ part_rows }}u) {
        {{ results()|indent(8) }}
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
{% else %}
    {{ results()|indent(4) }}
{% endif %}
}
