{# Multiply-accumulate. With a rounded cache the product may be rounded too. #}
{% macro added(sum, factors) %}
{% if ranged %}add_product_ranged({{ sum }}, {{ factors }}){% else %}simdgroup_multiply_accumulate({{ sum }}, {{ factors }}, {{ sum }}){% endif %}
{%- endmacro %}
{% macro vector(step) %}{{ "float" ~ step if step > 1 else "float" }}{% endmacro %}
{# Channels of a key or a query from `c` on: those of its head, those with RoPE, then zeros. #}
{% macro joined(plain, head_rope) %}
        {{ vector(key_step) }} value = {{ vector(key_step) }}(0.0f);
        if (c < {{ keys }}u) {
            value = *(device const {{ vector(key_step) }}*)({{ plain }} + c);
        } else {% if padded != keys + rope_width %}if (c < {{ keys + rope_width }}u) {% endif %}{
            value = *(device const {{ vector(key_step) }}*)({{ head_rope }} + c - {{ keys }}u);
        }
{%- endmacro %}
{% set matrix = "(part + i * " ~ parts ~ "u)" if parts > 1 else "i" %}
{% set in_tile = "lane < " ~ tile ~ "u && " if parts > 1 else "" %}
// MLA attention in expanded form: softmax({{ scale }} * (q k + r t)) v for many rows of one slot, over one KV
// tile. Each head has its own keys k of {{ keys }} channels and values v of {{ values }}; all {{ heads }}
// heads share the RoPE keys t of {{ rope_width }}. A threadgroup processes 8 rows of one head, {{ tile }}
// positions at a time. Scores and sums of values are products of 8 by 8 matrices, divided among 4 simdgroups.
// The softmax is online.
//
// It continues from tile to tile: `heads` is the output over the positions so far, and `carried` the maximum
// of the scores and the denominator.
struct {{ args }} {
    uint rows;
    uint begin;
    uint end;
};

// grid: ceil(rows / 8), {{ heads }}
[[max_total_threads_per_threadgroup(128)]]
kernel void {{ name }}(
    device const float* q [[buffer({{ slot() }})]],
    device const float* q_rope [[buffer({{ slot() }})]],
    device const float* keys [[buffer({{ slot() }})]],
    device const float* k_rope [[buffer({{ slot() }})]],
    device const float* values [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    device float* carried [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float staged[{{ tile * pitch }}];  // queries, keys or values, {{ pitch }} floats per row
    threadgroup float scores[288];  // 8 rows of 32 and 4 of padding: scores, then weights
    threadgroup float decay[64];  // diagonal matrix with the scale of each row's sums
    const uint first = group.x * 8u;
    const uint last = args.rows - 1u;
    const uint head = group.y;

    // Stage the queries; rows past the last repeat it.
    for (uint i = thread_id; i < {{ 8 * padded // key_step }}u; i += 128u) {
        const uint r = i / {{ padded // key_step }}u;
        const uint c = i % {{ padded // key_step }}u * {{ key_step }}u;
        const uint row = min(first + r, last);
{{ joined("q + row * " ~ queries_pitch ~ "u + head * " ~ keys ~ "u", "q_rope + (row * " ~ heads ~ "u + head) * " ~ rope_width ~ "u") }}
        *(threadgroup {{ vector(key_step) }}*)(staged + r * {{ pitch }}u + c) = value;
    }
    if (thread_id < 64u) {
        decay[thread_id] = 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

{% if parts > 1 %}
    // This simdgroup's part of q k: 8 positions and one of {{ parts }} parts of the channels.
    const uint own_positions = simdgroup_id % {{ tile // 8 }}u * 8u;
    const uint part = simdgroup_id / {{ tile // 8 }}u;
{% else %}
    // This simdgroup's part of q k: 8 positions.
    const uint own_positions = simdgroup_id * 8u;
{% endif %}
    simdgroup_matrix<float, 8, 8> queries[{{ queries_each }}];
    #pragma unroll
    for (uint i = 0u; i < {{ queries_each }}u; i++) {
{% if matrices % parts != 0 %}
        if ({{ matrix }} >= {{ matrices }}u) {
            continue;
        }
{% endif %}
        simdgroup_load(queries[i], staged + {{ matrix }} * 8u, {{ pitch }}ul);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // This simdgroup's two rows of the softmax, with the state of earlier tiles. A lane reads the carried
    // values that it writes.
    uint limit[2];
    float maximum[2];
    float total[2];
    #pragma unroll
    for (uint i = 0u; i < 2u; i++) {
        const uint r = simdgroup_id * 2u + i;
        const uint at = (first + r) * {{ heads }}u + head;
        const bool goes_on = args.begin > 0u && first + r < args.rows;
        limit[i] = min(positions[min(first + r, last)] + 1u, args.end);
        maximum[i] = simd_max(goes_on && lane == 0u ? carried[2u * at] : -1.0e38f);
        total[i] = simd_sum(goes_on && lane == 0u ? carried[2u * at + 1u] : 0.0f);
        for (uint c = lane; c < {{ value_padded }}u; c += 32u) {
{% if value_padded != values %}
            const bool is_there = goes_on && c < {{ values }}u;
            staged[r * {{ pitch }}u + c] = is_there ? heads[at * {{ values }}u + c] * total[i] : 0.0f;
{% else %}
            staged[r * {{ pitch }}u + c] = goes_on ? heads[at * {{ values }}u + c] * total[i] : 0.0f;
{% endif %}
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // This simdgroup's channels of the result: every 4th matrix of 8.
    simdgroup_matrix<float, 8, 8> sums[{{ sums_each }}];
    #pragma unroll
    for (uint j = 0u; j < {{ sums_each }}u; j++) {
{% if value_matrices % 4 != 0 %}
        if (simdgroup_id + j * 4u >= {{ value_matrices }}u) {
            continue;
        }
{% endif %}
        simdgroup_load(sums[j], staged + (simdgroup_id + j * 4u) * 8u, {{ pitch }}ul);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Positions of the KV tile that any row attends to.
    uint longest = 0u;
    for (uint r = 0u; r < 8u; r++) {
        longest = max(longest, min(positions[min(first + r, last)] + 1u, args.end));
    }
    for (uint start = args.begin; start < longest; start += {{ tile }}u) {
        // Stage keys; positions past the last repeat it.
        for (uint i = thread_id; i < {{ tile * padded // key_step }}u; i += 128u) {
            const uint p = i / {{ padded // key_step }}u;
            const uint c = i % {{ padded // key_step }}u * {{ key_step }}u;
            const uint row = min(start + p, longest - 1u) - args.begin;
{{ joined("keys + (row * " ~ heads ~ "u + head) * " ~ keys ~ "u", "k_rope + row * " ~ rope_width ~ "u") | indent(4, true) }}
            *(threadgroup {{ vector(key_step) }}*)(staged + p * {{ pitch }}u + c) = value;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "attention/parts/score" %}

        // Stage values in place of the keys.
        for (uint i = thread_id; i < {{ tile * value_padded // value_step }}u; i += 128u) {
            const uint p = i / {{ value_padded // value_step }}u;
            const uint c = i % {{ value_padded // value_step }}u * {{ value_step }}u;
            const uint row = min(start + p, longest - 1u) - args.begin;
            device const float* source = values + (row * {{ heads }}u + head) * {{ values }}u + c;
{% if value_padded != values %}
            const {{ vector(value_step) }} value = c < {{ values }}u ? *(device const {{ vector(value_step) }}*)source : {{ vector(value_step) }}(0.0f);
{% else %}
            const {{ vector(value_step) }} value = *(device const {{ vector(value_step) }}*)source;
{% endif %}
            *(threadgroup {{ vector(value_step) }}*)(staged + p * {{ pitch }}u + c) = value;
        }
{% if parts > 1 %}
        // Meanwhile convert scores to softmax weights: a lane has one position and sums the parts of
        // {{ parts }} simdgroups.
{% else %}
        // Meanwhile convert scores to softmax weights: a lane has one position.
{% endif %}
        #pragma unroll
        for (uint i = 0u; i < 2u; i++) {
            const uint r = simdgroup_id * 2u + i;
            float score = scores[r * 36u + lane];
{% for distance in distances %}
            score += simd_shuffle_xor(score, ushort({{ distance }}));
{% endfor %}
            const bool live = {{ in_tile }}start + lane < limit[i];
{% include "attention/parts/softmax_update" %}
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "attention/parts/add_values" %}
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // Output of existing rows so far: sums divided by the denominators.
    #pragma unroll
    for (uint j = 0u; j < {{ sums_each }}u; j++) {
{% if value_matrices % 4 != 0 %}
        if (simdgroup_id + j * 4u >= {{ value_matrices }}u) {
            continue;
        }
{% endif %}
        simdgroup_store(sums[j], staged + (simdgroup_id + j * 4u) * 8u, {{ pitch }}ul);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    #pragma unroll
    for (uint i = 0u; i < 2u; i++) {
        const uint r = simdgroup_id * 2u + i;
        if (first + r < args.rows) {
            const uint at = (first + r) * {{ heads }}u + head;
            for (uint c = lane; c < {{ values }}u; c += 32u) {
                heads[at * {{ values }}u + c] = staged[r * {{ pitch }}u + c] / total[i];
            }
            if (lane == 0u) {
                carried[2u * at] = maximum[i];
                carried[2u * at + 1u] = total[i];
            }
        }
    }
}
