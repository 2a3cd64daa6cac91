{% set exists = "first_row + row < args.rows" ~ (" && output < " ~ outputs ~ "u" if ragged else "") %}
{% set packet = "block" if per_block == 1 else "block * " ~ per_block ~ "u + part" %}
{# What becomes of a sum before the epilogue. #}
{% macro finished(sum, output) %}
{% if softcap %}{{ softcap }} * precise::tanh(({% endif %}
{{- sum }}{% if bias %} + bias[{{ output }}]{% endif %}
{%- if softcap %}) / {{ softcap }}){% endif %}
{%- endmacro %}
// y = W x for many rows of x; W is [{{ outputs }}, {{ inputs }}] in {{ stored }}.
//
// A threadgroup computes {{ tile_rows }} rows of x times {{ tile_outputs }} outputs, 32 columns at a time: both are staged in threadgroup
// memory as f32, and each of 4 simdgroups multiplies its quarter of the tile in 8 x 8 matrices.
struct {{ args }} {
    uint rows;
};

// grid: ceil(rows / {{ tile_rows }}), ceil({{ outputs }} / {{ tile_outputs }})
[[max_total_threads_per_threadgroup(128)]]
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
    uint simdgroup_id [[simdgroup_index_in_threadgroup]]) {
    // Rows of {{ pitch }} floats, so that neighbours start in other banks. The results take the tile's place at the end.
    threadgroup float tile[{{ tile_floats }}];
    threadgroup float* tile_weights = tile;
    threadgroup float* tile_x = tile + {{ tile_outputs * pitch }}u;
    const uint first_row = group.x * {{ tile_rows }}u;
    const uint first_output = group.y * {{ tile_outputs }}u;
    const uint own_row = simdgroup_id / 2u * {{ tile_rows // 2 }}u;
    const uint own_output = simdgroup_id % 2u * {{ tile_outputs // 2 }}u;

    simdgroup_matrix<float, 8, 8> sums[{{ tile_rows // 16 }}][{{ tile_outputs // 16 }}];
    #pragma unroll
    for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
        #pragma unroll
        for (uint j = 0u; j < {{ tile_outputs // 16 }}u; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }

    for (uint block = 0u; block < {{ blocks }}u; block++) {
        // Decode 32 columns of {{ tile_outputs }} rows of W.
{% if ragged %}
        // Rows past the last repeat it.
{% endif %}
        for (uint i = thread_id; i < {{ tile_outputs * per_block }}u; i += 128u) {
{% if per_block > 1 %}
            const uint output = i / {{ per_block }}u;
            const uint part = i % {{ per_block }}u;
{% else %}
            const uint output = i;
{% endif %}
{% if ragged %}
            const uint row = min(first_output + output, {{ outputs - 1 }}u);
{% else %}
            const uint row = first_output + output;
{% endif %}
            float4 weights[{{ vectors }}];
            {{ decoder }}_decode(weight_{{ planes[0].name }}[row * {{ stride }}u + {{ packet }}], weights);
{% if scaled %}
{% if offset %}
            const float2 scale = float2(weight_scales[row * {{ groups }}u + block{% if per_group > per_block %} / {{ per_group // per_block }}u{% endif %}]);
{% else %}
            const float scale = float(weight_scales[row * {{ groups }}u + block]);
{% endif %}
{% endif %}
{% if per_block > 1 %}
            threadgroup float* target = tile_weights + output * {{ pitch }}u + part * {{ columns }}u;
{% else %}
            threadgroup float* target = tile_weights + output * {{ pitch }}u;
{% endif %}
            #pragma unroll
            for (uint v = 0u; v < {{ vectors }}u; v++) {
                *(threadgroup float4*)(target + 4u * v) = weights[v]{% if offset %} * scale.x + scale.y{% elif scaled %} * scale{% endif %};
            }
        }
        // The same columns of {{ tile_rows }} rows of x. Rows past the last repeat it.
        for (uint i = thread_id; i < {{ tile_rows * 8 }}u; i += 128u) {
            const uint row = i / 8u;
            const uint column = i % 8u * 4u;
            device const float* source = x + min(first_row + row, args.rows - 1u) * {{ inputs }}u;
            *(threadgroup float4*)(tile_x + row * {{ pitch }}u + column) = {{ load }}(source, block * 32u + column{{ bound }});
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // Multiply.
        #pragma unroll
        for (uint k = 0u; k < 32u; k += 8u) {
            simdgroup_matrix<float, 8, 8> left[{{ tile_rows // 16 }}];
            #pragma unroll
            for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
                simdgroup_load(left[i], tile_x + (own_row + i * 8u) * {{ pitch }}u + k, {{ pitch }}ul);
            }
            #pragma unroll
            for (uint j = 0u; j < {{ tile_outputs // 16 }}u; j++) {
                threadgroup float* source = tile_weights + (own_output + j * 8u) * {{ pitch }}u + k;
                simdgroup_matrix<float, 8, 8> right;
                simdgroup_load(right, source, {{ pitch }}ul, ulong2(0ul, 0ul), true);
                #pragma unroll
                for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
                    simdgroup_multiply_accumulate(sums[i][j], left[i], right, sums[i][j]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // Results to threadgroup memory, whence they can be told apart from those past the edges.
    #pragma unroll
    for (uint i = 0u; i < {{ tile_rows // 16 }}u; i++) {
        #pragma unroll
        for (uint j = 0u; j < {{ tile_outputs // 16 }}u; j++) {
            const uint place = (own_row + i * 8u) * {{ tile_outputs + 4 }}u + own_output + j * 8u;
            simdgroup_store(sums[i][j], tile + place, {{ tile_outputs + 4 }}ul);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

{% if activation %}
    // Outputs alternate gate, up.
    for (uint i = thread_id; i < {{ tile_rows * tile_outputs // 2 }}u; i += 128u) {
        const uint row = i / {{ tile_outputs // 2 }}u;
        const uint column = i % {{ tile_outputs // 2 }}u * 2u;
        const uint output = first_output + column;
        if ({{ exists }}) {
            const uint at = row * {{ tile_outputs + 4 }}u + column;
            const float gate = {{ finished("tile[at]", "output") }};
            const float up = {{ finished("tile[at + 1u]", "output + 1u") }};
            y[(first_row + row) * {{ outputs // 2 }}u + output / 2u] = {{ activation }}(gate) * up;
        }
    }
{% else %}
    for (uint i = thread_id; i < {{ tile_rows * tile_outputs }}u; i += 128u) {
        const uint row = i / {{ tile_outputs }}u;
        const uint column = i % {{ tile_outputs }}u;
        const uint output = first_output + column;
        if ({{ exists }}) {
            const float sum = tile[row * {{ tile_outputs + 4 }}u + column];
            y[(first_row + row) * {{ outputs }}u + output] {{ assign }} {{ finished("sum", "output") }};
        }
    }
{% endif %}
}
