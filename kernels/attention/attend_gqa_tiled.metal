{% set vectors = tile * padded // step %}
{% set each = (vectors + 127) // 128 %}
{% set vector = staged ~ step %}
{% set zeros = vector ~ ("(0.0h)" if staged == "half" else "(0.0f)") %}
{% set capacity = "args.capacity" if ring else "args.context" %}
{% set modulo = " % " ~ ring ~ "u" if ring else "" %}
{% set factor = scale if softcap else scale_base_2 %}
{% set add = "add_strip_ranged" if quantized else "add_strip" %}
{# A vector of a cached position. #}
{% macro cached(of) %}
{% if quantized %}{{ load }}({{ of }} + place, c, {{ width }}u)
{%- elif padded != width %}c < {{ width }}u ? *(device const {{ vector }}*)({{ of }} + place + c) : {{ zeros }}
{%- else %}*(device const {{ vector }}*)({{ of }} + place + c)
{%- endif %}
{% endmacro %}
{# Loads keys and values of a tile from memory to registers. #}
{% macro load_tile(start) %}
#pragma unroll
for (uint n = 0u; n < {{ each }}u; n++) {
    const uint i = thread_id + n * 128u;
    const uint p = min({{ start }} + i / {{ padded // step }}u, longest){{ modulo }};
    const uint c = i % {{ padded // step }}u * {{ step }}u;
    const ulong place = ulong(p) * {{ kv_stride }}ul;
    key[n] = {{ cached("cached_keys") }};
    value[n] = {{ cached("cached_values") }};
}
{% endmacro %}
// softmax({{ scale }} * q k) v for many rows. A query row is a row of one head. A threadgroup processes
// {{ lines }} query rows: {{ rows_each }} rows of {{ heads_each }} query heads that share a KV head. It
// processes {{ tile }} positions at a time, and all query rows use the staged keys and values.
//
// A simdgroup has 16 query rows, as two 8 by 8 matrices for each 8 channels or positions; only keys and
// values are shared between simdgroups. The next tile is loaded while the current one is multiplied. The
// softmax is online and uses powers of 2, with scores scaled accordingly. In row `line` of a matrix a lane
// has columns `pair` and `pair + 1`.
//
// Rows of a tile may belong to several slots. Each run of rows of one slot is processed with that slot's
// cache, from its first position. Results of other rows are discarded.
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

// grid: ceil(rows / {{ rows_each }}), {{ query_heads // heads_each }}
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
    threadgroup {{ staged }} staged_keys[{{ tile * pitch }}];  // {{ pitch }} elements per position; values likewise
    threadgroup {{ staged }} staged_values[{{ tile * pitch }}];
    const uint first = group.x * {{ rows_each }}u;
    const uint last = args.rows - 1u;
    const uint line = ((lane >> 2u) & 4u) + ((lane >> 1u) & 3u);
    const uint pair = ((lane >> 2u) & 2u) * 2u + (lane & 1u) * 2u;

    // This lane's two query rows: row of the tile, head, last position that they attend to, and scaled
    // queries.
{% if padded != width %}
    // Channels past the last are zeros.
{% endif %}
    uint row[2];
    uint head[2];
    uint limit[2];
    simdgroup_matrix<float, 8, 8> queries[2][{{ matrices }}];
    #pragma unroll
    for (uint i = 0u; i < 2u; i++) {
        const uint query_row = simdgroup_id * 16u + i * 8u + line;
        row[i] = query_row / {{ heads_each }}u;
        head[i] = group.y * {{ heads_each }}u + query_row % {{ heads_each }}u;
        const uint from = min(first + row[i], last);
        limit[i] = positions[from];
        device const float* source = q + (from * {{ query_heads }}u + head[i]) * {{ width }}u;
        #pragma unroll
        for (uint m = 0u; m < {{ matrices }}u; m++) {
{% if padded != width %}
            const bool is_there = m * 8u + pair < {{ width }}u;
            const float2 query = is_there ? *(device const float2*)(source + m * 8u + pair) : float2(0.0f);
{% else %}
            const float2 query = *(device const float2*)(source + m * 8u + pair);
{% endif %}
            queries[i][m].thread_elements()[0] = {{ factor }} * query.x;
            queries[i][m].thread_elements()[1] = {{ factor }} * query.y;
        }
    }

    const uint rows = min({{ rows_each }}u, args.rows - first);
    for (uint begin = 0u, end = 0u; begin < rows; begin = end) {
{% if window %}
        // The next run of rows of one slot, with its first and last positions; each lane checks one row.
        uint shortest = 0xffffffffu;
{% else %}
        // The next run of rows of one slot, with its last position; each lane checks one row.
{% endif %}
        const uint slot = slots[first + begin];
        uint longest = 0u;
        for (uint count = 32u; count == 32u; end += count) {
            const uint ahead = min(end + lane, rows - 1u);
            const bool is_in = ahead == end + lane && slots[first + ahead] == slot;
            count = simd_min(is_in ? 32u : lane);
            const uint position = positions[first + (lane < count ? end + lane : begin)];
{% if window %}
            shortest = min(shortest, simd_min(position));
{% endif %}
            longest = max(longest, simd_max(position));
        }
        const ulong cached_head = ulong(slot) * {{ key_heads }}ul + ulong(group.y * {{ heads_each }}u / {{ group }}u);
        device const {{ element }}* cached_keys = keys + cached_head * ulong({{ capacity }}) * {{ kv_stride }}ul;
        device const {{ element }}* cached_values = values + cached_head * ulong({{ capacity }}) * {{ kv_stride }}ul;

        // Sums of values, and this lane's part of the denominators.
        float maximum[2];
        float total[2];
        simdgroup_matrix<float, 8, 8> sums[2][{{ matrices }}];
        #pragma unroll
        for (uint i = 0u; i < 2u; i++) {
{% if sinks %}
            // A sink is a score without a value.
            maximum[i] = {{ base_2 }} * sinks[head[i]];
            total[i] = pair == 0u ? 1.0f : 0.0f;
{% else %}
            maximum[i] = -1.0e38f;
            total[i] = 0.0f;
{% endif %}
            #pragma unroll
            for (uint m = 0u; m < {{ matrices }}u; m++) {
                sums[i][m] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }

        // Positions past the last repeat it.
{% if window %}
        const uint oldest = shortest >= {{ window }}u ? shortest - {{ window - 1 }}u : 0u;
{% endif %}
        {{ vector }} key[{{ each }}];
        {{ vector }} value[{{ each }}];
        {{ load_tile("oldest" if window else "0u") | indent(8) }}

        for (uint start = {{ "oldest" if window else "0u" }}; start <= longest; start += {{ tile }}u) {
            #pragma unroll
            for (uint n = 0u; n < {{ each }}u; n++) {
                const uint i = thread_id + n * 128u;
                const uint place = i / {{ padded // step }}u * {{ pitch }}u + i % {{ padded // step }}u * {{ step }}u;
{% if vectors % 128 != 0 %}
                if (i < {{ vectors }}u) {
                    *(threadgroup {{ vector }}*)(staged_keys + place) = key[n];
                    *(threadgroup {{ vector }}*)(staged_values + place) = value[n];
                }
{% else %}
                *(threadgroup {{ vector }}*)(staged_keys + place) = key[n];
                *(threadgroup {{ vector }}*)(staged_values + place) = value[n];
{% endif %}
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            {{ load_tile("start + " ~ tile ~ "u") | indent(12) }}

            // Scores.
            simdgroup_matrix<float, 8, 8> weights[2][{{ tile // 8 }}];
            #pragma unroll
            for (uint k = 0u; k < {{ tile // 8 }}u; k++) {
                weights[0][k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
                weights[1][k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
            #pragma unroll
            for (uint m = 0u; m < {{ matrices }}u; m += 2u) {
                #pragma unroll
                for (uint k = 0u; k < {{ tile // 8 }}u; k++) {
                    threadgroup const {{ staged }}* source = staged_keys + k * {{ 8 * pitch }}u + m * 8u;
                    {{ add }}(weights[0][k], weights[1][k], &queries[0][m], &queries[1][m], source, {{ pitch }}ul, true);
                }
            }

            // Softmax weights: four lanes share a query row.
            #pragma unroll
            for (uint i = 0u; i < 2u; i++) {
                float highest = maximum[i];
                #pragma unroll
                for (uint k = 0u; k < {{ tile // 8 }}u; k++) {
                    #pragma unroll
                    for (uint e = 0u; e < 2u; e++) {
                        const uint p = start + k * 8u + pair + e;
                        const float score = weights[i][k].thread_elements()[e];
{% if window %}
                        const bool live = p <= limit[i] && limit[i] - p < {{ window }}u;
{% else %}
                        const bool live = p <= limit[i];
{% endif %}
{% if softcap %}
                        weights[i][k].thread_elements()[e] = live ? {{ base_2 }} * softcap(score, {{ softcap }}) : -2.0e38f;
{% else %}
                        weights[i][k].thread_elements()[e] = live ? score : -2.0e38f;
{% endif %}
                        highest = max(highest, weights[i][k].thread_elements()[e]);
                    }
                }
                highest = max(highest, simd_shuffle_xor(highest, ushort(1)));
                highest = max(highest, simd_shuffle_xor(highest, ushort(8)));
                const float rescale = exp2(maximum[i] - highest);
                maximum[i] = highest;
                total[i] *= rescale;
                #pragma unroll
                for (uint k = 0u; k < {{ tile // 8 }}u; k++) {
                    #pragma unroll
                    for (uint e = 0u; e < 2u; e++) {
                        const float weight = exp2(weights[i][k].thread_elements()[e] - highest);
                        weights[i][k].thread_elements()[e] = weight;
                        total[i] += weight;
                    }
                }
                #pragma unroll
                for (uint m = 0u; m < {{ matrices }}u; m++) {
                    sums[i][m].thread_elements()[0] *= rescale;
                    sums[i][m].thread_elements()[1] *= rescale;
                }
            }

            // Sums of values.
            #pragma unroll
            for (uint k = 0u; k < {{ tile // 8 }}u; k += 2u) {
                #pragma unroll
                for (uint m = 0u; m < {{ matrices }}u; m++) {
                    threadgroup const {{ staged }}* source = staged_values + k * {{ 8 * pitch }}u + m * 8u;
                    {{ add }}(sums[0][m], sums[1][m], &weights[0][k], &weights[1][k], source, {{ pitch }}ul, false);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }

        // Divide by the denominators and store the run's rows.
        #pragma unroll
        for (uint i = 0u; i < 2u; i++) {
            total[i] += simd_shuffle_xor(total[i], ushort(1));
            total[i] += simd_shuffle_xor(total[i], ushort(8));
            if (row[i] >= begin && row[i] < end) {
{% if gates %}
                const uint gate = (first + row[i]) * {{ gates.pitch }}u + {{ gates.first }}u + head[i] * {{ width }}u;
{% endif %}
                device float* target = heads + ((first + row[i]) * {{ query_heads }}u + head[i]) * {{ width }}u;
                #pragma unroll
                for (uint m = 0u; m < {{ matrices }}u; m++) {
                    const uint c = m * 8u + pair;
{% if padded != width %}
                    if (c >= {{ width }}u) {
                        continue;
                    }
{% endif %}
                    float2 mean = float2(sums[i][m].thread_elements()[0], sums[i][m].thread_elements()[1]) / total[i];
{% if gates %}
                    mean.x *= sigmoid(gates[gate + c]);
                    mean.y *= sigmoid(gates[gate + c + 1u]);
{% endif %}
                    *(device float2*)(target + c) = mean;
                }
            }
        }
    }
}
