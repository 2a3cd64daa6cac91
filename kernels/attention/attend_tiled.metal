{# Multiply-accumulate. With a rounded cache the product may be rounded too. #}
{% macro added(sum, factors) %}
{% if ranged %}add_product_ranged({{ sum }}, {{ factors }}){% else %}simdgroup_multiply_accumulate({{ sum }}, {{ factors }}, {{ sum }}){% endif %}
{%- endmacro %}
{# Stages vectors of a tile. If all threads stage the same small number, they are loaded at once. #}
{% set vectors = tile * padded // step %}
{% set vector = "float" ~ step %}
{% set matrix = "(part + i * " ~ parts ~ "u)" if parts > 1 else "i" %}
{% set capacity = "args.capacity" if ring else "args.context" %}
{% set modulo = " % " ~ ring ~ "u" if ring else "" %}
{% set in_tile = "lane < " ~ tile ~ "u && " if parts > 1 else "" %}
// softmax({{ scale }} * q k) v for many rows. A threadgroup processes 8 rows of one query head, {{ tile }}
// positions at a time. Scores and sums of values are products of 8 by 8 matrices, divided among 4 simdgroups.
// The softmax is online.
//
// Rows of a tile may belong to several slots. Each run of rows of one slot is processed with that slot's
// cache, with the weights of other rows set to 0, so control flow is uniform. A run has its own sums, since 0
// times another slot's values (infinity or NaN) need not be 0.
{% if gates %}
//
// The result is multiplied by the sigmoids of gates.
{% endif %}
{% if ring %}
//
// The cache is a ring: position p is stored at p % {{ ring }}.
{% endif %}
struct {{ args }} {
    uint rows;
    uint context;
{% if ring %}
    uint capacity;
{% endif %}
};

// grid: ceil(rows / 8), {{ query_heads }}
[[max_total_threads_per_threadgroup(128)]]
kernel void {{ name }}(
    device const float* q [[buffer({{ slot() }})]],
    device const {{ element }}* keys [[buffer({{ slot() }})]],
    device const {{ element }}* values [[buffer({{ slot() }})]],
{% if sinks %}
    device const float* sinks [[buffer({{ slot() }})]],
{% endif %}
{% if gates %}
    device const float* gates [[buffer({{ slot() }})]],
{% endif %}
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
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
{% if padded != width %}
    // Channels past the last are zeros.
{% endif %}
    for (uint i = thread_id; i < {{ 8 * padded // step }}u; i += 128u) {
        const uint r = i / {{ padded // step }}u;
        const uint c = i % {{ padded // step }}u * {{ step }}u;
        device const float* source = q + (min(first + r, last) * {{ query_heads }}u + head) * {{ width }}u + c;
{% if padded != width %}
        const {{ vector }} value = c < {{ width }}u ? *(device const {{ vector }}*)source : {{ vector }}(0.0f);
{% else %}
        const {{ vector }} value = *(device const {{ vector }}*)source;
{% endif %}
        *(threadgroup {{ vector }}*)(staged + r * {{ pitch }}u + c) = value;
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

    // This simdgroup's two rows of the softmax.
    uint limit[2];
    float maximum[2];
    float total[2];
    #pragma unroll
    for (uint i = 0u; i < 2u; i++) {
        limit[i] = positions[min(first + simdgroup_id * 2u + i, last)];
{% if sinks %}
        // A sink is a score without a value.
        maximum[i] = sinks[head];
        total[i] = 1.0f;
{% else %}
        maximum[i] = -1.0e38f;
        total[i] = 0.0f;
{% endif %}
    }

    for (uint begin = 0u, end = 0u; begin < 8u; begin = end) {
{% if window %}
        // The next run of rows of one slot, with its first and last positions.
{% else %}
        // The next run of rows of one slot, with its last position.
{% endif %}
        const uint slot = slots[first + begin];
{% if window %}
        uint shortest = 0xffffffffu;
{% endif %}
        uint longest = 0u;
        while (end < 8u && slots[min(first + end, last)] == slot) {
{% if window %}
            shortest = min(shortest, positions[min(first + end, last)]);
{% endif %}
            longest = max(longest, positions[min(first + end, last)]);
            end++;
        }
        const ulong cached_head = ulong(slot) * {{ key_heads }}ul + ulong(head / {{ group }}u);
        device const {{ element }}* cached_keys = keys + cached_head * ulong({{ capacity }}) * {{ kv_stride }}ul;
        device const {{ element }}* cached_values = values + cached_head * ulong({{ capacity }}) * {{ kv_stride }}ul;

        // This simdgroup's channels of the result: every 4th matrix of 8.
        simdgroup_matrix<float, 8, 8> sums[{{ sums_each }}];
        #pragma unroll
        for (uint j = 0u; j < {{ sums_each }}u; j++) {
            sums[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }

{% if window %}
        // Starts at the first position that any row attends to.
        const uint oldest = shortest >= {{ window }}u ? shortest - {{ window - 1 }}u : 0u;
        for (uint start = oldest; start <= longest; start += {{ tile }}u) {
{% else %}
        for (uint start = 0u; start <= longest; start += {{ tile }}u) {
{% endif %}
            // Stage keys; positions past the last repeat it.
{% if vectors == 128 %}
            {
                const uint i = thread_id;
{% elif vectors % 128 == 0 and vectors <= 1024 %}
            #pragma unroll
            for (uint n = 0u; n < {{ vectors // 128 }}u; n++) {
                const uint i = thread_id + n * 128u;
{% else %}
            for (uint i = thread_id; i < {{ vectors }}u; i += 128u) {
{% endif %}
                const uint p = i / {{ padded // step }}u;
                const uint c = i % {{ padded // step }}u * {{ step }}u;
{% if quantized %}
                device const uchar* source = cached_keys + ulong(min(start + p, longest){{ modulo }}) * {{ kv_stride }}ul;
                const float4 value = {{ load }}(source, c, {{ width }}u);
{% else %}
                device const {{ element }}* source = cached_keys + ulong(min(start + p, longest){{ modulo }}) * {{ width }}ul + ulong(c);
{% if padded != width %}
                const {{ vector }} value = c < {{ width }}u ? {{ vector }}(*(device const {{ element }}{{ step }}*)source) : {{ vector }}(0.0f);
{% else %}
                const {{ vector }} value = {{ vector }}(*(device const {{ element }}{{ step }}*)source);
{% endif %}
{% endif %}
                *(threadgroup {{ vector }}*)(staged + p * {{ pitch }}u + c) = value;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);

{% filter indent(4, first=true) %}
{% include "attention/parts/score" %}
{% endfilter %}


            // Stage values in place of the keys.
{% if vectors == 128 %}
            {
                const uint i = thread_id;
{% elif vectors % 128 == 0 and vectors <= 1024 %}
            #pragma unroll
            for (uint n = 0u; n < {{ vectors // 128 }}u; n++) {
                const uint i = thread_id + n * 128u;
{% else %}
            for (uint i = thread_id; i < {{ vectors }}u; i += 128u) {
{% endif %}
                const uint p = i / {{ padded // step }}u;
                const uint c = i % {{ padded // step }}u * {{ step }}u;
{% if quantized %}
                device const uchar* source = cached_values + ulong(min(start + p, longest){{ modulo }}) * {{ kv_stride }}ul;
                const float4 value = {{ load }}(source, c, {{ width }}u);
{% else %}
                device const {{ element }}* source = cached_values + ulong(min(start + p, longest){{ modulo }}) * {{ width }}ul + ulong(c);
{% if padded != width %}
                const {{ vector }} value = c < {{ width }}u ? {{ vector }}(*(device const {{ element }}{{ step }}*)source) : {{ vector }}(0.0f);
{% else %}
                const {{ vector }} value = {{ vector }}(*(device const {{ element }}{{ step }}*)source);
{% endif %}
{% endif %}
                *(threadgroup {{ vector }}*)(staged + p * {{ pitch }}u + c) = value;
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
{% if window %}
                const bool seen = start + lane <= limit[i] && limit[i] - (start + lane) < {{ window }}u;
                const bool live = r >= begin && r < end && {{ in_tile }}seen;
{% else %}
                const bool live = r >= begin && r < end && {{ in_tile }}start + lane <= limit[i];
{% endif %}
{% filter indent(4, first=true) %}
{% include "attention/parts/softmax_update" %}
{% endfilter %}

            }
            threadgroup_barrier(mem_flags::mem_threadgroup);

{% filter indent(4, first=true) %}
{% include "attention/parts/add_values" %}
{% endfilter %}

            threadgroup_barrier(mem_flags::mem_threadgroup);
        }

        // Divide by the denominators and store the run's rows. Rows of later runs are overwritten by those
        // runs.
        #pragma unroll
        for (uint j = 0u; j < {{ sums_each }}u; j++) {
{% if matrices % 4 != 0 %}
            if (simdgroup_id + j * 4u >= {{ matrices }}u) {
                continue;
            }
{% endif %}
            simdgroup_store(sums[j], staged + (simdgroup_id + j * 4u) * 8u, {{ pitch }}ul);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma unroll
        for (uint i = 0u; i < 2u; i++) {
            const uint r = simdgroup_id * 2u + i;
            if (r >= begin && first + r < args.rows) {
                for (uint c = lane; c < {{ width }}u; c += 32u) {
{% if gates %}
                    const float gate = gates[(first + r) * {{ gates.pitch }}u + {{ gates.first }}u + head * {{ width }}u + c];
                    const float mean = staged[r * {{ pitch }}u + c] / total[i];
                    heads[((first + r) * {{ query_heads }}u + head) * {{ width }}u + c] = mean * sigmoid(gate);
{% else %}
                    heads[((first + r) * {{ query_heads }}u + head) * {{ width }}u + c] = staged[r * {{ pitch }}u + c] / total[i];
{% endif %}
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
