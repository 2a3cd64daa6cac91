{% set element = "half" if operand == "f16" else "float" %}
{% set x_element = element %}
{% set factor = element %}
{% set is_mixed = false %}
{% set vector = element ~ "4" %}
{% set staged = "(threadgroup half*)memory" if element == "half" else "memory" %}
{% set exists = " && output < " ~ outputs ~ "u" if ragged else "" %}
{% set of_row = " / " ~ chosen ~ "u" if gating and chosen > 1 else "" %}
{% set of_planes = "own" %}
{% macro stored_as(values) %}{{ "half4(" ~ values ~ ")" if element == "half" else values }}{% endmacro %}
{% macro biased(sum, output) %}
{{ sum }}{% if bias %} + bias[expert * {{ outputs }}u + {{ output }}]{% endif %}
{%- endmacro %}
// y = {% if gating %}{{ gating }}{{ "(gate) * up" if limit is none else "(gate, up)" }} of gate, up = W
// x{% else %}W x{% endif %} for every pair of a row and one of its {{ chosen }} experts; each expert's W is
// [{{ outputs }}, {{ inputs }}] in
// {{ stored }}{{ ", and its rows alternate gate and up" if gating else "" }}. They are {{ record }} bytes
// apart; `expert_slots` maps experts to cache slots.
//
// A threadgroup computes a tile of up to {{ tile_rows }} pairs of one expert times {{ tile_outputs }}
// outputs, 32 columns at a time. Both are staged in threadgroup memory as
// {{ "f16" if operand == "f16" else "f32" }}, and each of 4 simdgroups multiplies its quarter of the tile as
// 8 by 8 matrices. The grid covers the maximum number of tiles. Tiles without pairs are skipped, and so are
// tiles of experts that are not cached (slot 0xffffffff); another dispatch computes those.
struct {{ args }} {
    uint rows;
};

// grid: ceil((rows * {{ chosen }} + {{ (experts - 1) * (tile_rows - 1) }}) / {{ tile_rows }}), ceil({{ outputs }} / {{ tile_outputs }})
[[max_total_threads_per_threadgroup(128)]]
kernel void {{ name }}(
{% for plane in planes %}
    device const {{ plane.element }}* weight_{{ plane.name }} [[buffer({{ slot() }})]],
{% endfor %}
    device const uint* expert_slots [[buffer({{ slot() }})]],
    device const uint* pairs [[buffer({{ slot() }})]],
    device const uint* tiles [[buffer({{ slot() }})]],
    device const float* x [[buffer({{ slot() }})]],
{% if bias %}
    device const float* bias [[buffer({{ slot() }})]],
{% endif %}
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint own_thread [[thread_index_in_threadgroup]],
    uint quarter [[simdgroup_index_in_threadgroup]]) {
    // The row stride of {{ pitch }} elements avoids bank conflicts. The results replace the tile at the end.
    threadgroup float memory[{{ memory_floats }}];
    threadgroup {{ element }}* tile_weights = {{ staged }};
    threadgroup {{ element }}* tile_x = tile_weights + {{ tile_outputs * pitch }}u;
    // A tile without pairs reads the entry of the first tile and does not use it.
    const uint pairs_of_tile = tiles[group.x * 3u + 2u];
    const uint tile = group.x * min(pairs_of_tile, 1u);
    const uint expert = tiles[tile * 3u];
    const uint cache_slot = expert_slots[expert];
    const uint count = cache_slot == 0xffffffffu ? 0u : pairs_of_tile;
{% include "moe/parts/expert_planes" %}
    device const uint* own_pairs = pairs + tiles[tile * 3u + 1u];
    const uint first_output = group.y * {{ tile_outputs }}u;
{% if has_tensors %}
#if __METAL_VERSION__ >= 400
{% include "matmul/parts/tensors" %}
#else
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

    const uint blocks = min(count, 1u) * {{ blocks }}u;
    for (uint block = 0u; block < blocks; block++) {
{% include "matmul/parts/dequantize_tile" %}
        // The same columns of x for this tile's pairs. Pairs past the last repeat it.
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
            const uint pair = own_pairs[min(row, count - 1u)];
            device const float* source = x + pair{{ of_row }} * {{ inputs }}u;
            const float4 values = {{ load }}(source, block * 32u + column{{ bound }});
            *(threadgroup {{ vector }}*)(tile_x + row * {{ pitch }}u + column) = {{ stored_as("values") }};
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "matmul/parts/multiply" %}
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // Stage results in threadgroup memory, so that rows and outputs past the edges can be skipped.
{% if has_tensors %}
#if __METAL_VERSION__ >= 400
{% include "matmul/parts/store_tensor" %}
#else
{% endif %}
    threadgroup float* own_results = memory + own_row * {{ tile_outputs + 4 }}u + own_output;
    #pragma unroll
    for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
        #pragma unroll
        for (uint j = 0u; j < {{ tile_outputs // 16 }}u; j++) {
            threadgroup float* place = own_results + i * {{ 8 * (tile_outputs + 4) }}u + j * 8u;
            simdgroup_store(sums[i][j], place, {{ tile_outputs + 4 }}ul);
        }
    }
{% if has_tensors %}
#endif
{% endif %}
    threadgroup_barrier(mem_flags::mem_threadgroup);
{% if gating %}
    // Outputs alternate gate and up.
    for (uint i = own_thread; i < {{ tile_rows * tile_outputs // 2 }}u; i += 128u) {
        const uint tile_row = i / {{ tile_outputs // 2 }}u;
        const uint column = i % {{ tile_outputs // 2 }}u * 2u;
{% else %}
    for (uint i = own_thread; i < {{ tile_rows * tile_outputs }}u; i += 128u) {
        const uint tile_row = i / {{ tile_outputs }}u;
        const uint column = i % {{ tile_outputs }}u;
{% endif %}
        const uint output = first_output + column;
        threadgroup const float* sum = memory + tile_row * {{ tile_outputs + 4 }}u + column;
        if (tile_row < count{{ exists }}) {
{% if gating %}
            const float gate = {{ biased("sum[0]", "output") }};
            const float up = {{ biased("sum[1]", "output + 1u") }};
            y[own_pairs[tile_row] * {{ outputs // 2 }}u + output / 2u] = {{ gating }}{% if limit is none %}(gate) * up{% else %}(gate, up, {{ limit }}, {{ sharpness }}){% endif %};
{% else %}
            y[own_pairs[tile_row] * {{ outputs }}u + output] = {{ biased("sum[0]", "output") }};
{% endif %}
        }
    }
}
